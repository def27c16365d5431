"""Settings whose learning rate (or another knob of training) was swept: each at its best.

An arm is what is compared, at every value of the knobs that were swept with it; its best setting is
the one with the lowest mean loss, among those that lost the smallest share of their runs. What may
be said of two arms at their best depends on their grids.

    equal grids      both were chosen from the same values: best mean against best mean
    unequal grids    an arm with more values has more chances: the values are chosen on every second
                     replicate, and compared on the others; with fewer than two of either, nothing
                     is claimed. (Choosing on all but one in turn has an error well above 5 %.)

A best value at the end of a grid of two or more is marked: the true best may lie outside.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from attnscale.analysis.comparison import Values
from attnscale.analysis.settings import Replicate, Setting, is_number, labelled

KNOBS = ("optimizer.lr", "optimizer.weight_decay", "optimizer.momentum", "optimizer.warmup_steps")
"""Parameters that are tuned for each arm instead of being compared."""

MIN_HALF = 2
"""Replicates of a half that choose, and that are compared."""


@dataclass(frozen=True)
class Arm:
    """Settings that differ in the knobs only.

    Attributes:
        values: Key to text, without the knobs.
        settings: One for each combination of the knobs' values that was run, in their order.
    """

    values: dict[str, str]
    settings: tuple[Setting, ...]

    @property
    def label(self) -> str:
        """A short name such as ``scale=none d_k=64``."""
        return labelled(self.values) or "all runs"

    @property
    def knobs(self) -> tuple[str, ...]:
        """The knobs that its settings differ in, or that others of the sweep do."""
        return tuple(key for key in self.settings[0].values if key not in self.values)

    @property
    def grid(self) -> frozenset[tuple[str, ...]]:
        """The combinations of the knobs' values that were run."""
        return frozenset(tuple(s.values[key] for key in self.knobs) for s in self.settings)

    @property
    def lost(self) -> int:
        """How many replicates were lost, at all values of the knobs."""
        return sum(setting.lost for setting in self.settings)

    @property
    def ended(self) -> int:
        """How many replicates came to an end of their own, at all values of the knobs."""
        return sum(setting.ended for setting in self.settings)

    @cached_property
    def candidates(self) -> tuple[Setting, ...]:
        """The settings that have results and lost the smallest share of their runs."""
        results = [s for s in self.settings if s.losses]
        least = min((s.share_lost for s in results), default=0.0)
        return tuple(s for s in results if s.share_lost == least)

    def best(self, replicates: Sequence[Replicate] | None = None) -> Setting | None:
        """Return the setting with the lowest mean loss, or None if none has a result.

        Args:
            replicates: Choose by these only; None for all.
        """

        def loss(setting: Setting) -> float:
            if replicates is None:
                return setting.mean_loss
            return sum(setting.losses.get(key, math.inf) for key in replicates)

        return min(self.candidates, key=loss, default=None)

    def ends(self, setting: Setting) -> list[str]:
        """Return the knobs whose value in a setting is the least or the largest of several."""
        ends = []
        for key in self.knobs:
            texts = {s.values[key] for s in self.settings}
            values = sorted(float(text) for text in texts if is_number(text))
            text = setting.values[key]
            if len(values) > 1 and is_number(text) and float(text) in (values[0], values[-1]):
                ends.append(key)
        return ends


def arms(settings: Sequence[Setting]) -> list[Arm]:
    """Group settings into arms, in their order."""
    groups: dict[tuple[tuple[str, str], ...], list[Setting]] = {}
    for setting in settings:
        key = tuple((k, v) for k, v in setting.values.items() if k not in KNOBS)
        groups.setdefault(key, []).append(setting)
    return [Arm(dict(key), tuple(alike)) for key, alike in groups.items()]


@dataclass(frozen=True)
class AtBest:
    """Two arms, each at its best.

    Attributes:
        a: Best setting of one arm.
        b: Best setting of the other.
        values_a: Losses that may be compared, by replicate.
        values_b: The same of the other.
        split: Whether the values were chosen on one half of the replicates and these are the
            others.
    """

    a: Setting
    b: Setting
    values_a: Values
    values_b: Values
    split: bool


def at_best(a: Arm, b: Arm) -> AtBest | None:
    """Return two arms at their best values, or None where nothing can be claimed."""
    best_a, best_b = a.best(), b.best()
    if best_a is None or best_b is None:
        return None
    if a.grid == b.grid:
        return AtBest(best_a, best_b, best_a.losses, best_b.losses, split=False)
    common = sorted(set.intersection(*(set(s.losses) for s in (*a.candidates, *b.candidates))))
    choosing, compared = common[::2], common[1::2]
    if len(compared) < MIN_HALF:
        return None
    chosen_a, chosen_b = a.best(choosing), b.best(choosing)
    assert chosen_a is not None
    assert chosen_b is not None
    values_a, values_b = ({key: s.losses[key] for key in compared} for s in (chosen_a, chosen_b))
    return AtBest(chosen_a, chosen_b, values_a, values_b, split=True)
