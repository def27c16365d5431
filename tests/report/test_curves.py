import math

import numpy as np
import pytest

from attnscale.report.curves import growth_exponent, lr_sensitivity, steps_to
from attnscale.report.statistics import Interval

# --- the loss over learning rates ---


@pytest.mark.parametrize("diverged", [None, math.inf, math.nan, 50.0])
def test_sensitivity_by_hand(diverged: float | None) -> None:
    # Decades are unequal: 1e-4 to 1e-3 is one, 1e-3 to 1e-1 two. Over the best loss of 2 lie
    # 1, 0 and, diverged at the loss of 8 at the start, 6: (1·(1 + 0)/2 + 2·(0 + 6)/2) / 3.
    losses = {1e-1: diverged, 1e-4: 3.0, 1e-3: 2.0}  # the order does not matter
    assert lr_sensitivity(losses, 8.0) == pytest.approx(6.5 / 3)


def test_sensitivity_of_a_flat_curve_is_0() -> None:
    assert lr_sensitivity({1e-4: 2.0, 1e-3: 2.0, 1e-2: 2.0}, 8.0) == 0


def test_sensitivity_has_no_value_where_nothing_was_learnt() -> None:
    assert lr_sensitivity({1e-4: None, 1e-3: math.inf, 1e-2: 9.0}, 8.0) is None


@pytest.mark.parametrize("losses", [{}, {1e-3: 1.0}, {0.0: 1.0, 1e-3: 1.0}, {-1.0: 1.0, 1.0: 1.0}])
def test_sensitivity_needs_a_range_of_rates(losses: dict[float, float | None]) -> None:
    with pytest.raises(ValueError, match="two or more, positive"):
        lr_sensitivity(losses, 8.0)


def test_sensitivity_needs_a_loss_at_the_start() -> None:
    with pytest.raises(ValueError, match="loss_at_init"):
        lr_sensitivity({1e-3: 1.0, 1e-2: 2.0}, math.inf)


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
    # to 3/2 over 1 degree of freedom and Σ(x − x̄)² = 2; t of 0.95 with 1 degree is 6.313752.
    found = growth_exponent([1, math.e, math.e**2], [1, math.e**2, math.e], level=0.9)
    half = 6.313752 * math.sqrt(3 / 2 / 2)
    assert found.value == pytest.approx(0.5)
    assert found.interval is not None
    assert found.interval.level == 0.9
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


def test_a_level_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="level"):
        growth_exponent([16, 32, 64], [1, 2, 3], level=95)


# --- the loss over steps ---


def test_the_first_step_at_or_below_a_target() -> None:
    curve = [(10, math.nan), (20, 3.0), (30, 2.0), (40, 2.5), (50, 1.0)]
    assert steps_to(curve, 2.0) == 30
    assert steps_to(curve[::-1], 2.0) == 30
    assert steps_to(curve, 0.5) is None
    assert steps_to([], 2.0) is None
