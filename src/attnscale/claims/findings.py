"""What sweeps say: arms of one cell, each at its best, compared as one family.

A cell has the arms that differ in their scale only; an arm has a setting for every learning rate
that was swept. All comparisons of a judge are one family (Holm), with the margin δ of their cell;
that all are equivalent needs no correction.

What a comparison a − b may say is bounded by what is not known of it:

    the best rate is an end of its grid, or the only one    the true best is as good or better
    runs diverged or failed                                 the mean is of the better ones

So a − b may be lower than measured where a's optimum is an end or b lost runs, and higher where b's
is or a lost some. "Higher" is a finding only where it cannot be lower, "lower" only where it cannot
be higher, "equivalent" where it can be neither.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from attnscale.analysis.comparison import (
    LEVEL,
    Difference,
    as_family,
    compare,
    in_words,
    more_often,
    verdict,
)
from attnscale.analysis.margin import CONTROL, Margin, make_margin
from attnscale.analysis.rates import Results
from attnscale.analysis.settings import D_K, SCALE, Setting, is_number, labelled, make_grid
from attnscale.analysis.tuning import Arm, AtBest, arms, at_best
from attnscale.claims.judgement import OPEN, Judgement, together
from attnscale.tracking.runs import OBJECTIVE

NO_ATTENTION = 1e-20
"""``attention.scale`` of the arm without attention: all logits are 0 and all weights 1/n."""


@dataclass(frozen=True)
class Cell:
    """Arms of one experiment that differ in their scale only.

    Attributes:
        experiment: The experiment.
        values: What else varies in it, dotted key to text.
        arms: Scale to its arm.
    """

    experiment: str
    values: dict[str, str]
    arms: dict[str, Arm]

    @property
    def name(self) -> str:
        """The experiment and the values, in words."""
        return f"{self.experiment} {labelled(self.values)}".strip()

    @property
    def d_k(self) -> int:
        """Size of a query or key."""
        return next(iter(self.arms.values())).settings[0].runs[0].d_k

    @property
    def factors(self) -> dict[str, Arm]:
        """The arms of a constant factor, without that of :data:`NO_ATTENTION`."""
        numbers = {s: arm for s, arm in self.arms.items() if is_number(s)}
        return {s: arm for s, arm in numbers.items() if float(s) != NO_ATTENTION}

    @property
    def without_attention(self) -> Arm | None:
        """The arm whose scale is :data:`NO_ATTENTION`."""
        scales = (s for s in self.arms if is_number(s) and float(s) == NO_ATTENTION)
        return next((self.arms[scale] for scale in scales), None)

    def margin(self, reference: Setting, metric: str = OBJECTIVE) -> Margin | None:
        """Return δ of comparisons with a setting.

        Beside sqrt, by name or by number, ``none_equiv`` at the same rate says what rounding does.
        """
        scale = reference.runs[0].scale
        number = float(scale) if is_number(scale) else math.nan
        is_sqrt = scale == "sqrt" or math.isclose(number, reference.runs[0].d_k ** -0.5)
        control = self.arms.get(CONTROL) if is_sqrt else None
        alike = None if control is None else setting_at(control, reference)
        losses = None if alike is None else alike.by_replicate(metric)
        return make_margin(reference.by_replicate(metric), reference.runs[0].parameters, losses)


def setting_at(arm: Arm, other: Setting) -> Setting | None:
    """Return the setting of an arm whose knobs are those of another arm's, or None."""
    knob_values = {key: other.values.get(key) for key in arm.knobs}
    return next(
        (s for s in arm.settings if {key: s.values[key] for key in arm.knobs} == knob_values), None
    )


def cells(results: Results) -> list[Cell]:
    """Return the cells of every experiment."""
    every = []
    for name, runs in results.items():
        groups: dict[tuple[tuple[str, str], ...], dict[str, Arm]] = {}
        sized = len({run.d_k for run in runs}) > 1
        for arm in arms(make_grid(runs).settings):
            run = arm.settings[0].runs[0]
            # Where each scale has its own d_k, the scale alone tells settings apart.
            values = {**({D_K: str(run.d_k)} if sized else {}), **arm.values}
            rest = tuple((key, text) for key, text in values.items() if key != SCALE)
            groups.setdefault(rest, {})[run.scale] = arm
        every += [Cell(name, dict(rest), group) for rest, group in groups.items()]
    return every


def at_end(arm: Arm, best: Setting) -> bool:
    """Whether a best setting is an end of its grid; one of a single rate is."""
    return len({setting.runs[0].lr for setting in arm.settings}) < 2 or bool(arm.ends(best))


@dataclass(frozen=True)
class Finding:
    """A comparison a − b with what bounds it.

    Attributes:
        label: What is compared, in words.
        difference: a − b, or None where a has no result at all and b lost none of its runs.
        falls: Whether the true difference may be lower.
        rises: Whether it may be higher.
        remarks: Why, and what else must be known.
    """

    label: str
    difference: Difference | None
    falls: bool = False
    rises: bool = False
    remarks: tuple[str, ...] = ()

    @property
    def side(self) -> str:
        """What is certain: "lower", "higher" or "equivalent"; else "open"."""
        if self.difference is None:
            return "higher"
        side = verdict(self.difference)
        unsure = {"lower": self.rises, "higher": self.falls}.get(side, self.falls or self.rises)
        return OPEN if unsure or side in ("within noise", "one seed") else side

    def __str__(self) -> str:
        """Difference, interval, and what it is."""
        if self.difference is None:
            return f"{self.label}: every run lost"
        side = verdict(self.difference)
        said = "no difference that matters" if side == "equivalent" else side
        return f"{self.label} {in_words(self.difference)}, {said}"


def doubts(a: Arm, b: Arm, pair: AtBest) -> tuple[bool, bool, tuple[str, ...]]:
    """Return whether a − b may be lower, whether it may be higher, and why."""
    remarks = []
    for arm, best in ((a, pair.a), (b, pair.b)):
        scale = best.runs[0].scale
        if at_end(arm, best):
            remarks.append(f"best rate of {scale} ({best.runs[0].lr:g}) at an end of its grid")
        if best.lost:
            remarks.append(f"{scale} lost {best.lost} of {best.ended} runs")
    falls = at_end(a, pair.a) or pair.b.lost > 0
    rises = at_end(b, pair.b) or pair.a.lost > 0
    return falls, rises, tuple(remarks)


def compare_best(
    pairs: Iterable[tuple[str, Arm, Arm, Cell]], metric: str = OBJECTIVE
) -> list[Finding]:
    """Compare arms, each at its best rate, all as one family.

    Args:
        pairs: Label, arm a, arm b, and the cell whose margin counts. Pairs that cannot be compared
            are left out, except where a lost all its runs, significantly more often than b.
        metric: What is compared; the rates are chosen by the best validation loss.
    """
    findings = []
    for label, a, b, cell in pairs:
        pair = at_best(a, b)
        if pair is not None:
            values = [
                {key: x for key, x in setting.by_replicate(metric).items() if key in compared}
                for setting, compared in ((pair.a, pair.values_a), (pair.b, pair.values_b))
            ]
            if all(values):
                margin = cell.margin(pair.b, metric)
                delta = None if margin is None else margin.value
                difference = compare(values[0], values[1], margin=delta)
                findings.append(Finding(label, difference, *doubts(a, b, pair)))
        elif a.best() is None:
            lost, ended = zip(*((_lost(arm), _ended(arm)) for arm in (a, b)), strict=True)
            if more_often(lost[0], ended[0], lost[1], ended[1]) < 1 - LEVEL:
                findings.append(Finding(label, None))
    return family(findings)


def family(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings whose p values count how many were made together."""
    tested = as_family([f.difference for f in findings if f.difference is not None])
    differences = iter(tested)
    return [
        f if f.difference is None else replace(f, difference=next(differences)) for f in findings
    ]


def judgement(
    findings: Sequence[Finding], says: Mapping[str, str], *, missing: str, lead: str = ""
) -> Judgement:
    """Return what findings say of a claim.

    Args:
        findings: All of one judge.
        says: Side to what it means for the claim; other sides leave it open.
        missing: What the sweep lacks, if there is no finding.
        lead: What the figures are.
    """
    if not findings:
        return Judgement(OPEN, missing)
    verdicts = [says.get(finding.side, OPEN) for finding in findings]
    parts = []
    # Findings of one pair of arms follow each other, and share their remarks.
    for remarks, alike in groupby(findings, key=lambda finding: finding.remarks):
        parts += [*map(str, alike), *remarks]
    return Judgement(together(verdicts), lead + "; ".join(parts))


def against(
    reference: str, says: Mapping[str, str], scales: Callable[[Cell], Iterable[str]]
) -> Callable[[Results], Judgement]:
    """Return a judge of a claim about scales beside a reference, each at its best rate.

    Args:
        reference: The scale that is compared with.
        says: What "lower", "higher" and "equivalent" mean for the claim.
        scales: The scales of a cell that the claim is about.
    """

    def judge(results: Results) -> Judgement:
        pairs = [
            (f"{cell.name}, {scale} − {reference}", cell.arms[scale], cell.arms[reference], cell)
            for cell in cells(results)
            if reference in cell.arms
            for scale in scales(cell)
        ]
        lacking = f"missing: arms to compare with {reference}"
        return judgement(compare_best(pairs), says, missing=lacking, lead="best validation loss, ")

    return judge


def _lost(arm: Arm) -> int:
    return sum(setting.lost for setting in arm.settings)


def _ended(arm: Arm) -> int:
    return sum(setting.ended for setting in arm.settings)
