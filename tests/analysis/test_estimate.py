"""A mean and its interval."""

import math

import numpy as np
import pytest

from attnscale.analysis.estimate import Estimate, Interval, between, estimate
from tests.analysis.test_comparison import DRAWS, LEAST_COVERAGE, holds


@pytest.mark.parametrize("n", [3, 5, 10])
def test_the_interval_of_a_mean_holds_it_as_often_as_it_says(n: int) -> None:
    x = np.random.default_rng(n).normal(7, 2, size=(DRAWS, n))
    coverage = np.mean([holds(estimate(row.tolist()).interval, 7) for row in x])
    assert LEAST_COVERAGE <= coverage <= 0.97, coverage


def test_a_mean_by_hand() -> None:
    found = estimate([1.0, 2.0, 6.0])
    assert (found.value, found.n) == (3.0, 3)
    assert found.std == pytest.approx(math.sqrt(7))
    half = 4.302653 * math.sqrt(7 / 3)  # t of 0.975 with 2 degrees of freedom, from a table
    assert found.interval is not None
    assert found.interval.level == 0.95
    assert found.interval.low == pytest.approx(3 - half, rel=1e-6)
    assert found.interval.high == pytest.approx(3 + half, rel=1e-6)


def test_one_seed_has_no_interval() -> None:
    found = estimate([3.0])
    assert (found.value, found.std, found.n, found.interval) == (3.0, None, 1, None)


def test_equal_values_have_an_interval_without_width() -> None:
    found = estimate([0.1, 0.1, 0.1])  # their mean by numpy is not 0.1
    assert (found.value, found.std, found.interval) == (0.1, 0.0, Interval(0.1, 0.1, 0.95))


def test_an_estimate_as_text() -> None:
    assert between(Estimate(1.23456, 0.1, 9, Interval(1.0345, 1.4346))) == "1.23 (1.03 to 1.43)"
    assert (
        between(Estimate(0.5, 0.1, 9, Interval(0.25, 0.75)), ".4f") == "0.5000 (0.2500 to 0.7500)"
    )


def test_the_ends_of_an_estimate() -> None:
    one, many = estimate([3.0]), estimate([1.0, 2.0, 6.0])
    assert (one.low, one.high, one.error) == (-math.inf, math.inf, math.inf)
    assert many.interval == Interval(many.low, many.high)
    assert many.error == pytest.approx(math.sqrt(7 / 3))
