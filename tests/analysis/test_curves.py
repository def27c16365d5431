"""Curves of settings, from planted points."""

import math
from typing import Any

import numpy as np
import pytest

from attnscale.analysis.curves import growth_exponent, joined, reach, thinned
from attnscale.analysis.estimate import Interval
from attnscale.analysis.settings import make_grid
from attnscale.tracking.runs import Point, Run, StoredCurves

LOSS = "val/loss"
FIGURES = {LOSS: 0.5, "data/steps_per_epoch": 20.0, "data/tokens_per_step": 7.0}


def test_a_curve_is_read_once_and_holds_what_can_be_drawn() -> None:
    reads: list[str] = []

    def read(metric: str) -> list[tuple[int, float, int]]:
        reads.append(metric)
        values = {10: 3.0, 20: math.nan, 30: 1.7976931348623157e308, 40: 1.0}
        return [(step, value, 1_700_000_000_000 + 1000 * step) for step, value in values.items()]

    run = Run(run_id="id", recorded=frozenset({LOSS}), curves=StoredCurves(read))
    expected = [Point(10, 3.0, 0.0), Point(40, 1.0, 30.0)]
    assert [run.curve(LOSS), run.curve(LOSS)] == [expected, expected]
    # A metric that the run does not have costs no query.
    assert run.curve("never") == []
    assert reads == [LOSS]


def test_a_run_that_diverged_is_drawn_up_to_there(plant: Any, history: Any) -> None:

    run = plant.run(loss=math.nan, outcome="diverged", metrics={LOSS: math.nan})
    history.plant(run, LOSS, {0: 3.0, 10: 5.0, 20: float("nan")})
    (setting,) = make_grid([run]).settings
    rows = joined(setting, LOSS)
    assert [(row["step"], row["value"]) for row in rows] == [(0, 3.0), (10, 5.0)]


def test_seeds_are_joined_step_by_step(plant: Any, history: Any) -> None:
    runs = [plant.run("", seed, metrics=FIGURES) for seed in range(3)]
    for run, values in zip(runs, ((1.0, 4.0), (2.0, 5.0), (6.0,)), strict=True):
        history.plant(run, LOSS, dict(zip((10, 30), values, strict=False)))
    (setting,) = make_grid(runs).settings
    rows = joined(setting, LOSS)
    expected = {"setting": "all runs", "step": 10, "epoch": 0.5, "tokens": 70.0, "seconds": 0.0}
    assert rows[0] == {**expected, "value": 3.0, "low": 1.0, "high": 6.0, "n": 3}
    more = {"step": 30, "epoch": 1.5, "tokens": 210.0, "seconds": 20.0}
    assert rows[1] == {**expected, **more, "value": 4.5, "low": 4.0, "high": 5.0, "n": 2}
    assert len(rows) == 2
    assert [row["step"] for row in joined(setting, LOSS, until=29)] == [10]


def test_axes_that_are_not_known_stay_empty(plant: Any, history: Any) -> None:
    run = plant.run(metrics={LOSS: 1.0})
    history.plant(run, LOSS, {5: 1.0})
    (row,) = joined(make_grid([run]).settings[0], LOSS)
    assert (row["epoch"], row["tokens"], row["seconds"]) == (None, None, 0.0)


@pytest.mark.parametrize(
    ("state", "drawn"),
    [("finished", 1), ("diverged", 1), ("running", 1), ("failed", 0), ("killed", 0)],
)
def test_states_that_are_drawn(plant: Any, history: Any, state: str, drawn: int) -> None:
    run = plant.run(metrics={LOSS: 1.0}, outcome=state)
    history.plant(run, LOSS, {5: 1.0})
    assert len(joined(make_grid([run]).settings[0], LOSS)) == drawn


def test_the_grid_is_thin_and_keeps_both_ends() -> None:
    assert thinned([]) == []
    assert thinned({4, 0, 3, 2}) == [0, 2, 3, 4]
    for n in (299, 300, 301, 599, 1000, 4001):
        steps = thinned(range(7, 7 + n))
        assert (steps[0], steps[-1]) == (7, 6 + n)
        assert len(steps) == len(set(steps)) <= 300
        assert len(steps) >= min(n, 150)
    assert thinned(range(10), 4) == [0, 3, 6, 9]


def test_a_long_curve_is_thinned_to_points_of_its_own(plant: Any, history: Any) -> None:
    run = plant.run(metrics={LOSS: 1.0})
    history.plant(run, LOSS, {step: float(step) for step in range(1000)})
    rows = joined(make_grid([run]).settings[0], LOSS)
    assert 150 <= len(rows) <= 300
    assert all(row["value"] == row["step"] for row in rows)
    assert rows[-1]["step"] == 999


def test_the_first_point_at_or_below_a_target() -> None:
    curve = [Point(0, 3.0, 0.0), Point(10, 1.0, 4.0), Point(20, 2.0, 8.0), Point(30, 0.5, 9.0)]
    assert reach(curve, 1.0) == reach(curve[::-1], 1.0) == curve[1]
    assert reach(curve, 0.75) == curve[3]
    assert reach(curve, 5.0) == curve[0]
    assert reach(curve, 0.25) is None
    assert reach([], 1.0) is None


# --- the deviation over widths ---


def test_the_exponent_of_an_exact_power() -> None:
    d = [16, 32, 64, 128, 256]
    found = growth_exponent(d, [3 * width**0.5 for width in d])
    assert found.value == pytest.approx(0.5, abs=1e-12)
    assert found.n == 5
    assert found.interval is not None
    assert found.interval.low == pytest.approx(0.5, abs=1e-6)
    assert found.interval.high == pytest.approx(0.5, abs=1e-6)


def test_the_interval_of_an_exponent_by_hand() -> None:
    # log d = 0, 1, 2 and log std = 0, 2, 1: slope 1/2, residuals -1/2, 1, -1/2, whose squares sum
    # to 3/2 over 1 degree of freedom and Σ(x − x̄)² = 2; t of 0.975 with 1 degree is 12.706205.
    found = growth_exponent([1, math.e, math.e**2], [1, math.e**2, math.e])
    half = 12.706205 * math.sqrt(3 / 2 / 2)
    assert found.value == pytest.approx(0.5)
    assert found.interval is not None
    assert found.interval.level == 0.95
    assert found.interval.low == pytest.approx(0.5 - half, rel=1e-6)
    assert found.interval.high == pytest.approx(0.5 + half, rel=1e-6)


def test_the_interval_of_an_exponent_holds_it() -> None:
    d = np.array([16, 32, 64, 128, 256])
    noise = np.random.default_rng(0).normal(scale=0.1, size=(1000, 5))
    found = [growth_exponent(d.tolist(), (d**0.7 * np.exp(e)).tolist()).interval for e in noise]
    coverage = np.mean([i is not None and i.low <= 0.7 <= i.high for i in found])
    assert 0.93 <= coverage <= 0.97, coverage


def test_two_widths_give_a_slope_and_no_interval() -> None:
    found = growth_exponent([16, 64], [1, 4])
    assert found.value == pytest.approx(1)
    assert (found.interval, found.n) == (None, 2)


def test_a_constant_deviation_does_not_grow() -> None:
    found = growth_exponent([16, 64, 256], [2, 2, 2])
    assert (found.value, found.interval) == (0, Interval(0, 0, 0.95))


@pytest.mark.parametrize(
    ("d", "std", "says"),
    [
        ([16], [1.0], "two widths"),
        ([16, 16], [1.0, 2.0], "two widths"),
        ([16, 32], [1.0], "one for each"),
        ([16, 32], [1.0, 0.0], "positive"),
        ([16, 32], [1.0, math.nan], "positive"),
        ([16, 32], [1.0, math.inf], "positive"),
        ([0, 32], [1.0, 2.0], "positive"),
    ],
)
def test_points_without_a_line_are_refused(d: list[float], std: list[float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        growth_exponent(d, std)
