"""Curves of settings, from planted points."""

from typing import Any

import pytest

from attnscale.report.series import Curves, Point, grid_of, reach, rows_of
from attnscale.report.settings import make_grid

LOSS = "val/loss"
FIGURES = {LOSS: 0.5, "data/steps_per_epoch": 20.0, "data/tokens_per_step": 7.0}


def test_a_curve_is_read_once_and_holds_what_can_be_drawn(plant: Any, history: Any) -> None:
    run = plant.run(metrics={LOSS: 0.5})
    history.plant(run, LOSS, {10: 3.0, 20: float("nan"), 30: 1.7976931348623157e308, 40: 1.0})
    curves = Curves(history)
    expected = [Point(10, 3.0, 0.0), Point(40, 1.0, 30.0)]
    assert [curves.of(run, LOSS), curves.of(run, LOSS)] == [expected, expected]
    # A metric that the run does not have costs no query.
    assert curves.of(run, "never") == []
    assert history.reads == [(run.run_id, LOSS)]


def test_a_run_that_diverged_is_drawn_up_to_there(plant: Any, history: Any) -> None:
    from attnscale.report.runs import as_run
    from attnscale.tracking.history import RecordedRun

    recorded = RecordedRun("id", "n", "FINISHED", {"diverged": "true"}, {}, {LOSS: float("nan")})
    run = as_run(recorded)
    history.plant(run, LOSS, {0: 3.0, 10: 5.0, 20: float("nan")})
    (setting,) = make_grid([run]).settings
    rows = rows_of(setting, LOSS, Curves(history))
    assert [(row["step"], row["value"]) for row in rows] == [(0, 3.0), (10, 5.0)]


def test_seeds_are_joined_step_by_step(plant: Any, history: Any) -> None:
    runs = [plant.run("", seed, metrics=FIGURES) for seed in range(3)]
    for run, values in zip(runs, ((1.0, 4.0), (2.0, 5.0), (6.0,)), strict=True):
        history.plant(run, LOSS, dict(zip((10, 30), values, strict=False)))
    (setting,) = make_grid(runs).settings
    rows = rows_of(setting, LOSS, Curves(history))
    expected = {"setting": "all runs", "step": 10, "epoch": 0.5, "tokens": 70.0, "seconds": 0.0}
    assert rows[0] == {**expected, "value": 3.0, "low": 1.0, "high": 6.0, "n": 3}
    more = {"step": 30, "epoch": 1.5, "tokens": 210.0, "seconds": 20.0}
    assert rows[1] == {**expected, **more, "value": 4.5, "low": 4.0, "high": 5.0, "n": 2}
    assert len(rows) == 2
    assert [row["step"] for row in rows_of(setting, LOSS, Curves(history), until=29)] == [10]


def test_axes_that_are_not_known_stay_empty(plant: Any, history: Any) -> None:
    run = plant.run(metrics={LOSS: 1.0})
    history.plant(run, LOSS, {5: 1.0})
    (row,) = rows_of(make_grid([run]).settings[0], LOSS, Curves(history))
    assert (row["epoch"], row["tokens"], row["seconds"]) == (None, None, 0.0)


@pytest.mark.parametrize(
    ("state", "drawn"),
    [("finished", 1), ("diverged", 1), ("running", 1), ("failed", 0), ("killed", 0)],
)
def test_states_that_are_drawn(plant: Any, history: Any, state: str, drawn: int) -> None:
    run = plant.run(metrics={LOSS: 1.0}, state=state)
    history.plant(run, LOSS, {5: 1.0})
    assert len(rows_of(make_grid([run]).settings[0], LOSS, Curves(history))) == drawn


def test_the_grid_is_thin_and_keeps_both_ends() -> None:
    def curve(steps: range) -> list[Point]:
        return [Point(step, 1.0, 0.0) for step in steps]

    assert grid_of([]) == []
    assert grid_of([curve(range(0, 6, 3)), curve(range(0, 6, 2))]) == [0, 2, 3, 4]
    for n in (299, 300, 301, 599, 1000, 4001):
        kept = grid_of([curve(range(7, 7 + n))])
        assert (kept[0], kept[-1]) == (7, 6 + n)
        assert len(kept) == len(set(kept)) <= 300
        assert len(kept) >= min(n, 150)
    assert grid_of([curve(range(10))], most=4) == [0, 3, 6, 9]


def test_a_long_curve_is_thinned_to_points_of_its_own(plant: Any, history: Any) -> None:
    run = plant.run(metrics={LOSS: 1.0})
    history.plant(run, LOSS, {step: float(step) for step in range(1000)})
    rows = rows_of(make_grid([run]).settings[0], LOSS, Curves(history))
    assert 150 <= len(rows) <= 300
    assert all(row["value"] == row["step"] for row in rows)
    assert rows[-1]["step"] == 999


def test_the_first_point_at_or_below_a_target() -> None:
    curve = [Point(0, 3.0, 0.0), Point(10, 1.0, 4.0), Point(20, 2.0, 8.0), Point(30, 0.5, 9.0)]
    assert reach(curve, 1.0) == curve[1]
    assert reach(curve, 0.75) == curve[3]
    assert reach(curve, 5.0) == curve[0]
    assert reach(curve, 0.25) is None
    assert reach([], 1.0) is None
