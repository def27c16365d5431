"""Arms at their best value of what was tuned, and what may be claimed of them."""

from typing import Any

import pytest

from attnscale.analysis.settings import make_grid
from attnscale.analysis.tuning import Arm, arms, at_best


def arms_of(plant: Any, losses: dict[str, Any]) -> dict[str, Arm]:
    return {arm.label: arm for arm in arms(make_grid(plant.runs(losses)).settings)}


def test_rates_of_one_scale_are_one_arm(plant: Any) -> None:
    losses = {f"scale={s} lr={lr}": (0.5,) for s in ("none", "sqrt") for lr in (0.1, 0.2)}
    groups = arms_of(plant, losses)
    assert sorted(groups) == ["scale=none", "scale=sqrt"]
    assert groups["scale=none"].knobs == ("optimizer.lr",)
    assert groups["scale=none"].grid == {("0.1",), ("0.2",)}


def test_without_a_swept_knob_an_arm_is_a_setting(plant: Any) -> None:
    (none, sqrt) = arms_of(plant, {"scale=none": (0.5,), "scale=sqrt": (0.4,)}).values()
    assert none.knobs == ()
    assert none.grid == sqrt.grid
    pair = at_best(none, sqrt)
    assert pair is not None
    assert (pair.values_a, pair.values_b) == (none.settings[0].losses, sqrt.settings[0].losses)


@pytest.mark.parametrize(("lr", "ends"), [("0.1", 1), ("0.2", 0), ("0.4", 1)])
def test_the_end_of_a_grid_is_marked(plant: Any, lr: str, ends: int) -> None:
    losses = {f"lr={x}": (0.1 if x == lr else 0.5,) for x in ("0.1", "0.2", "0.4")}
    (arm,) = arms_of(plant, losses).values()
    best = arm.best()
    assert best is not None
    assert best.values == {"optimizer.lr": lr}
    assert arm.ends(best) == ["optimizer.lr"] * ends


def test_a_rate_that_lost_more_runs_is_not_the_best(plant: Any) -> None:
    runs = plant.runs({"lr=0.1": (0.5, 0.5), "lr=0.2": (0.1,)})
    runs.append(plant.run("lr=0.2", 1, outcome="diverged"))
    (arm,) = arms(make_grid(runs).settings)
    best = arm.best()
    assert best is not None
    assert best.values == {"optimizer.lr": "0.1"}


def test_equal_grids_compare_the_best_means_over_all_seeds(plant: Any) -> None:
    losses = {
        "scale=none lr=0.1": (0.3, 0.5),
        "scale=none lr=0.2": (0.6, 0.7),
        "scale=sqrt lr=0.1": (0.9, 0.8),
        "scale=sqrt lr=0.2": (0.2, 0.1),
    }
    groups = arms_of(plant, losses)
    pair = at_best(groups["scale=none"], groups["scale=sqrt"])
    assert pair is not None
    assert not pair.split
    assert (pair.a.label, pair.b.label) == ("scale=none lr=0.1", "scale=sqrt lr=0.2")
    assert list(pair.values_a.values()) == [0.3, 0.5]


def test_unequal_grids_choose_on_one_half_and_compare_on_the_other(plant: Any) -> None:
    losses = {
        # On seeds 0 and 2 the first is better, on 1 and 3 the second.
        "scale=none lr=0.1": (0.1, 0.9, 0.1, 0.8),
        "scale=none lr=0.2": (0.2, 0.1, 0.2, 0.1),
        "scale=sqrt lr=0.1": (0.5, 0.6, 0.5, 0.6),
    }
    groups = arms_of(plant, losses)
    pair = at_best(groups["scale=none"], groups["scale=sqrt"])
    assert pair is not None
    assert pair.split
    assert pair.a.label == "scale=none lr=0.1"
    assert list(pair.values_a.values()) == [0.9, 0.8]
    assert list(pair.values_b.values()) == [0.6, 0.6]


def test_a_rate_that_hardly_ever_finished_does_not_take_the_seeds_of_unequal_grids(
    plant: Any,
) -> None:
    losses = dict.fromkeys(
        ("scale=none lr=0.1", "scale=none lr=0.2", "scale=sqrt lr=0.1"), (0.5,) * 6
    )
    runs = plant.runs({**losses, "scale=none lr=0.4": (0.1,)})
    runs += [plant.run("scale=none lr=0.4", i, None, outcome="diverged") for i in range(1, 6)]
    none, sqrt = arms(make_grid(runs).settings)
    pair = at_best(none, sqrt)
    assert pair is not None
    assert pair.split
    assert len(pair.values_a) == 3
    assert (none.lost, none.ended) == (5, 18)


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_with_few_seeds_unequal_grids_say_nothing(plant: Any, seeds: int) -> None:
    losses = dict.fromkeys(
        ("scale=none lr=0.1", "scale=none lr=0.2", "scale=sqrt lr=0.1"), (0.5,) * seeds
    )
    groups = arms_of(plant, losses)
    assert at_best(groups["scale=none"], groups["scale=sqrt"]) is None
