"""Differences that do not matter, those that would have been found, and lost runs."""

import math
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from attnscale.analysis.comparison import (
    Difference,
    Values,
    compare,
    more_often,
    verdict,
    verdict_in_words,
)


def runs(values: NDArray[np.float64], first: int = 0) -> Values:
    return dict(enumerate(values.tolist(), start=first))


@pytest.mark.parametrize("first", [0, 100], ids=["paired", "welch"])
@pytest.mark.parametrize("shift", [0.0, 0.3, -0.3, 0.8])
def test_equivalence_is_two_one_sided_tests(first: int, shift: float) -> None:
    x, y = np.random.default_rng(3).normal(0, [[0.2], [0.3]], size=(2, 8))
    found = compare(runs(x + shift), runs(y, first), margin=0.5)
    test = partial(stats.ttest_ind, equal_var=False) if first else stats.ttest_rel
    # SciPy has no margin: one side is moved by it.
    lower = test(x + shift + 0.5, y, alternative="greater").pvalue
    upper = test(x + shift - 0.5, y, alternative="less").pvalue
    assert found.within(0.5) == pytest.approx(max(lower, upper), rel=1e-9)
    assert (verdict(found) == "equivalent") == (max(lower, upper) < 0.05)


def test_a_difference_below_the_margin_does_not_matter_however_significant() -> None:
    a, b = {0: 0.501, 1: 0.512, 2: 0.481}, {0: 0.5, 1: 0.511, 2: 0.48}
    assert compare(a, b).p_value == pytest.approx(0, abs=1e-6)
    assert verdict(compare(a, b)) == "higher"
    found = compare(a, b, margin=0.01)
    assert (verdict(found), found.better) == ("equivalent", None)
    assert verdict_in_words(found) == "no difference that matters"
    assert verdict(compare(a, b, margin=0.0005)) == "higher"


@pytest.mark.parametrize(("other", "side"), [(0.105, "equivalent"), (0.3, "higher")])
def test_the_margin_of_runs_that_do_not_vary(other: float, side: str) -> None:
    a, b = dict.fromkeys(range(3), other), dict.fromkeys(range(3), 0.1)
    assert verdict(compare(a, b, margin=0.01)) == side


@pytest.mark.parametrize("first", [0, 100], ids=["paired", "welch"])
@pytest.mark.parametrize(("n", "family"), [(3, 1), (5, 1), (5, 5)])
def test_the_smallest_difference_that_would_be_found_is_found_in_80_per_cent(
    n: int, first: int, family: int
) -> None:
    """Within noise says little of few seeds: with 2, a difference of 16 standard errors."""
    a, b = np.random.default_rng(n).normal(size=(2, 2000, n))
    df, error = ((n - 1) if first == 0 else (2 * n - 2)), math.sqrt(2 / n)
    design = Difference(0, None, "paired t", n_a=n, n_b=n, df=df, error=error, family=family)
    assert design.detectable is not None
    found = (stats.ttest_ind if first else stats.ttest_rel)(a + design.detectable, b, axis=1)
    assert np.mean(found.pvalue < 0.05 / family) == pytest.approx(0.8, abs=0.03)


def test_with_two_seeds_hardly_anything_would_be_found() -> None:
    found = compare({0: 1.0, 1: 1.2}, {0: 1.1, 1: 1.1})
    assert found.error == pytest.approx(0.1)
    assert found.detectable == pytest.approx(1.633, rel=1e-3)  # t(1) = 12.7
    single = compare({0: 1.0}, {0: 1.1})
    assert single.detectable is None


@pytest.mark.parametrize(
    ("counts", "p"), [((4, 5, 0, 5), 10 / 210), ((0, 10, 1, 10), 1.0), ((5, 5, 0, 5), 2 / 252)]
)
def test_lost_runs_are_compared_by_the_exact_test(
    counts: tuple[int, int, int, int], p: float
) -> None:
    assert more_often(*counts) == pytest.approx(p)
