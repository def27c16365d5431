"""Judges of "a good initialisation, or LayerNorm, replaces the factor in part".

    gap           ln(none / sqrt) of the best losses, by replicate
    interaction   gap of one cell − gap of another, paired by replicate
    share         1 − ln(folded / sqrt) / ln(none / sqrt): what folded closes of the gap

Where none is not worse than sqrt there is nothing to replace.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from attnscale.analysis.comparison import Values, compare
from attnscale.analysis.rates import Results
from attnscale.analysis.tuning import at_best
from attnscale.claims.findings import Cell, Finding, cells, compare_best, doubts, family, judgement
from attnscale.claims.judgement import FAILS, HOLDS, Judgement

INIT, NORM = "model.init", "model.norm"
NO_GAP = "no gap between none and sqrt, nothing to replace, or missing arms"


def _with_gap(results: Results) -> list[Cell]:
    """Return the cells where none is worse than sqrt."""
    both = [cell for cell in cells(results) if {"none", "sqrt"} <= cell.arms.keys()]
    worse = {
        finding.label
        for finding in compare_best((c.name, c.arms["none"], c.arms["sqrt"], c) for c in both)
        if finding.difference is not None and finding.side == "higher"
    }
    return [cell for cell in both if cell.name in worse]


def folded(results: Results) -> Judgement:
    """Judge "the initialisation that has the factor in it closes a part of the gap"."""
    gaps = [cell for cell in _with_gap(results) if "folded" in cell.arms]
    findings = compare_best(
        (f"{cell.name}, folded − none", cell.arms["folded"], cell.arms["none"], cell)
        for cell in gaps
    )
    judged = judgement(
        findings, {"lower": HOLDS, "higher": FAILS, "equivalent": FAILS}, missing=NO_GAP
    )
    shares = []
    for cell in gaps:
        best = {scale: cell.arms[scale].best() for scale in ("folded", "none", "sqrt")}
        losses = {scale: s.mean_loss for scale, s in best.items() if s is not None}
        if len(losses) == len(best):
            share = 1 - math.log(losses["folded"] / losses["sqrt"]) / math.log(
                losses["none"] / losses["sqrt"]
            )
            shares.append(f"{cell.name}: folded closes {100 * share:.0f} % of the gap")
    return Judgement(judged.verdict, "; ".join([judged.value, *shares]))


@dataclass(frozen=True)
class Gap:
    """ln(none / sqrt) by replicate, whether it may be lower or higher, and why."""

    values: Values
    falls: bool
    rises: bool
    remarks: tuple[str, ...]


def _gap(cell: Cell) -> Gap | None:
    none, sqrt = cell.arms["none"], cell.arms["sqrt"]
    pair = at_best(none, sqrt)
    if pair is None:
        return None
    shared = sorted(pair.values_a.keys() & pair.values_b.keys())
    logs = {key: math.log(pair.values_a[key] / pair.values_b[key]) for key in shared}
    return Gap(logs, *doubts(none, sqrt, pair)) if logs else None


def interaction(key: str, base: str, *, smaller: bool) -> Callable[[Results], Judgement]:
    """Return a judge of "the gap depends on a parameter", against one of its values.

    Args:
        key: The parameter.
        base: The value that is compared with.
        smaller: Whether the others must have a smaller gap, or only another one: a difference
            either way says that some value does without a part of the factor.
    """
    says = {"lower": HOLDS, "higher": FAILS if smaller else HOLDS, "equivalent": FAILS}

    def judge(results: Results) -> Judgement:
        by_values = {
            (cell.experiment, *sorted(cell.values.items())): cell
            for cell in cells(results)
            if {"none", "sqrt"} <= cell.arms.keys() and key in cell.values
        }
        with_gap = {cell.name for cell in _with_gap(results)}
        findings = []
        for cell in by_values.values():
            plain = {**cell.values, key: base}
            other = by_values.get((cell.experiment, *sorted(plain.items())))
            if other is None or other is cell or not with_gap & {cell.name, other.name}:
                continue
            a, b = _gap(cell), _gap(other)
            best = other.arms["sqrt"].best()
            margin = None if best is None else other.margin(best)
            if a is None or b is None or best is None:
                continue
            delta = None if margin is None else math.log1p(margin.value / best.mean_loss)
            findings.append(
                Finding(
                    f"{cell.name}, ln(none ÷ sqrt) − that of {key}={base}",
                    compare(a.values, b.values, margin=delta),
                    a.falls or b.rises,
                    a.rises or b.falls,
                    tuple(dict.fromkeys((*a.remarks, *b.remarks))),
                )
            )
        return judgement(family(findings), says, missing=NO_GAP)

    return judge
