"""The answer in a few sentences, computed: which setting is best, by how much, how sure.

Each arm (settings that differ in the learning rate only, or in another knob of training) is
compared at its best with the arm that has ``sqrt`` and is otherwise equal; all those comparisons
together are one family (Holm p values). What a difference is called stands in
``analysis.comparison``. The setting with the lowest mean is named, but nobody is where

    the pairs of equal seeds say otherwise than the means, because seeds are missing, or
    a larger share of its runs was lost than of those that it is compared with.

Where the rates were swept, the comparison at equal rates comes second.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from attnscale.analysis.comparison import LEVEL, compare, more_often, verdict, verdict_in_words
from attnscale.analysis.settings import Grid, Setting, short
from attnscale.analysis.tuning import arms, at_best
from attnscale.report.comparisons import Comparison, compare_arms, compare_settings, partner
from attnscale.tracking.runs import OBJECTIVE

MAX_NAMED = 6
"""Settings that one sentence names."""


@dataclass(frozen=True)
class Answer:
    """What a report says first.

    Attributes:
        sentences: In words.
        best: The setting that is named best, or None.
        comparisons: Every setting against its reference, knobs equal.
        at_best: Every arm against its reference, each at its best; the same where no knob was
            swept.
        headline: The comparison that the first sentences are about, or None.
    """

    sentences: tuple[str, ...]
    best: Setting | None
    comparisons: tuple[Comparison, ...] = field(default=())
    at_best: tuple[Comparison, ...] = field(default=())
    headline: Comparison | None = None


def number(value: float) -> str:
    """Return four significant digits."""
    return f"{value:.4g}"


def _count(n: int, word: str) -> str:
    return f"one {word}" if n == 1 else f"{n} {word}s"


def _basis(comparison: Comparison) -> str:
    """Say what a difference rests on: interval, method, seeds, family."""
    d = comparison.difference
    assert d.interval is not None
    low, high = number(d.interval.low), number(d.interval.high)
    pairs = f"{d.n_a} and {d.n_b} runs" if d.method == "Welch t" else f"{d.n_a} seeds"
    text = f"{100 * LEVEL:.0f} % interval {low} to {high}, {d.method}, {pairs}"
    if comparison.split:
        text += ", the rates chosen on the others"
    if d.family > 1 and d.p_adjusted is not None:
        text += f", Holm p {d.p_adjusted:.2g} of {d.family} comparisons"
    return text


def sentence(comparison: Comparison, best: Setting | None) -> str:
    """Return a comparison in words; they name its setting if that is not the best one."""
    d, margin = comparison.difference, comparison.margin
    subject = f"Against {comparison.reference.label}"
    if comparison.setting is not best:
        subject = f"{comparison.setting.label} against {comparison.reference.label}:"
    if d.interval is None:
        return (
            f"{subject} the difference is {d.value:+.4g}, with one seed: "
            "nothing can be said about chance"
        )
    text = f"{subject} the difference is {d.value:+.4g} ({_basis(comparison)})"
    side = verdict(d)
    if side == "equivalent" and margin is not None:
        return (
            f"{text}: no difference that matters, it is smaller than {number(margin.value)} "
            f"({margin.source})"
        )
    if side == "within noise":
        detectable = d.detectable
        power = "" if detectable is None else f"; only {number(detectable)} or more would show"
        return f"{text}: within noise{power}"
    return f"{text}: {verdict_in_words(d)} than chance explains"


def _named(labels: Sequence[str]) -> str:
    return ", ".join([*labels[:MAX_NAMED], *(["…"] if len(labels) > MAX_NAMED else [])])


def _troubles(grid: Grid) -> list[str]:
    """Say which runs have no result, and which combinations no run."""
    sentences = []
    words = {
        "diverged": ("diverged",) * 2,
        "failed": ("failed",) * 2,
        "killed": ("was killed", "were killed"),
        "running": ("is still running", "are still running"),
    }
    total = len(grid.runs)
    for outcome, (one, several) in words.items():
        counts = {s.label: s.count(outcome) for s in grid.settings if s.count(outcome)}
        if counts:
            where = _named([f"{label} ({n})" for label, n in counts.items()])
            n = sum(counts.values())
            sentences.append(f"{n} of {total} runs {one if n == 1 else several}: {where}.")
    if duplicates := sum(setting.duplicates for setting in grid.settings):
        runs = "run repeats" if duplicates == 1 else "runs repeat"
        sentences.append(
            f"{duplicates} {runs} the setting and seeds of another: each pair of seeds counts "
            "once, with the mean of its runs."
        )
    if grid.missing:
        sentences.append(f"No run for {_named(grid.missing)}.")
    return sentences


def _lost(grid: Grid) -> list[str]:
    """Compare with its reference how many runs each arm lost."""
    parts, every = [], arms(grid.settings)
    for arm in every:
        reference = partner(arm, every)
        if reference is None:
            continue
        (lost, ended), (reference_lost, reference_ended) = (
            (sum(s.lost for s in a.settings), sum(s.ended for s in a.settings))
            for a in (arm, reference)
        )
        if not ended or not reference_ended or not (lost or reference_lost):
            continue
        p = more_often(lost, ended, reference_lost, reference_ended)
        parts.append(
            f"{arm.label} {lost} of {ended} against {reference_lost} of {reference_ended} "
            f"(exact test, p = {p:.2g})"
        )
    if not parts:
        return []
    return [f"Without a result, each against its own sqrt: {'; '.join(parts[:MAX_NAMED])}."]


def _ends(comparison: Comparison, grid: Grid) -> list[str]:
    """Say where a best value of a knob is at the end of its grid."""
    sentences = []
    for setting in (comparison.setting, comparison.reference):
        arm = next((a for a in arms(grid.settings) if setting in a.settings), None)
        ends = [] if arm is None else arm.ends(setting)
        if arm is not None and ends:
            values = ", ".join(f"{short(key)}={setting.values[key]}" for key in ends)
            sentences.append(
                f"The best of {arm.label} is at the end of what was tried ({values}): its optimum "
                "may lie outside."
            )
    return sentences


def _equal_knobs(comparisons: Sequence[Comparison]) -> list[str]:
    words: dict[str, list[str]] = {}
    for c in comparisons:
        words.setdefault(verdict_in_words(c.difference), []).append(
            f"{c.setting.label} ({c.difference.value:+.3g})"
        )
    listed = "; ".join(f"{word}: {_named(labels)}" for word, labels in words.items())
    return [f"At equal rates, each against its own sqrt: {listed}."] if listed else []


def _others(comparisons: Sequence[Comparison], headline: Comparison | None) -> list[str]:
    """Name the comparisons that the first sentences are not about, by their verdict."""
    others = [c for c in comparisons if c is not headline]
    sentences = []
    clear = [c for c in others if c.difference.better is not None]
    if clear:
        listed = [
            f"{c.setting.label} {verdict_in_words(c.difference)} ({c.difference.value:+.3g})"
            for c in clear
        ]
        sentences.append(f"Also beyond noise, each against its own sqrt: {_named(listed)}.")
    for side, words in (
        ("equivalent", "No difference that matters to their own sqrt"),
        ("within noise", "Within noise of their own sqrt"),
    ):
        labels = [c.setting.label for c in others if verdict(c.difference) == side]
        if labels:
            sentences.append(f"{words}: {_named(labels)}.")
    return sentences


def _lowest(settings: Sequence[Setting]) -> Setting:
    """Return the setting with the lowest mean, over the replicates of all where they share most."""
    common = set.intersection(*(set(s.losses) for s in settings))
    if 2 * len(common) < min(len(s.losses) for s in settings):
        return min(settings, key=lambda setting: setting.mean_loss)
    return min(settings, key=lambda s: sum(s.losses[key] for key in common))


def _headline(
    lowest: Setting, bests: Sequence[Setting], comparisons: Sequence[Comparison]
) -> Comparison:
    """Return the comparison of the lowest with its reference, or with its nearest rival."""
    own = next((c for c in comparisons if c.setting is lowest), None)
    if own is not None:
        return own
    rivals = [c for c in comparisons if c.reference is lowest]
    if rivals:
        return min(rivals, key=lambda c: c.difference.value)
    rival = min((s for s in bests if s is not lowest), key=lambda setting: setting.mean_loss)
    return Comparison(lowest, rival, compare(lowest.losses, rival.losses))


def _objection(lowest: Setting, headline: Comparison) -> str | None:
    """Return why the setting with the lowest mean is not named best, or None."""
    d = headline.difference
    other = headline.reference if headline.setting is lowest else headline.setting
    value = d.value if headline.setting is lowest else -d.value
    if d.opposed or value > 0:
        over_all = sorted((lowest, other), key=lambda s: s.mean_loss)
        return (
            f"{over_all[0].label} has the lower mean over all its runs "
            f"({number(over_all[0].mean_loss)} against {number(over_all[1].mean_loss)} of "
            f"{over_all[1].label}), and not over the {d.n_a} seeds that both have"
        )
    if lowest.share_lost > other.share_lost:
        return (
            f"{lowest.label} has the lowest mean of the best validation loss, "
            f"{number(lowest.mean_loss)}, over the runs that it finished, but lost "
            f"{lowest.lost} of {lowest.ended}, against {other.lost} of {other.ended} of "
            f"{other.label}"
        )
    return None


def make_answer(grid: Grid) -> Answer:
    """Return the answer for a set of runs, also for one that is empty or half finished."""
    troubles = [*_troubles(grid), *_lost(grid)]
    chosen = [best for arm in arms(grid.settings) if (best := arm.best()) is not None]
    if not chosen:
        first = "No run has finished, so there is nothing to compare yet."
        return Answer((first if grid.settings else "There is no run here.", *troubles), None)
    if len(chosen) == 1 and len([s for s in grid.settings if s.losses]) == 1:
        only = chosen[0]
        text = f"Only {only.label} has results: best validation loss {number(only.mean_loss)} "
        return Answer((f"{text}({_count(len(only.losses), 'seed')}).", *troubles), only)
    # Where only a knob was swept, its values are what is compared.
    bests = chosen if len(chosen) > 1 else [s for s in grid.settings if s.losses]
    comparisons, at_bests = compare_settings(grid), compare_arms(grid)
    lowest = _lowest(bests)
    headline = _headline(lowest, bests, at_bests)
    objection = _objection(lowest, headline)
    best = lowest if objection is None else None
    estimate = lowest.estimate(OBJECTIVE)
    spread = "" if estimate is None or estimate.std is None else f" ± {estimate.std:.2g}"
    sentences = [
        f"Nobody is named best: {objection}."
        if objection is not None
        else f"Lowest mean of the best validation loss: {lowest.label}, "
        f"{number(lowest.mean_loss)}{spread} ({_count(len(lowest.losses), 'seed')}).",
        f"{sentence(headline, best)}.",
        *_ends(headline, grid),
        *_others(at_bests, headline),
    ]
    if len(chosen) > 1 and any(len(arm.settings) > 1 for arm in arms(grid.settings)):
        sentences += _equal_knobs(comparisons)
        sentences += _not_claimed(grid)
    return Answer((*sentences, *troubles), best, tuple(comparisons), tuple(at_bests), headline)


def _not_claimed(grid: Grid) -> list[str]:
    """Name the arms whose values of the knobs are not those of their reference, and too few."""
    every = arms(grid.settings)
    labels = [
        arm.label
        for arm in every
        if (reference := partner(arm, every)) is not None
        and arm.best() is not None
        and reference.best() is not None
        and at_best(arm, reference) is None
    ]
    if not labels:
        return []
    return [
        f"Nothing is claimed of {_named(labels)} at the best rates: other rates were tried than of "
        "sqrt, and the common seeds are too few to choose on one half and compare on the other."
    ]
