"""What is compared: each setting, or each arm at its best, with the one that has ``sqrt``.

All comparisons of one kind are one family; ``sqrt`` is compared with also where it lost runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from attnscale.analysis.comparison import Difference, as_family, compare
from attnscale.analysis.margin import CONTROL, Margin, make_margin
from attnscale.analysis.progress import Speed, speeds
from attnscale.analysis.settings import SCALE, Grid, Setting
from attnscale.analysis.tuning import Arm, AtBest, at_best

Item = TypeVar("Item", Setting, Arm)


@dataclass(frozen=True)
class Comparison:
    """One setting against its reference.

    Attributes:
        setting: The setting.
        reference: What it is compared with.
        difference: Of the best validation losses, setting − reference.
        margin: What does not matter, or None.
        split: Whether the rates were chosen on other replicates than these.
    """

    setting: Setting
    reference: Setting
    difference: Difference
    margin: Margin | None = None
    split: bool = False

    @property
    def speeds(self) -> list[Speed]:
        """Steps to shares of the reference's improvement."""
        return speeds(self.setting.runs, self.reference.runs)


def partner(item: Item, items: Sequence[Item], scale: str = "sqrt") -> Item | None:
    """Return the one that has another scale and is otherwise equal, or None."""
    if SCALE not in item.values:
        return None
    values = {**item.values, SCALE: scale}
    return next((other for other in items if other.values == values and other is not item), None)


def reference_of(setting: Setting, grid: Grid) -> Setting | None:
    """Return the setting that has ``sqrt`` and is otherwise equal, or None."""
    return partner(setting, grid.settings)


def _margin(reference: Setting, grid: Grid) -> Margin | None:
    control = partner(reference, grid.settings, CONTROL)
    losses = None if control is None else control.losses
    return make_margin(reference.losses, reference.runs[0].parameters, losses)


def _as_family(comparisons: Sequence[Comparison]) -> list[Comparison]:
    differences = as_family([c.difference for c in comparisons])
    return [replace(c, difference=d) for c, d in zip(comparisons, differences, strict=True)]


def _compared(pair: AtBest, grid: Grid) -> Comparison:
    margin = _margin(pair.b, grid) if pair.b.values.get(SCALE) == "sqrt" else None
    delta = None if margin is None else margin.value
    difference = compare(pair.values_a, pair.values_b, margin=delta)
    return Comparison(pair.a, pair.b, difference, margin, pair.split)


def compare_settings(grid: Grid) -> list[Comparison]:
    """Compare every setting that has results with its reference, all as one family."""
    pairs = [
        AtBest(setting, reference, setting.losses, reference.losses, split=False)
        for setting in grid.settings
        if (reference := reference_of(setting, grid)) is not None
        and setting.losses
        and reference.losses
    ]
    return _as_family([_compared(pair, grid) for pair in pairs])


def compare_pair(arm: Arm, other: Arm, grid: Grid) -> Comparison | None:
    """Compare two arms, each at its best; None where nothing can be claimed.

    Where the other has no ``sqrt`` there is no margin.
    """
    pair = at_best(arm, other)
    return None if pair is None else _compared(pair, grid)


def compare_arms(every: Sequence[Arm], grid: Grid) -> list[Comparison]:
    """Compare every arm with its reference, each at its best, all as one family."""
    pairs = [(arm, other) for arm in every if (other := partner(arm, every)) is not None]
    comparisons = [compare_pair(arm, reference, grid) for arm, reference in pairs]
    return _as_family([c for c in comparisons if c is not None])
