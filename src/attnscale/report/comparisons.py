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
from attnscale.analysis.tuning import Arm, arms, at_best

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


def compare_settings(grid: Grid) -> list[Comparison]:
    """Compare every setting that has results with its reference, all as one family."""
    comparisons = []
    for setting in grid.settings:
        reference = reference_of(setting, grid)
        if reference is None or not setting.losses or not reference.losses:
            continue
        margin = _margin(reference, grid)
        delta = None if margin is None else margin.value
        difference = compare(setting.losses, reference.losses, margin=delta)
        comparisons.append(Comparison(setting, reference, difference, margin))
    return _as_family(comparisons)


def compare_arms(grid: Grid) -> list[Comparison]:
    """Compare every arm with its reference, each at its best, all as one family."""
    comparisons, every = [], arms(grid.settings)
    for arm in every:
        reference = partner(arm, every)
        pair = None if reference is None else at_best(arm, reference)
        if pair is None:
            continue
        margin = _margin(pair.b, grid)
        delta = None if margin is None else margin.value
        difference = compare(pair.values_a, pair.values_b, margin=delta)
        comparisons.append(Comparison(pair.a, pair.b, difference, margin, pair.split))
    return _as_family(comparisons)
