"""Judges of "low entropy is bad": is it there with a higher loss, before it, is it the cause?"""

import math
from collections.abc import Sequence
from itertools import groupby

import numpy as np
from scipy import stats

from attnscale.analysis.comparison import LEVEL, compare, holm
from attnscale.analysis.rates import Results
from attnscale.analysis.settings import SCALE, is_number, labelled
from attnscale.analysis.tuning import Arm
from attnscale.claims.findings import (
    NO_ATTENTION,
    Cell,
    Finding,
    cells,
    compare_best,
    family,
    judgement,
)
from attnscale.claims.judgement import FAILS, HOLDS, OPEN, Judgement, together
from attnscale.claims.scales import attention_metrics
from attnscale.tracking.runs import Curve, Run

ENTROPY = "entropy_norm"
KINDS = ("self", "cross", "attention")
"""Ends of an attention's path: of the Transformer, and of the autoencoder."""

MIN_SAMPLES = 5
"""Samples of a run from which a correlation of changes is taken."""


def _attending(results: Results) -> dict[str, list[Run]]:
    """Return the runs whose attention does something, by experiment."""
    return {
        name: [r for r in runs if not (is_number(r.scale) and float(r.scale) == NO_ATTENTION)]
        for name, runs in results.items()
    }


def _entropy(run: Run, kind: str = "") -> float | None:
    """Return the mean over attentions of the last entropy ÷ ln n."""
    curves = [sorted(run.curve(metric)) for metric in attention_metrics(run, ENTROPY, kind)]
    lasts = [curve[-1].value for curve in curves if curve]
    return sum(lasts) / len(lasts) if lasts else None


def correlation(results: Results) -> Judgement:
    """Judge "runs of lower entropy have a higher loss", at equal learning rate and d_k.

    The statistic is the partial correlation of ln best loss and last entropy: both less their mean
    over the runs of a rate and size, those without attention left out; t test with n − groups − 1
    degrees of freedom. Self- and cross-attention are looked at separately.
    """
    parts, correlations = [], []
    for name, runs in _attending(results).items():
        for kind in KINDS:
            pairs = sorted(
                ((run.lr, run.d_k), entropy, math.log(run.loss))
                for run in runs
                if run.loss is not None and (entropy := _entropy(run, kind)) is not None
            )
            residuals, groups = [], 0
            for _, alike in groupby(pairs, key=lambda pair: pair[0]):
                points = np.array([pair[1:] for pair in alike])
                residuals.append(points - points.mean(axis=0))
                groups += 1
            df = len(pairs) - groups - 1
            if df < 1:
                continue
            x, y = np.concatenate(residuals).T
            if not x.any() or not y.any():
                continue
            r = float(x @ y / math.sqrt((x @ x) * (y @ y)))
            t = r * math.sqrt(df / max(1 - r * r, np.finfo(float).tiny))
            correlations.append((r, 2 * float(stats.t.sf(abs(t), df))))
            parts.append(f"{name}, {kind}: r = {r:.2f}, {len(pairs)} runs")
    if not parts:
        return Judgement(OPEN, f"missing: attention/*/{ENTROPY} of several runs of one rate")
    adjusted = holm([p for _, p in correlations])
    verdicts = [
        OPEN if p >= 1 - LEVEL else HOLDS if r < 0 else FAILS
        for (r, _), p in zip(correlations, adjusted, strict=True)
    ]
    correlation_texts = [f"{part}, p = {p:.2g}" for part, p in zip(parts, adjusted, strict=True)]
    return Judgement(together(verdicts), "; ".join(correlation_texts))


def lead(results: Results) -> Judgement:
    """Judge "entropy falls before the loss rises".

    The statistic is corr(ΔH_t, ΔL_t+1) − corr(ΔL_t, ΔH_t+1) over a run's samples, L the training
    loss between two of them; mean over the runs of a replicate, so that these alone are counted.
    What both do together, or by their trend, cancels.
    """
    findings = []
    for name, runs in _attending(results).items():
        ahead: dict[tuple[int, int], list[tuple[float, float]]] = {}
        for run in runs:
            both = _lead_and_lag(run)
            if both is not None and run.outcome == "finished":
                ahead.setdefault(run.replicate, []).append(both)
        if ahead:
            leads, lags = (
                {
                    key: float(np.mean([pair[side] for pair in pairs]))
                    for key, pairs in ahead.items()
                }
                for side in (0, 1)
            )
            label = f"{name}, correlation of changes, entropy first − loss first"
            findings.append(Finding(label, compare(leads, lags)))
    lacking = f"missing: {MIN_SAMPLES} samples of attention/*/{ENTROPY} in a run"
    return judgement(family(findings), {"lower": HOLDS, "higher": FAILS}, missing=lacking)


def _lead_and_lag(run: Run) -> tuple[float, float] | None:
    """Return both correlations of a run, or None where nothing varies."""
    curves = [sorted(run.curve(metric)) for metric in attention_metrics(run, ENTROPY)]
    steps = sorted({point.step for curve in curves for point in curve})
    losses = run.curve("train/loss")
    if len(steps) < MIN_SAMPLES or not losses:
        return None
    entropy = np.mean([_at_steps(curve, steps) for curve in curves if curve], axis=0)
    spans = zip(steps, [*steps[1:], math.inf], strict=True)
    between = [[p.value for p in losses if low <= p.step < high] for low, high in spans]
    if not all(between):
        return None
    changes = np.diff(entropy), np.diff([sum(part) / len(part) for part in between])
    pairs = ((changes[0][:-1], changes[1][1:]), (changes[1][:-1], changes[0][1:]))
    if any(np.ptp(x) == 0 for pair in pairs for x in pair):
        return None
    lead, lag = (float(np.corrcoef(*pair)[0, 1]) for pair in pairs)
    return lead, lag


def _at_steps(curve: Curve, steps: Sequence[int]) -> "np.typing.NDArray[np.float64]":
    return np.interp(steps, [p.step for p in curve], [p.value for p in curve])


def intervention(results: Results) -> Judgement:
    """Judge "holding the entropy low makes the loss higher".

    Held is it where the scale is a constant factor, or one whose option was swept (γ·q̂·k̂ with a
    fixed γ bounds the logits). The arm with the lowest entropy at the end is compared with each of
    the others, each at its best rate; the one without attention is none of them.
    """
    held: dict[tuple[str, int], dict[str, tuple[float, Arm, Cell]]] = {}
    for cell in cells(results):
        options = {k: v for k, v in cell.values.items() if k.startswith("attention.options.")}
        for scale, arm in (cell.arms if options else cell.factors).items():
            value = _of_arm(arm)
            if value is not None:
                name = labelled({SCALE: scale, **options})
                held.setdefault((cell.experiment, cell.d_k), {})[name] = value, arm, cell
    pairs = []
    for (experiment, d_k), arms in held.items():
        lowest = min(arms, key=lambda name: arms[name][0])
        least, low, cell = arms[lowest]
        pairs += [
            (
                f"{experiment} d_k={d_k}, {lowest} (entropy {least:.2g}) − {name} ({own:.2g})",
                low,
                arm,
                cell,
            )
            for name, (own, arm, _) in arms.items()
            if name != lowest
        ]
    says = {"higher": HOLDS, "lower": FAILS, "equivalent": FAILS}
    return judgement(compare_best(pairs), says, missing="missing: arms that hold the entropy")


def _of_arm(arm: Arm) -> float | None:
    """Return the mean of the last entropies at an arm's best rate, or None."""
    best = arm.best()
    values = [] if best is None else [_entropy(run) for run in best.runs]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
