"""Judges of the claims about one scale beside another, and about sizes.

Each arm is taken at its best rate. "Gains little", "is neutral" and "can be folded" are claims of
equivalence: two one-sided tests within δ.
"""

import math
from collections.abc import Callable

from scipy import stats

from attnscale.analysis.comparison import LEVEL, holm
from attnscale.analysis.rates import Results
from attnscale.analysis.tuning import Arm
from attnscale.claims.findings import (
    Cell,
    Finding,
    against,
    cells,
    compare_best,
    family,
    judgement,
)
from attnscale.claims.judgement import FAILS, HOLDS, Judgement
from attnscale.tracking.runs import OBJECTIVE, Run

NEAR = (0.7, 1.4)
"""Deviations of the logits that count as 1: within a factor of √2."""

BY_LENGTH = "test/loss_length_"
"""Start of the metrics of the test loss by length: first and last length of the class."""

SAME_SPREAD = 0.05
"""Two deviations of the logits are matched if they differ by less than this share."""


def _named(*scales: str) -> Callable[[Cell], list[str]]:
    return lambda cell: [scale for scale in scales if scale in cell.arms]


folding = against("sqrt", {"equivalent": HOLDS, "lower": FAILS, "higher": FAILS}, _named("folded"))
"""1/√d_k can be folded into the initialisation, in every cell: an optimizer is one."""

flatness = against(
    "sqrt", {"higher": HOLDS, "lower": FAILS, "equivalent": FAILS}, _named("inverse")
)
"""Dividing by d_k hurts training."""

learned = against(
    "sqrt",
    {"equivalent": HOLDS, "higher": HOLDS, "lower": FAILS},
    _named("learned", "learned_shared"),
)
"""A learned temperature gains little: no difference that matters, or a loss."""


def initial_std(arm: Arm) -> float | None:
    """Return the measured deviation of the untrained logits in rows, or None.

    It is the mean over an arm's runs, whatever their rate, and over their attentions.
    """
    stds = [
        min(run.curve(metric)).value
        for setting in arm.settings
        for run in setting.runs
        for metric in attention_metrics(run, "logit_std_row")
        if run.curve(metric)
    ]
    return sum(stds) / len(stds) if stds else None


def attention_metrics(run: Run, statistic: str, kind: str = "") -> list[str]:
    """Return the metrics of a statistic of each attention, mean over heads.

    Args:
        run: A run.
        statistic: Its name in the registry.
        kind: End of the attention's path, such as ``cross``; all where it is empty.
    """
    end = f"{kind}/{statistic}"
    names = (m for m in run.recorded if m.startswith("attention/") and m.endswith(end))
    return sorted(m for m in names if "/head" not in m)


def _same_mean(cell: Cell) -> list[str]:
    """Return the modes that know n and keep the mean deviation, by form or as measured."""
    usual = initial_std(cell.arms["sqrt"])
    scales = _named("log_n_base", "ssmax")(cell)
    for scale in _named("log_n")(cell):
        own = initial_std(cell.arms[scale])
        if usual and own and abs(own / usual - 1) < SAME_SPREAD:
            scales.append(scale)
    return scales


def length_law(results: Results) -> Judgement:
    """Judge "ln n is the right law": modes that know n and keep the mean deviation beat sqrt.

    Where the test loss was recorded by length, in each class of lengths above the shortest, which
    is that of training; else by the best validation loss, which is no test of a law.
    """
    findings = []
    for cell in cells(results):
        if "sqrt" not in cell.arms:
            continue
        run = cell.arms["sqrt"].settings[0].runs[0]
        classes = sorted((m for m in run.recorded if m.startswith(BY_LENGTH)), key=_first_length)
        for metric in classes[1:] or [OBJECTIVE]:
            findings += compare_best(
                (
                    (
                        f"{cell.name}, {metric}, {scale} − sqrt",
                        cell.arms[scale],
                        cell.arms["sqrt"],
                        cell,
                    )
                    for scale in _same_mean(cell)
                ),
                metric,
            )
    says = {"lower": HOLDS, "higher": FAILS, "equivalent": FAILS}
    return judgement(family(findings), says, missing="missing: arms to compare with sqrt")


def _first_length(metric: str) -> int:
    return int(metric.removeprefix(BY_LENGTH).partition("_")[0])


def unit_variance(results: Results) -> Judgement:
    """Judge "the variance of the logits must be 1".

    The arm whose measured deviation at step 0 is nearest 1, on a logarithmic scale, stands for it;
    it must lie within 0.7 … 1.4. An arm outside that is not worse by δ or more (a one-sided test,
    Holm over the arms) makes the claim fail; it holds if every one is worse.
    """
    pairs, lacking = [], ["missing: factors"]
    for cell in cells(results):
        stds = {s: initial_std(arm) for s, arm in cell.factors.items()}
        known = {scale: std for scale, std in stds.items() if std}
        unit = min(known, key=lambda scale: abs(math.log(known[scale])), default=None)
        if unit is None or not NEAR[0] <= known[unit] <= NEAR[1]:
            lacking.append(f"{cell.name}: a factor whose logits have a deviation near 1")
            continue
        pairs += [
            (
                f"{cell.name}, deviation {known[scale]:.3g} ({scale}) − {known[unit]:.3g} ({unit})",
                cell.arms[scale],
                cell.arms[unit],
                cell,
            )
            for scale in sorted(known, key=float)
            if not NEAR[0] <= known[scale] <= NEAR[1]
        ]
    findings = compare_best(pairs)
    judged = judgement(findings, {"higher": HOLDS}, missing="; ".join(lacking))
    p_values = [p for f in findings if not f.rises and (p := _not_inferior(f)) is not None]
    if any(p < 1 - LEVEL for p in holm(p_values)):
        return Judgement(FAILS, judged.value)
    return judged


def _not_inferior(finding: Finding) -> float | None:
    """Return the p value of a − b ≥ δ, a one-sided t test."""
    d = finding.difference
    if d is None or d.error is None or d.df is None or d.margin is None:
        return None
    if d.error == 0:
        return float(d.value >= d.margin)
    return float(stats.t.sf((d.margin - d.value) / d.error, d.df))


def width(results: Results) -> Judgement:
    """Judge "a larger d_k is neutral": every size equivalent to the smallest, in each design.

    A design holds the number of heads, or heads · d_k; what else varies is told.
    """
    designs: dict[str, dict[int, tuple[Arm, Cell]]] = {}
    for cell in cells(results):
        arm = cell.arms.get("sqrt")
        if arm is None:
            continue
        heads = int(arm.settings[0].runs[0].parameters.get("model.n_heads", "1"))
        for design in (f"{heads} heads", f"heads · d_k = {heads * cell.d_k}"):
            designs.setdefault(f"{cell.experiment}, {design}", {})[cell.d_k] = (arm, cell)
    pairs = []
    for design, sizes in designs.items():
        smallest, *larger = sorted(sizes)
        base, cell = sizes[smallest]
        pairs += [
            (f"{design}, d_k={d_k} − d_k={smallest}", sizes[d_k][0], base, cell) for d_k in larger
        ]
    says = {"equivalent": HOLDS, "lower": FAILS, "higher": FAILS}
    return judgement(compare_best(pairs), says, missing="missing: two sizes of sqrt")
