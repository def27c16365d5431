"""Comparisons in words."""

import math
from collections.abc import Mapping, Sequence

from attnscale.analysis.comparison import (
    LEVEL,
    POWER,
    as_family,
    compare,
    holm,
    more_often,
    verdict,
    verdict_in_words,
)
from attnscale.analysis.progress import log_steps
from attnscale.analysis.settings import Grid, Setting, short
from attnscale.analysis.tuning import Arm
from attnscale.report.comparisons import Comparison, partner

SPEED_SHARE = 0.9
"""Of what the reference improves by; the steps to there are told."""

Together = Mapping[str, Sequence[str]]
NOTHING: Together = {}

MAX_NAMED = 6
"""Settings that one sentence names."""

OUTCOMES = {
    "diverged": ("diverged", "diverged"),
    "failed": ("failed", "failed"),
    "killed": ("was killed", "were killed"),
    "running": ("is still running", "are still running"),
}
"""Outcome without a result -> what one run, and what several did."""


def number(value: float) -> str:
    """Return four significant digits."""
    return f"{value:.4g}"


def seeds(n: int) -> str:
    """Return a number of replicates in words."""
    return "one seed" if n == 1 else f"{n} seeds"


def named(labels: Sequence[str]) -> str:
    """Return a list in words, cut where it is long."""
    return ", ".join([*labels[:MAX_NAMED], *(["…"] if len(labels) > MAX_NAMED else [])])


def _basis(comparison: Comparison) -> str:
    """Say what a difference rests on: interval, method, seeds, family."""
    d = comparison.difference
    assert d.interval is not None
    low, high = number(d.interval.low), number(d.interval.high)
    replicates = f"{d.n_a} and {d.n_b} seeds" if d.method == "Welch t" else seeds(d.n_a)
    text = f"{100 * LEVEL:.0f} % interval {low} to {high}, {d.method}, {replicates}"
    if d.left_out:
        text += f" and {d.left_out} without a partner"
    if comparison.split:
        text += ", the best chosen on others"
    if d.family > 1 and d.p_adjusted is not None:
        text += f", Holm p {d.p_adjusted:.2g} of {d.family} comparisons"
    return text


def confounded(comparison: Comparison, together: Together) -> str:
    """Return, in brackets, what changes with a key that the two settings differ in; or nothing."""
    # Runs of a setting have these parameters in common.
    values, others = (s.runs[0].parameters for s in (comparison.setting, comparison.reference))
    texts = [
        f"{short(key)} together with {named(changed)}"
        for key, names in together.items()
        if values.get(key) != others.get(key)
        and (changed := [name for name in names if values.get(name) != others.get(name)])
    ]
    return f" ({', '.join(texts)})" if texts else ""


def comparison_sentence(
    comparison: Comparison, best: Setting | None, together: Together = NOTHING
) -> str:
    """Return a comparison in words; they name its setting if that is not the best one.

    Args:
        comparison: What is compared.
        best: The setting that is named best, or None.
        together: Key -> other parameters that change whenever it does.
    """
    d, margin = comparison.difference, comparison.margin
    subject = f"Against {comparison.reference.label}"
    if comparison.setting is not best:
        subject = f"{comparison.setting.label} against {comparison.reference.label}:"
    subject += f" the difference{confounded(comparison, together)} is"
    if d.interval is None:
        return f"{subject} {d.value:+.4g}, with one seed: nothing can be said about chance."
    text = f"{subject} {d.value:+.4g} ({_basis(comparison)})"
    side = verdict(d)
    if side == "equivalent" and margin is not None:
        return (
            f"{text}: no difference that matters, it is smaller than {number(margin.value)} "
            f"({margin.source})."
        )
    if side == "within noise":
        if not d.detectable:
            return f"{text}: within noise."
        power = f"a difference of {number(d.detectable)} would be found in {100 * POWER:.0f} %"
        return f"{text}: within noise; {power} of such sweeps."
    return f"{text}: {verdict_in_words(d)} than chance explains."


def ends_sentences(tuned: Sequence[Arm]) -> list[str]:
    """Say where the best value of a knob is at the end of its grid."""
    sentences = []
    for arm in tuned:
        best = arm.best()
        ends = [] if best is None else [f"{short(k)}={best.values[k]}" for k in arm.ends(best)]
        if ends:
            sentences.append(
                f"The best of {arm.label} is at the end of what was tried ({', '.join(ends)}): its "
                "optimum may lie outside."
            )
    return sentences


def others_sentences(
    comparisons: Sequence[Comparison], headline: Comparison | None, together: Together = NOTHING
) -> list[str]:
    """Name the comparisons that the first sentences are not about, by their verdict."""
    others = [c for c in comparisons if c is not headline]
    clear = [
        f"{c.setting.label}{confounded(c, together)} {verdict_in_words(c.difference)} "
        f"({c.difference.value:+.3g})"
        for c in others
        if c.difference.better is not None
    ]
    also = headline is not None and headline.difference.better is not None
    lists = {("Also beyond" if also else "Beyond") + " noise, each against its own sqrt": clear}
    for side, words in (
        ("equivalent", "No difference that matters to their own sqrt"),
        ("within noise", "Within noise of their own sqrt"),
    ):
        lists[words] = [
            f"{c.setting.label}{confounded(c, together)}"
            for c in others
            if verdict(c.difference) == side
        ]
    return [f"{words}: {named(labels)}." for words, labels in lists.items() if labels]


def speed_sentences(comparisons: Sequence[Comparison]) -> list[str]:
    """Name who needs more or fewer steps than its own sqrt, beyond chance."""
    steps = [(c, *log_steps(c.setting.runs, c.reference.runs, SPEED_SHARE)) for c in comparisons]
    timed = [(c, logs, others, missed) for c, logs, others, missed in steps if logs]
    differences = as_family([compare(logs, others) for _, logs, others, _ in timed])
    labels = []
    for (c, _, _, missed), d in zip(timed, differences, strict=True):
        if d.better is not None and d.interval is not None:
            ratio, low, high = (math.exp(x) for x in (d.value, d.interval.low, d.interval.high))
            bound = "at least " if missed else ""
            labels.append(f"{c.setting.label} {bound}{ratio:.2f} times ({low:.2f} to {high:.2f})")
    if not labels:
        return []
    share = f"{100 * SPEED_SHARE:.0f} %"
    return [f"Steps to {share} of what sqrt improves by, ÷ those of sqrt: {named(labels)}."]


def equal_knobs_sentences(comparisons: Sequence[Comparison], knobs: Sequence[str]) -> list[str]:
    """Name the comparisons at equal values of the knobs, by their verdict."""
    by_verdict: dict[str, list[str]] = {}
    for c in comparisons:
        label = f"{c.setting.label} ({c.difference.value:+.3g})"
        by_verdict.setdefault(verdict_in_words(c.difference), []).append(label)
    listed = "; ".join(f"{word}: {named(labels)}" for word, labels in by_verdict.items())
    names = " and ".join(map(short, knobs))
    return [f"At equal {names}, each against its own sqrt: {listed}."] if listed else []


def unclaimed_sentences(pairs: Sequence[tuple[Arm, Arm]]) -> list[str]:
    """Name the pairs of arms that could not be compared at their best."""
    labels = list(dict.fromkeys(f"{arm.label} against {other.label}" for arm, other in pairs))
    if not labels:
        return []
    return [
        f"At their best nothing is claimed of {named(labels)}: not the same values were tried, and "
        "the common seeds are too few to choose on one half and compare on the other."
    ]


def lost_sentences(every: Sequence[Arm]) -> list[str]:
    """Compare with its reference how many replicates each arm lost; Holm's p of all arms."""
    counts = {
        arm.label: (arm.lost, arm.ended, other.lost, other.ended)
        for arm in every
        if (other := partner(arm, every)) is not None
        and arm.ended
        and other.ended
        and arm.lost + other.lost
    }
    p_values = holm([more_often(*count) for count in counts.values()])
    parts = [
        f"{label} {lost} of {ended} against {other_lost} of {other_ended} (p = {p:.2g})"
        for (label, (lost, ended, other_lost, other_ended)), p in zip(
            counts.items(), p_values, strict=True
        )
    ]
    words = "Without a result, each against its own sqrt (Fisher's exact test)"
    return [f"{words}: {named(parts)}."] if parts else []


def missing_sentences(grid: Grid) -> list[str]:
    """Say which runs have no result, which repeat another, and which combinations no run."""
    sentences = []
    total = len(grid.runs)
    for outcome, (one, several) in OUTCOMES.items():
        counts = {s.label: n for s in grid.settings if (n := s.count(outcome))}
        if counts:
            where = named([f"{label} ({n})" for label, n in counts.items()])
            n = sum(counts.values())
            sentences.append(f"{n} of {total} runs {one if n == 1 else several}: {where}.")
    if duplicates := sum(setting.duplicates for setting in grid.settings):
        runs = "run repeats" if duplicates == 1 else "runs repeat"
        sentences.append(
            f"{duplicates} {runs} the setting and seeds of another: each pair of seeds counts "
            "once, with the mean of its runs."
        )
    if grid.missing:
        sentences.append(f"No run for {named(grid.missing)}.")
    return sentences
