import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from attnscale.analysis.comparison import (
    Difference,
    Values,
    compare,
    in_words,
    verdict,
    verdict_in_words,
)
from attnscale.analysis.estimate import Interval, estimate

DRAWS = 1000
LEAST_COVERAGE = 0.93
"""Three standard errors of 1,000 draws below 0.95."""

Array = NDArray[np.float64]


def holds(interval: Interval | None, truth: float) -> bool:
    assert interval is not None
    return interval.low <= truth <= interval.high


def runs(values: Array, first: int = 0) -> Values:
    return dict(enumerate(values.tolist(), start=first))


def pairs(rng: np.random.Generator, n: int, correlation: float) -> tuple[Array, Array]:
    """Return the runs of two settings, whose values share what the seed brings."""
    covariance = [[1.0, correlation], [correlation, 1.0]]
    both = rng.multivariate_normal([0.0, 0.0], covariance, size=(DRAWS, n))  # (draw, seed, side)
    return both[..., 0], both[..., 1]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_diverged_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        estimate([1.0, bad])
    for shift in (0, 2):  # paired, Welch
        good, other = {0: 1.0, 1: 2.0}, {shift: 1.0, shift + 1: bad}
        with pytest.raises(ValueError, match="finite"):
            compare(good, other)
        with pytest.raises(ValueError, match="finite"):
            compare(other, good)
    with pytest.raises(ValueError, match="finite"):
        # Also in a run that the pairing would leave out.
        compare({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0, 2: bad})


def test_no_values_are_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        estimate([])
    with pytest.raises(ValueError, match="no values"):
        compare({0: 1.0}, {})


@pytest.mark.parametrize("n", [3, 5, 10])
def test_the_interval_of_a_paired_difference_holds_it(n: int) -> None:
    a, b = pairs(np.random.default_rng(n), n, correlation=0.5)
    found = [compare(runs(x + 3), runs(y)) for x, y in zip(a, b, strict=True)]
    assert {d.method for d in found} == {"paired t"}
    coverage = np.mean([holds(d.interval, 3) for d in found])
    assert LEAST_COVERAGE <= coverage <= 0.97, coverage


@pytest.mark.parametrize("spread", [1, 3])
@pytest.mark.parametrize(("n_a", "n_b"), [(3, 3), (5, 5), (10, 10), (10, 5)])
def test_the_interval_of_an_unpaired_difference_holds_it(n_a: int, n_b: int, spread: int) -> None:
    rng = np.random.default_rng(n_a)
    a, b = rng.normal(3, 1, size=(DRAWS, n_a)), rng.normal(0, spread, size=(DRAWS, n_b))
    found = [compare(runs(x), runs(y, first=100)) for x, y in zip(a, b, strict=True)]
    assert {d.method for d in found} == {"Welch t"}
    coverage = np.mean([holds(d.interval, 3) for d in found])
    # Welch's interval is a little wide for three runs each.
    assert LEAST_COVERAGE <= coverage <= 0.98, coverage


def test_a_planted_effect_is_found() -> None:
    """Two standard deviations, five seeds: 79 % in theory, 91 % paired at correlation 0.5."""
    rng = np.random.default_rng(0)
    a, b = pairs(rng, 5, correlation=0.5)
    found = [compare(runs(x), runs(y + 2)) for x, y in zip(a, b, strict=True)]
    paired = np.mean([verdict(d) == "lower" for d in found])
    assert paired >= 0.85, paired
    a, b = pairs(rng, 5, correlation=0)
    found = [compare(runs(x + 2), runs(y, first=9)) for x, y in zip(a, b, strict=True)]
    apart = np.mean([verdict(d) == "higher" for d in found])
    assert apart >= 0.70, apart


@pytest.mark.parametrize("first", [0, 100], ids=["paired", "welch"])
@pytest.mark.parametrize("n", [3, 5])
def test_no_effect_is_seldom_a_finding(n: int, first: int) -> None:
    a, b = pairs(np.random.default_rng(n), n, correlation=0.5 if first == 0 else 0)
    found = [compare(runs(x), runs(y, first)) for x, y in zip(a, b, strict=True)]
    share = np.mean([verdict(d) != "within noise" for d in found])
    assert 0.01 <= share <= 0.065, share
    # p values and intervals are two faces of one thing.
    assert share == np.mean([d.p_value is not None and d.p_value < 0.05 for d in found])


A: Values = {0: 2.1, 1: 2.4, 2: 1.9, 3: 2.2, 4: 2.3}
B: Values = {4: 2.5, 2: 2.3, 7: 9.0, 0: 2.2, 3: 2.7}  # another order; 1 and 7 have no partner
SHARED = [0, 2, 3, 4]


def same(found: Difference, oracle: object) -> None:
    interval = oracle.confidence_interval(0.95)  # type: ignore[attr-defined]
    assert found.interval is not None
    assert found.interval.low == pytest.approx(interval.low, rel=1e-9)
    assert found.interval.high == pytest.approx(interval.high, rel=1e-9)
    assert found.p_value == pytest.approx(oracle.pvalue, rel=1e-9)  # type: ignore[attr-defined]
    assert found.df == pytest.approx(oracle.df, rel=1e-9)  # type: ignore[attr-defined]
    assert found.p_adjusted == found.p_value


def test_a_paired_difference_is_scipys() -> None:
    a, b = [A[s] for s in SHARED], [B[s] for s in SHARED]
    found = compare(A, B)
    same(found, stats.ttest_rel(a, b))
    assert (found.method, found.n_a, found.n_b, found.left_out) == ("paired t", 4, 4, 2)
    assert found.value == pytest.approx(-0.3)  # over the shared seeds: 7 would make it -1.56
    # -0.1, -0.4, -0.5, -0.2 about -0.3: squares sum to 0.1, over 3.
    assert found.effect == pytest.approx(-0.3 / math.sqrt(0.1 / 3))
    assert found.effect_name == "d_z"


def test_an_unpaired_difference_is_scipys() -> None:
    b = {10: 2.5, 11: 2.9, 12: 2.2}
    found = compare(A, b)
    same(found, stats.ttest_ind(list(A.values()), list(b.values()), equal_var=False))
    assert (found.method, found.n_a, found.n_b, found.left_out) == ("Welch t", 5, 3, 0)
    mean_a, mean_b = 10.9 / 5, 7.6 / 3
    assert found.value == pytest.approx(mean_a - mean_b)
    squares = sum((x - mean_a) ** 2 for x in A.values()) + sum(
        (x - mean_b) ** 2 for x in b.values()
    )
    factor = math.gamma(3) / (math.sqrt(3) * math.gamma(2.5))  # Hedges' c(m), m = 5 + 3 - 2
    assert factor == pytest.approx(1 - 3 / (4 * 6 - 1), abs=2e-3)  # and its approximation
    assert found.effect == pytest.approx((mean_a - mean_b) / math.sqrt(squares / 6) * factor)
    assert found.effect_name == "Hedges g"


def test_hedges_g_is_unbiased() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(2, 1, size=(DRAWS, 5)), rng.normal(0, 1, size=(DRAWS, 5))
    g = [compare(runs(x), runs(y, 9)).effect for x, y in zip(a, b, strict=True)]
    mean, error = np.mean(np.array(g, float)), np.std(np.array(g, float)) / math.sqrt(DRAWS)
    assert abs(mean - 2) < 3 * error < 0.1, (mean, error)  # uncorrected: 2.2


def test_two_shared_seeds_are_pairs() -> None:
    found = compare({0: 1.0, 1: 2.0, 2: 4.0}, {2: 1.0, 1: 0.0, 3: 3.0})
    assert (found.method, found.n_a, found.n_b, found.left_out) == ("paired t", 2, 2, 2)
    same(found, stats.ttest_rel([2.0, 4.0], [0.0, 1.0]))


def test_a_single_shared_seed_is_not_a_pair() -> None:
    a, b = {0: 1.0, 1: 2.0, 2: 4.0}, {2: 1.0, 3: 3.0}
    found = compare(a, b)
    assert (found.method, found.n_a, found.n_b, found.left_out) == ("Welch t", 3, 2, 0)
    same(found, stats.ttest_ind([1.0, 2.0, 4.0], [1.0, 3.0], equal_var=False))


@pytest.mark.parametrize(
    ("a", "b", "value", "counts"),
    [
        ({0: 1.0}, {0: 3.0}, -2.0, (1, 1, 0)),
        ({0: 1.0}, {5: 3.0}, -2.0, (1, 1, 0)),
        # The seed that both have, where there is one; else the means.
        ({0: 1.0, 1: 1.5}, {0: 3.0}, -2.0, (1, 1, 1)),
        ({0: 1.0, 1: 1.5}, {5: 3.0}, -1.75, (2, 1, 0)),
    ],
)
def test_one_seed_has_no_verdict(
    a: Values, b: Values, value: float, counts: tuple[int, int, int]
) -> None:
    n_a, n_b, left_out = counts
    assert (compare(b, a).value, compare(b, a).n_a) == (-value, n_b)
    found = compare(a, b)
    assert (found.value, found.n_a, found.n_b, found.left_out) == (value, n_a, n_b, left_out)
    unknown = {found.interval, found.p_value, found.p_adjusted, found.df, found.effect}
    assert unknown | {found.effect_name, found.better, found.detectable} == {None}
    assert found.method == verdict(found) == "one seed"


@pytest.mark.parametrize("first", [0, 10], ids=["paired", "welch"])
def test_runs_that_do_not_vary_give_no_nan(first: int) -> None:
    a = dict.fromkeys(range(3), 0.1)
    equal = compare(a, dict.fromkeys(range(first, first + 3), 0.1))
    assert (equal.value, equal.interval, equal.p_value) == (0, Interval(0, 0, 0.95), 1)
    assert (equal.effect, verdict(equal)) == (0, "within noise")

    lower = compare(a, dict.fromkeys(range(first, first + 3), 0.3))
    value = 0.1 - 0.3
    assert (lower.value, lower.interval) == (value, Interval(value, value, 0.95))
    assert (lower.p_value, lower.effect, verdict(lower)) == (0, -math.inf, "lower")
    assert equal.df == lower.df == (2 if first == 0 else 4)


def test_one_side_that_does_not_vary() -> None:
    found = compare({0: 1.0, 1: 1.0, 2: 1.0}, {5: 2.0, 6: 3.0, 7: 4.0})
    same(found, stats.ttest_1samp([-1.0, -2.0, -3.0], 0))


@pytest.mark.parametrize("lower_is_better", [True, False])
def test_the_direction_says_which_is_better(lower_is_better: bool) -> None:
    low, high = {0: 1.0, 1: 1.1, 2: 0.9}, {0: 5.1, 1: 5.0, 2: 5.2}
    found = replace(compare(low, high), lower_is_better=lower_is_better)
    assert (verdict(found), found.better) == ("lower", lower_is_better)
    found = replace(compare(high, low), lower_is_better=lower_is_better)
    assert (verdict(found), found.better) == ("higher", not lower_is_better)
    assert replace(compare(low, low), lower_is_better=lower_is_better).better is None


@pytest.mark.parametrize(
    ("value", "p", "side"),
    [
        (-1.5, 0.049, "lower"),
        (1.5, 0.049, "higher"),
        (-1.5, 0.051, "within noise"),
        (1.5, 0.051, "within noise"),
    ],
)
def test_the_verdict_goes_by_the_p_value_of_the_family(value: float, p: float, side: str) -> None:
    interval = Interval(value - 1, value + 1)  # alone it excludes 0
    difference = Difference(value, interval, "paired t", n_a=3, n_b=3, p_value=0.01, p_adjusted=p)
    assert verdict(difference) == side


@pytest.mark.parametrize(
    ("shared", "method"), [(1, "Welch t"), (2, "Welch t"), (4, "Welch t"), (5, "paired t")]
)
def test_few_shared_seeds_of_many_are_no_pairs(shared: int, method: str) -> None:
    """Ten against ten: a paired test over two would have one degree of freedom."""
    x = np.random.default_rng(0).normal(size=(2, 10))
    a, b = runs(x[0]), runs(x[1], first=10 - shared)
    oracle = (
        stats.ttest_ind(x[0], x[1], equal_var=False)
        if method == "Welch t"
        else stats.ttest_rel(x[0, -shared:], x[1, :shared])
    )
    found = compare(a, b)
    assert found.method == method
    same(found, oracle)


def test_half_of_the_smaller_side_is_enough_for_pairs() -> None:
    a, b = runs(np.arange(10.0)), {0: 0.5, 1: 0.7, 20: 1.0, 21: 9.0}
    assert compare(a, b).method == "paired t"
    assert compare(a, {**b, 22: 3.0}).method == "Welch t"


UNEQUAL: tuple[Values, Values] = (
    {0: 0.200, 1: 0.211, 2: 0.221},
    {0: 0.10, 1: 0.11, 2: 0.12, 3: 0.50, 4: 0.52, 5: 0.51},
)


def test_seeds_that_are_missing_may_turn_the_sign_and_it_is_said() -> None:
    found = compare(*UNEQUAL)
    assert found.value == pytest.approx(0.302 / 3)
    assert np.mean(list(UNEQUAL[0].values())) < np.mean(list(UNEQUAL[1].values()))
    assert (found.opposed, compare(*UNEQUAL[::-1]).opposed, found.left_out) == (True, True, 3)
    same_seeds = compare(UNEQUAL[0], {seed: UNEQUAL[1][seed] for seed in range(3)})
    assert not same_seeds.opposed


def test_rounding_is_no_opposition() -> None:
    # Both are 0: the mean of the differences as 2e-17, that of the means as −1e-16.
    assert not compare({0: 0.6, 1: 0.3, 2: 0.8}, {0: 0.3, 1: 0.8, 2: 0.6}).opposed


def test_a_difference_as_text() -> None:
    assert in_words(compare({0: 1.5}, {0: 1.0})) == "+0.5"
    text = in_words(compare({0: 1.0, 1: 1.2, 2: 0.9}, {0: 2.0, 1: 2.1, 2: 2.2}))
    assert text.startswith("-1.07 (")
    low, high = (float(x) for x in text[text.index("(") + 1 : -1].split(" to "))
    assert low < -1.07 < high < 0
    assert math.isclose((low + high) / 2, -1.0667, abs_tol=0.01)


def test_the_word_of_a_difference() -> None:
    low, high = {0: 1.0, 1: 1.1, 2: 0.9}, {0: 5.1, 1: 5.0, 2: 5.2}
    assert verdict_in_words(compare(low, high)) == "better"
    assert verdict_in_words(compare(high, low)) == "worse"
    assert verdict_in_words(compare(low, low)) == "within noise"
    assert verdict_in_words(compare({0: 1.0}, low)) == "one seed"
