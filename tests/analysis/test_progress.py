"""Steps to shares of the reference's improvement, against curves written down."""

import math
from typing import Any

import pytest
from scipy import stats

from attnscale.analysis.progress import log_steps, speeds, steps_to
from attnscale.tracking.runs import Point, curve_of
from tests.support.runs import trained_run


def curve(*points: tuple[int, float]) -> list[Point]:
    return list(curve_of([(step, value, 0) for step, value in points]))


@pytest.mark.parametrize(
    ("level", "steps"),
    [(0.75, 5.0), (0.5, 10.0), (0.4, 15.0), (0.3, 20.0), (0.1, 40.0), (0.05, None)],
)
def test_the_first_crossing_lies_on_the_line_between_two_points(
    level: float, steps: float | None
) -> None:
    # Falls to 0.5 at 10, to 0.3 at 20, rises, and falls again.
    points = curve((40, 0.1), (10, 0.5), (20, 0.3), (30, 0.9))
    crossing = steps_to(points, 1.0, level)
    assert crossing == (None if steps is None else pytest.approx(steps))


def run(scale: str, seed: int, *points: tuple[int, float], start: float = 1.0) -> Any:
    return trained_run(scale=scale, seed=seed, loss=points[-1][1], start_loss=start, curve=points)


def test_levels_are_shares_of_what_the_reference_gains() -> None:
    sqrt = [run("sqrt", 0, (10, 0.0)), run("sqrt", 1, (20, 0.0))]
    none = [run("none", 0, (20, 0.0)), run("none", 1, (60, 0.0))]
    half, most, nearly = speeds(none, sqrt)
    assert (half.share, most.share, nearly.share) == (0.5, 0.9, 0.99)
    # Straight lines: the ratio is 2 and 3 at every level.
    logs = [math.log(2), math.log(3)]
    interval = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    for speed in (half, most, nearly):
        assert speed.ratio == pytest.approx(math.sqrt(6))
        assert speed.interval is not None
        assert math.log(speed.interval.low) == pytest.approx(interval.low)
        assert math.log(speed.interval.high) == pytest.approx(interval.high)
        assert (speed.n, speed.missed) == (2, 0)
    assert (half.steps, half.reference_steps) == pytest.approx((20.0, 7.5))


def test_a_run_that_misses_a_level_has_the_steps_that_it_trained_for() -> None:
    sqrt = [run("sqrt", seed, (10, 0.2)) for seed in range(3)]
    none = [
        run("none", 0, (20, 0.2)),
        run("none", 1, (10, 0.5), (40, 0.5)),
        run("none", 7, (9, 0.0)),
    ]
    own, usual, missed = log_steps(none, sqrt, 0.9)
    # 90 % of the way to 0.2 is reached after 9 of 10 steps, and 18 of 20; seed 7 has no partner.
    assert missed == 1
    assert own == pytest.approx({(0, -1): math.log(18), (1, -1): math.log(40)})
    assert usual == pytest.approx({(0, -1): math.log(9), (1, -1): math.log(9)})


def test_who_does_not_get_there_is_counted_and_not_averaged() -> None:
    sqrt = [run("sqrt", seed, (10, 0.2)) for seed in range(3)]
    none = [run("none", 0, (10, 0.2)), run("none", 1, (10, 0.5)), run("none", 2, (20, 0.2))]
    half, most, _ = speeds(none, sqrt)
    assert (half.n, half.missed) == (3, 0)
    assert (most.n, most.missed) == (2, 1)
    assert most.ratio == pytest.approx(math.sqrt(2))


def test_runs_that_repeat_a_replicate_count_once() -> None:
    sqrt = [run("sqrt", 0, (10, 0.0)), run("sqrt", 0, (40, 0.0)), run("sqrt", 1, (10, 0.0))]
    none = [run("none", 0, (40, 0.0)), run("none", 1, (90, 0.0))]
    half, *_ = speeds(none, sqrt)
    # Ratios 4 and 1 of seed 0, whose logarithms average to that of 2; 9 of seed 1.
    assert half.ratio == pytest.approx(math.sqrt(2 * 9))
    assert (half.n, half.missed) == (2, 0)
    assert (half.steps, half.reference_steps) == pytest.approx(((20 + 45) / 2, (12.5 + 5) / 2))
    # One that repeats and does not get there: its seed does not.
    half, *_ = speeds([*none, run("none", 0, (40, 0.9))], sqrt)
    assert (half.n, half.missed) == (1, 1)


def test_other_seeds_and_lost_runs_make_no_pair() -> None:
    sqrt = [run("sqrt", 0, (10, 0.0)), trained_run(scale="sqrt", seed=1, loss=None)]
    none = [run("none", 1, (10, 0.0)), run("none", 2, (10, 0.0))]
    assert speeds(none, sqrt) == []


def test_a_reference_that_learns_nothing_has_no_levels() -> None:
    sqrt, none = [run("sqrt", 0, (10, 1.5))], [run("none", 0, (10, 0.1))]
    assert all(speed.n == 0 and speed.ratio is None for speed in speeds(none, sqrt))
