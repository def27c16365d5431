"""The answer in a few sentences, computed: which setting is best, by how much, how sure.

Each setting is compared with the one that differs in ``attention.scale`` only and has ``sqrt``; all
those comparisons together are one family (Bonferroni intervals, Holm p values). A difference whose
interval holds 0 is noise and is called so. With one seed there is no interval, and none is made up.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from attnscale.analysis.comparison import (
    Difference,
    compare,
    compare_family,
    verdict,
    verdict_in_words,
)
from attnscale.analysis.settings import SCALE, Grid, Setting

LEVEL = 0.95


@dataclass(frozen=True)
class Comparison:
    """One setting against its reference."""

    setting: Setting
    reference: Setting
    difference: Difference


@dataclass(frozen=True)
class Answer:
    """What a report says first.

    Attributes:
        sentences: In words.
        best: The best setting, or None if no setting has a result.
        comparisons: Every setting against its reference.
        headline: The comparison that the first sentence is about, or None.
    """

    sentences: tuple[str, ...]
    best: Setting | None
    comparisons: tuple[Comparison, ...] = ()
    headline: Comparison | None = None


def reference_of(setting: Setting, grid: Grid) -> Setting | None:
    """Return the setting that has ``sqrt`` and is otherwise equal, or None."""
    if SCALE not in setting.values:
        return None
    values = {**setting.values, SCALE: "sqrt"}
    return next((s for s in grid.settings if s.values == values and s is not setting), None)


def compare_settings(grid: Grid) -> list[Comparison]:
    """Compare every sound setting with its reference, all as one family."""
    pairs = [
        (setting, reference)
        for setting in grid.settings
        if (reference := reference_of(setting, grid)) is not None
        and setting.sound
        and reference.sound
    ]
    differences = compare_family([(a.losses, b.losses) for a, b in pairs], LEVEL)
    return [
        Comparison(setting, reference, difference)
        for (setting, reference), difference in zip(pairs, differences, strict=True)
    ]


def sentence(comparison: Comparison, family: int, best: Setting) -> str:
    """Return a comparison in words; they name its setting if that is not the best one."""
    d = comparison.difference
    subject = f"Against {comparison.reference.label}"
    if comparison.setting is not best:
        subject = f"{comparison.setting.label} against {comparison.reference.label}:"
    if d.interval is None:
        return (
            f"{subject} the difference is {d.value:+.4g}, with one seed: "
            "nothing can be said about chance"
        )
    many = f", corrected for {family} comparisons" if family > 1 else ""
    pairs = f"{d.n_a} and {d.n_b} runs" if d.method == "Welch t" else f"{d.n_a} seeds"
    text = (
        f"{subject} the difference is {d.value:+.4g} "
        f"({100 * LEVEL:.0f} % interval {d.interval.low:.4g} to {d.interval.high:.4g}, "
        f"{d.method}, {pairs}{many})"
    )
    word = verdict_in_words(d)
    return f"{text}: {word}" if d.better is None else f"{text}: {word} than chance explains"


def _troubles(grid: Grid) -> list[str]:
    sentences = []
    words = {
        "diverged": ("diverged and cannot be best",) * 2,
        "failed": ("failed",) * 2,
        "killed": ("was killed", "were killed"),
        "running": ("is still running", "are still running"),
    }
    total = len(grid.runs)
    for outcome, (one, several) in words.items():
        counts = [(s.label, s.count(outcome)) for s in grid.settings if s.count(outcome)]
        if counts:
            where = ", ".join(f"{label} ({n})" for label, n in counts[:6])
            more = ", …" if len(counts) > 6 else ""
            n = sum(count for _, count in counts)
            sentences.append(f"{n} of {total} runs {one if n == 1 else several}: {where}{more}.")
    if grid.missing:
        more = ", …" if len(grid.missing) > 6 else ""
        sentences.append(f"No run for {', '.join(grid.missing[:6])}{more}.")
    return sentences


def make_answer(grid: Grid) -> Answer:
    """Return the answer for a set of runs, also for one that is empty or half finished."""
    troubles = _troubles(grid)
    sound = [setting for setting in grid.settings if setting.sound]
    if not sound:
        first = "No run has finished, so there is nothing to compare yet."
        if not grid.settings:
            first = "There is no run here."
        elif any(setting.losses for setting in grid.settings):
            first = "Every setting with a result has a diverged run too: none can be called best."
        return Answer((first, *troubles), None)
    best = min(sound, key=lambda setting: setting.mean_loss)
    seeds = len(best.losses)
    counted = "one seed" if seeds == 1 else f"{seeds} seeds"
    if len(sound) == 1:
        others = sum(1 for setting in grid.settings if setting.losses) > 1
        what = "results and no diverged run" if others else "results"
        text = f"Only {best.label} has {what}: best validation loss {best.mean_loss:.4g} "
        return Answer((f"{text}({counted}).", *troubles), best)
    comparisons = compare_settings(grid)
    headline = next((c for c in comparisons if c.setting is best), None)
    estimate = best.estimate("val/best_loss")
    spread = "" if estimate is None or estimate.std is None else f" ± {estimate.std:.2g}"
    sentences = [
        f"Lowest mean of the best validation loss: {best.label}, {best.mean_loss:.4g}{spread} "
        f"({counted})."
    ]
    family = sum(1 for c in comparisons if c.difference.interval is not None)
    if headline is None:
        headline = _second_best(best, sound, comparisons)
    if headline is not None:
        compared = family if headline in comparisons else 1
        sentences.append(f"{sentence(headline, compared, best)}.")
    clear = [c for c in comparisons if c.difference.better is not None and c is not headline]
    if clear:
        listed = "; ".join(
            f"{c.setting.label} {verdict_in_words(c.difference)} ({c.difference.value:+.3g})"
            for c in clear[:6]
        )
        sentences.append(f"Also beyond noise, each against its own sqrt: {listed}.")
    noisy = [
        c for c in comparisons if verdict(c.difference) == "within noise" and c is not headline
    ]
    if noisy:
        sentences.append(
            f"Within noise of their own sqrt: {', '.join(c.setting.label for c in noisy[:8])}."
        )
    return Answer((*sentences, *troubles), best, tuple(comparisons), headline)


def _second_best(
    best: Setting, sound: Sequence[Setting], comparisons: Sequence[Comparison]
) -> Comparison | None:
    """Return the best setting's comparison with the nearest rival, where it is its own reference.

    A rival that was compared with it already keeps that comparison.
    """
    rivals = [c for c in comparisons if c.reference is best]
    if rivals:
        return min(rivals, key=lambda c: c.setting.mean_loss)
    others = [setting for setting in sound if setting is not best]
    rival = min(others, key=lambda setting: setting.mean_loss)
    return Comparison(best, rival, compare(best.losses, rival.losses, LEVEL))
