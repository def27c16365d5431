"""Judges of what happens inside in training: gradients, growth of the scores, the best rate."""

import math
from collections.abc import Mapping

import numpy as np

from attnscale.analysis.comparison import Values, compare
from attnscale.analysis.rates import Results
from attnscale.analysis.settings import D_K, Replicate, Setting, labelled
from attnscale.analysis.tuning import Arm
from attnscale.claims.findings import Cell, Finding, at_end, cells, family, judgement, setting_at
from attnscale.claims.judgement import FAILS, HOLDS, Judgement
from attnscale.claims.scales import attention_metrics
from attnscale.tracking.runs import Curve

THIRDS = ("first", "middle", "last")
MOMENTS = (0.0, 0.1, 1.0)
"""Shares of training where the growth is read."""

EXPONENT_MARGIN = 0.05
"""A tenth of what lies between ½ and 1, vectors that are all paired with their like."""


def gradients(results: Results) -> Judgement:
    """Judge "without the factor gradients vanish in training", at sqrt's best rate.

    The statistic is ln ‖∂L/∂W_q‖, mean over a third of the steps, none − sqrt, by replicate; a
    claim about optima is not made, so that ends of grids do not matter.
    """
    findings = []
    for cell in cells(results):
        if not {"none", "sqrt"} <= cell.arms.keys():
            continue
        best = cell.arms["sqrt"].best()
        none = None if best is None else setting_at(cell.arms["none"], best)
        if best is None or none is None:
            continue
        for third, name in enumerate(THIRDS):
            a, b = (_log_gradients(setting, third) for setting in (none, best))
            if a and b:
                label = f"{cell.name}, ln gradient of W_q in the {name} third, none − sqrt"
                findings.append(Finding(label, compare(a, b, margin=math.log(1.1))))
    says = {"lower": HOLDS, "higher": FAILS, "equivalent": FAILS}
    return judgement(family(findings), says, missing="missing: grad_norm/q of none and sqrt")


def _log_gradients(setting: Setting, third: int) -> Values:
    """Return replicate -> mean ln gradient norm of W_q over a third of the points."""
    logs = {}
    for run in setting.runs:
        norms = [point.value for point in sorted(run.curve("grad_norm/q"))]
        part = [x for x in np.array_split(norms, len(THIRDS))[third] if x > 0]
        if run.outcome == "finished" and part:
            logs[run.replicate] = float(np.log(part).mean())
    return logs


def _sizes(results: Results) -> dict[str, dict[int, Cell]]:
    """Return what else is equal -> d_k -> cell with sqrt, where there are several sizes."""
    sizes: dict[str, dict[int, Cell]] = {}
    for cell in cells(results):
        if "sqrt" in cell.arms:
            rest = labelled({key: text for key, text in cell.values.items() if key != D_K})
            sizes.setdefault(f"{cell.experiment} {rest}".strip(), {})[cell.d_k] = cell
    return {name: by_size for name, by_size in sizes.items() if len(by_size) > 1}


def _slopes(by_size: Mapping[int, Values]) -> dict[Replicate, float]:
    """Return replicate -> slope over ln d_k of a figure, for replicates of every size."""
    shared = set.intersection(*(set(values) for values in by_size.values()))
    x = np.log(list(by_size))
    return {
        key: float(np.polyfit(x, [values[key] for values in by_size.values()], 1)[0])
        for key in sorted(shared)
    }


def growth(results: Results) -> Judgement:
    """Judge "q and k are independent": their scores grow as those of foreign keys do.

    The exponent is ½ + the slope over ln d_k of ln ``score_std_relative``, which is the deviation
    of the scores within rows over what the sizes of q and k explain; by replicate, mean over
    attentions, sqrt at its best rate, at 0, 10 and 100 % of training. It is compared with that of
    ``score_std_permuted``: keys of another sequence, which cannot be paired with their queries. ½
    itself is no measure: independent vectors with preferred directions grow faster.
    """
    findings, exponent_texts = [], []
    for name, by_size in _sizes(results).items():
        bests = {d_k: cell.arms["sqrt"].best() for d_k, cell in by_size.items()}
        for moment in MOMENTS:
            exponents = {}
            for statistic in ("score_std_relative", "score_std_permuted"):
                logs = {
                    d_k: {} if best is None else _log_statistic(best, statistic, moment)
                    for d_k, best in bests.items()
                }
                slopes = _slopes(logs)
                exponents[statistic] = {key: 0.5 + slope for key, slope in slopes.items()}
            real, permuted = exponents.values()
            label = f"{name}, exponent at {100 * moment:g} % of training"
            if real and permuted:
                difference = compare(real, permuted, margin=EXPONENT_MARGIN)
                findings.append(Finding(f"{label}, − that of permuted keys", difference))
            if real:
                exponent_texts.append(f"{label}: {sum(real.values()) / len(real):.3g}")
    lacking = "missing: attention/*/score_std_relative and _permuted of sqrt at several d_k"
    says = {"equivalent": HOLDS, "lower": FAILS, "higher": FAILS}
    judged = judgement(family(findings), says, missing=lacking)
    return Judgement(judged.verdict, "; ".join([judged.value, *exponent_texts]))


def _log_statistic(setting: Setting, statistic: str, moment: float) -> Values:
    """Return replicate -> mean over attentions of ln of a statistic at a share of training."""
    logs = {}
    for run in setting.runs:
        curves = [sorted(run.curve(m)) for m in attention_metrics(run, statistic)]
        values = [_at(curve, moment) for curve in curves if curve]
        if run.outcome == "finished" and values and min(values) > 0:
            logs[run.replicate] = float(np.log(values).mean())
    return logs


def _at(curve: Curve, moment: float) -> float:
    """Return the value of the sample nearest a share of the last sample's step."""
    step = moment * curve[-1].step
    return min(curve, key=lambda point: abs(point.step - step)).value


def transfer(results: Results) -> Judgement:
    """Judge "√d_k is the right factor": one learning rate is best for all d_k.

    The statistic is the slope over ln d_k of the ln of the rate with the lowest loss, by replicate;
    half of ½, by which the two factors in question differ, does not matter. A best rate at an end
    of its grid leaves it open.
    """
    findings = []
    for name, by_size in _sizes(results).items():
        for scale in ("sqrt", "inverse"):
            sized = {d_k: c.arms[scale] for d_k, c in by_size.items() if scale in c.arms}
            bests = {d_k: arm.best() for d_k, arm in sized.items()}
            if len(sized) < 2 or None in bests.values():
                continue
            slopes = _slopes({d_k: _best_rates(arm) for d_k, arm in sized.items()})
            ends = any(b is not None and at_end(sized[d_k], b) for d_k, b in bests.items())
            if slopes:
                difference = compare(slopes, dict.fromkeys(slopes, 0.0), margin=0.25)
                label = f"{name}, slope of the best rate over d_k, {scale}"
                remarks = ("a best rate at an end of its grid",) if ends else ()
                findings.append(Finding(label, difference, ends, ends, remarks))
    findings = family(findings)
    says = {"equivalent": HOLDS, "lower": FAILS, "higher": FAILS}
    of_sqrt = [finding for finding in findings if finding.label.endswith("sqrt")]
    judged = judgement(of_sqrt, says, missing="missing: rates of sqrt at several d_k")
    others = [str(finding) for finding in findings if finding not in of_sqrt]
    return Judgement(judged.verdict, "; ".join([judged.value, *others]))


def _best_rates(arm: Arm) -> Values:
    """Return replicate -> ln of the rate with its lowest loss."""
    losses: dict[Replicate, list[tuple[float, float]]] = {}
    for setting in arm.settings:
        for key, loss in setting.losses.items():
            losses.setdefault(key, []).append((loss, math.log(setting.runs[0].lr)))
    return {key: min(pairs)[1] for key, pairs in losses.items()}
