"""Judges of the claims that only training can settle: recorded sweeps in, judgement out.

Runs are compared at each setting's best learning rate, by the best validation loss, paired by seed
where seeds match. A difference within its interval settles nothing and is called open.
"""

import math
from collections.abc import Callable

from attnscale.analysis.comparison import Difference, compare, compare_all, in_words
from attnscale.analysis.curves import reach
from attnscale.analysis.rates import Results, at_best_rate, mean_loss, select
from attnscale.claims.judgement import DEPENDS, FAILS, HOLDS, OPEN, Judgement, together

HALVED = 0.5
"""A run converged if its best validation loss is below this share of its first training loss."""


def _words(difference: Difference) -> str:
    return in_words(difference) + (" (one seed)" if difference.interval is None else "")


def convergence(results: Results) -> Judgement:
    """Without scaling, models with d_k > 64 do not converge."""
    findings, parts = [], []
    for name, runs in results.items():
        for d_k in sorted({run.d_k for run in runs if run.d_k > 64}):
            unscaled = select(runs, scale="none", d_k=d_k)
            if not unscaled:
                continue
            best, usual = at_best_rate(unscaled), at_best_rate(select(runs, scale="sqrt", d_k=d_k))
            diverged = sum(run.loss is None for run in unscaled)
            if best is None:
                findings.append(HOLDS)
                parts.append(f"{name}, d_k={d_k}: no rate without a diverged run")
                continue
            converged = [
                run.loss is not None
                and math.isfinite(run.start_loss)
                and run.loss < HALVED * run.start_loss
                for run in best.runs
            ]
            findings.append(FAILS if all(converged) else DEPENDS if any(converged) else HOLDS)
            against = (
                "no rate without a diverged run"
                if usual is None
                else f"{mean_loss(usual.runs):.3g}, difference "
                f"{_words(compare(best.losses, usual.losses))}"
            )
            parts.append(
                f"{name}, d_k={d_k}: best loss none {mean_loss(best.runs):.3g} from "
                f"{best.runs[0].start_loss:.3g} at the start, sqrt {against}, "
                f"{diverged} of {len(unscaled)} diverged"
            )
    return Judgement(together(findings), "; ".join(parts))


def speed(results: Results) -> Judgement:
    """Scaling speeds up convergence and generalises better."""
    findings, parts = [], []
    for name, runs in results.items():
        for d_k in sorted({run.d_k for run in runs}):
            bests = [at_best_rate(select(runs, scale=s, d_k=d_k)) for s in ("none", "sqrt")]
            if bests[0] is None or bests[1] is None:
                continue
            none, sqrt = bests[0], bests[1]
            if not none.test_losses or not sqrt.test_losses:
                continue
            difference = compare(none.test_losses, sqrt.test_losses)
            common = max(loss for best in (none, sqrt) for loss in best.losses.values())
            steps = []
            for best in (none, sqrt):
                points = [reach(run.curve("val/loss"), common) for run in best.runs]
                known = [point.step for point in points if point is not None]
                steps.append(sum(known) / len(points) if len(known) == len(points) else math.nan)
            better = difference.better
            findings.append(OPEN if better is None else FAILS if better else HOLDS)
            parts.append(
                f"{name}, d_k={d_k}: test loss none − sqrt {_words(difference)}; steps to a common "
                f"validation loss {steps[0]:.0f} and {steps[1]:.0f}"
            )
    return Judgement(together(findings), "; ".join(parts))


def against(
    reference: str, claim_if_better: str, claim_if_worse: str
) -> Callable[[Results], Judgement]:
    """Return a judge that compares every other scale with one, each at its best rate."""

    def judge(results: Results) -> Judgement:
        findings, parts = [], []
        for runs in results.values():
            bests = {s: at_best_rate(select(runs, scale=s)) for s in {run.scale for run in runs}}
            base = bests.pop(reference, None)
            if base is None:
                continue
            others = {s: best.losses for s, best in sorted(bests.items()) if best is not None}
            for scale, difference in compare_all(base.losses, others).items():
                better = difference.better
                findings.append(
                    OPEN if better is None else claim_if_better if better else claim_if_worse
                )
                parts.append(f"{scale} − {reference} {_words(difference)}")
            parts += [f"{s}: diverged" for s, best in sorted(bests.items()) if best is None]
        return Judgement(together(findings), "best validation loss, " + "; ".join(parts))

    return judge


def unit_variance(results: Results) -> Judgement:
    """The variance must be 1. One factor that does as well is enough against it."""
    runs = [run for group in results.values() for run in group]
    bests = {s: at_best_rate(select(runs, scale=s)) for s in {run.scale for run in runs}}
    unit = next((s for s in bests if abs(float(s) * math.sqrt(runs[0].d_k) - 1) < 1e-6), None)
    base = bests.pop(unit, None) if unit is not None else None
    if base is None:
        return Judgement(OPEN, "no run with a factor of 1/√d_k")
    others = {s: b.losses for s, b in sorted(bests.items(), key=lambda x: float(x[0])) if b}
    differences = compare_all(base.losses, others)
    times = {s: f"{float(s) * math.sqrt(runs[0].d_k):.4g}/√d_k" for s in bests}
    parts = [f"{times[s]} − 1/√d_k: {_words(difference)}" for s, difference in differences.items()]
    parts += [f"{times[s]}: diverged" for s in sorted(bests, key=float) if bests[s] is None]
    # A single seed says nothing; a factor whose runs diverge is not as good.
    as_good = [d.better is not False for d in differences.values() if d.interval is not None]
    as_good += [False for best in bests.values() if best is None]
    verdict = OPEN if not as_good else FAILS if any(as_good) else HOLDS
    return Judgement(verdict, "; ".join(parts))


def width(results: Results) -> Judgement:
    """A larger d_k is neutral. One clear difference is enough against it."""
    runs = [run for group in results.values() for run in group]
    bests = {d_k: at_best_rate(select(runs, d_k=d_k)) for d_k in sorted({r.d_k for r in runs})}
    known = {d_k: best.losses for d_k, best in bests.items() if best is not None}
    if len(known) < 2:
        return Judgement(OPEN, "fewer than two sizes without a diverged run")
    smallest = min(known)
    differences = compare_all(
        known[smallest], {str(d): x for d, x in known.items() if d != smallest}
    )
    clear = [difference.better is not None for difference in differences.values()]
    parts = [
        f"d_k={d} − d_k={smallest}: {_words(difference)}" for d, difference in differences.items()
    ]
    return Judgement(FAILS if any(clear) else OPEN, "; ".join(parts))


def initialisation(results: Results) -> Judgement:
    """A good initialisation, or LayerNorm, replaces the factor in part."""
    runs = [run for group in results.values() for run in group]
    gaps, parts = {}, []
    for variant in sorted({run.variant for run in runs}):
        none, sqrt = (
            at_best_rate(select(runs, scale=s, variant=variant)) for s in ("none", "sqrt")
        )
        if none is None or sqrt is None:
            continue
        gaps[variant] = mean_loss(none.runs) / mean_loss(sqrt.runs)
        parts.append(
            f"{variant}: none ÷ sqrt {gaps[variant]:.3g}, "
            f"difference {_words(compare(none.losses, sqrt.losses))}"
        )
    plain = [gap for variant, gap in gaps.items() if variant.endswith("norm=none")]
    normed = [gap for variant, gap in gaps.items() if variant.endswith("norm=pre")]
    if not plain or not normed:
        return Judgement(OPEN, "; ".join(parts))
    smaller = [max(plain) > 2 * min(plain), max(plain) > 2 * max(normed)]
    verdict = HOLDS if all(smaller) else DEPENDS if any(smaller) else FAILS
    return Judgement(verdict, "; ".join(parts))
