import math

import numpy as np
import pytest
from scipy import stats

from attnscale.analysis.comparison import (
    as_family,
    compare,
    compare_all,
    holm,
    verdict,
    verdict_in_words,
)


def test_holm_by_hand() -> None:
    # In order 0.005·4, 0.01·3, 0.03·2, 0.04·1, and never below the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.4]) == pytest.approx([0.8, 0.8])
    assert holm([0.9, 0.7]) == [1.0, 1.0]
    assert holm([]) == []
    for bad in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="in \\[0, 1\\]"):
            holm([0.5, bad])


def test_each_of_many_comparisons_counts_the_others() -> None:
    reference = {0: 1.0, 1: 1.2, 2: 0.9}
    others = {
        "far": {0: 3.0, 1: 3.3, 2: 2.8},
        "near": {0: 1.1, 1: 1.1, 2: 1.0},
        "apart": {7: 1.9, 8: 2.4},
        "single": {0: 4.0},
    }
    found = compare_all(reference, others)
    assert list(found) == list(others)
    tested = ["far", "near", "apart"]  # one seed is no test, and does not cost the others
    adjusted = holm([compare(others[name], reference).p_value or 0 for name in tested])
    for name, p in zip(tested, adjusted, strict=True):
        alone = compare(others[name], reference)
        assert found[name].interval == alone.interval
        assert found[name].value == alone.value
        assert found[name].p_value == alone.p_value
        assert (found[name].p_adjusted, found[name].family) == (p, 3)
    assert (verdict(found["far"]), found["far"].better) == ("higher", False)
    assert (verdict(found["single"]), found["single"].p_adjusted) == ("one seed", None)
    assert compare_all(reference, {}) == {}
    (alone,) = as_family([compare(others["far"], reference)])
    assert alone == compare(others["far"], reference)


def test_one_rule_decides_wherever_a_difference_is_called_something() -> None:
    """Of three, one is below 5 % alone and above it by Holm's p: no finding anywhere."""
    reference = {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.0}
    others = {
        "edge": {0: 1.0, 1: 2.0, 2: 3.0, 3: 0.9},
        "noise": {0: 1.0, 1: -1.0, 2: 1.0, 3: -1.0},
        "more": {0: 2.0, 1: -2.0, 2: 1.0, 3: -1.0},
    }
    found = compare_all(reference, others)["edge"]
    p = stats.ttest_1samp(list(others["edge"].values()), 0).pvalue
    assert p < 0.05 < 3 * p
    assert found.interval is not None
    assert found.interval.low > 0
    assert (verdict(found), verdict_in_words(found), found.better) == (*["within noise"] * 2, None)
    assert verdict(compare(others["edge"], reference)) == "higher"


def test_a_family_without_effects_seldom_has_a_finding() -> None:
    """Six settings: at the level of one comparison, every fifth family or so would have one."""
    rng = np.random.default_rng(0)
    families, m, n = 300, 6, 3
    x = rng.normal(size=(families, m + 1, n))
    wrong, naive = 0, 0
    for family in x:
        reference, *others = (dict(enumerate(row.tolist())) for row in family)
        named = {str(i): other for i, other in enumerate(others)}
        found = compare_all(reference, named)
        alone = [d.p_value for d in found.values()]
        adjusted = [d.p_adjusted for d in found.values()]
        any_found = any(verdict(d) != "within noise" for d in found.values())
        wrong += any_found
        # Of the smallest p value Holm and Bonferroni think alike.
        assert any_found == any(p is not None and p < 0.05 for p in adjusted)
        naive += any(p is not None and p < 0.05 for p in alone)
    # Four standard errors of 300 families above 0.05.
    assert wrong / families <= 0.10, wrong / families
    assert naive / families >= 0.15, naive / families
