"""What an initialisation or a norm replaces of the factor: planted gaps."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from attnscale.analysis.rates import Results
from attnscale.claims import initialisation
from attnscale.claims.initialisation import INIT, NO_GAP, NORM
from attnscale.claims.judgement import DEPENDS, FAILS, HOLDS, OPEN, Judgement
from attnscale.tracking.runs import Run
from tests.claims.sweeps import ALLOWED, arm, count, judged

BY_INIT = initialisation.interaction(INIT, "torch", smaller=False)
BY_NORM = initialisation.interaction(NORM, "none", smaller=True)
WIDE = (0.1, 0.9, 0.3, 0.2, 0.6)


def folded(loss: float | Sequence[float], none: float = 0.4) -> list[Run]:
    return [*arm("none", none), *arm("folded", loss), *arm("sqrt", 0.2)]


@pytest.mark.parametrize(
    ("verdict", "runs"),
    [
        (HOLDS, folded(0.3)),
        (FAILS, folded(0.4)),
        (FAILS, folded(0.5)),
        (OPEN, folded(WIDE)),
        # Without a gap there is nothing to close.
        (OPEN, folded(0.1, none=0.2)),
        (OPEN, folded(0.1, none=0.15)),
        (OPEN, [*arm("none", 0.4), *arm("sqrt", 0.2)]),
    ],
)
def test_folded_closes_a_part_of_the_gap(verdict: str, runs: list[Run]) -> None:
    assert judged(initialisation.folded, runs).verdict == verdict


def test_the_share_of_the_gap_is_told() -> None:
    # ln(none ÷ sqrt) is ln 4, ln(folded ÷ sqrt) is ln 2.
    runs = [*arm("none", 0.4), *arm("folded", 0.2), *arm("sqrt", 0.1)]
    assert "folded closes 50 % of the gap" in judged(initialisation.folded, runs).value
    assert NO_GAP in judged(initialisation.folded, folded(0.3, none=0.2)).value


def test_what_rounding_does_to_sqrt_is_no_margin_of_none() -> None:
    rounded = arm("none_equiv", [0.2, 0.24, 0.16, 0.22, 0.18])
    assert judged(initialisation.folded, folded(0.37), rounded).verdict == HOLDS


def gaps(key: str, ratios: Mapping[str, float | Sequence[float]], **more: Any) -> list[Run]:
    """Return runs of none and sqrt with a ratio of their losses for each value of a parameter."""
    runs = []
    for value, ratio in ratios.items():
        none = 0.1 * ratio if isinstance(ratio, float) else [0.1 * x for x in ratio]
        runs += arm("none", none, parameters={key: value}, **more)
        runs += arm("sqrt", 0.1, parameters={key: value})
    return runs


@pytest.mark.parametrize(
    ("verdict", "ratios"),
    [
        (HOLDS, {"torch": 2.0, "unit": 6.0}),
        (HOLDS, {"torch": 2.0, "unit": 1.0}),
        (FAILS, {"torch": 2.0, "unit": 2.0}),
        (DEPENDS, {"torch": 2.0, "unit": 6.0, "xavier": 2.0}),
        (OPEN, {"torch": 2.0, "unit": [2.0, 6.0, 3.0, 1.5, 4.0]}),
        # No gap anywhere: nothing is replaced.
        (OPEN, {"torch": 1.0, "unit": 1.0}),
        (OPEN, {"unit": 6.0, "xavier": 2.0}),
    ],
)
def test_the_gap_depends_on_the_initialisation(
    verdict: str, ratios: Mapping[str, float | Sequence[float]]
) -> None:
    assert judged(BY_INIT, gaps(INIT, ratios)).verdict == verdict


@pytest.mark.parametrize(
    ("verdict", "ratios"),
    [
        (HOLDS, {"none": 4.0, "pre": 1.5}),
        (FAILS, {"none": 2.0, "pre": 2.0}),
        (FAILS, {"none": 2.0, "pre": 4.0}),
        (DEPENDS, {"none": 2.0, "pre": 1.2, "post": 4.0}),
    ],
)
def test_a_norm_must_make_the_gap_smaller(verdict: str, ratios: Mapping[str, float]) -> None:
    assert judged(BY_NORM, gaps(NORM, ratios)).verdict == verdict


def test_only_cells_that_differ_in_one_parameter_are_paired() -> None:
    runs = []
    for init, norm, ratio in (("torch", "none", 2.0), ("torch", "pre", 1.5), ("unit", "none", 6.0)):
        values = {INIT: init, NORM: norm}
        runs += arm("none", 0.1 * ratio, parameters=values) + arm("sqrt", 0.1, parameters=values)
    by_init, by_norm = (judged(judge, runs).value for judge in (BY_INIT, BY_NORM))
    assert by_init.count("ln(none ÷ sqrt)") == by_norm.count("ln(none ÷ sqrt)") == 1
    assert "init=unit norm=none, " in by_init
    assert "init=torch norm=pre, " in by_norm
    # ln 6 − ln 2.
    assert "+1.1 (1.1 to 1.1), higher" in by_init


def test_a_best_rate_at_an_end_leaves_open_what_could_change() -> None:
    end = gaps(INIT, {"unit": 1.2}, best=1.0)
    # The smaller gap could be smaller still.
    assert (
        judged(BY_NORM, gaps(NORM, {"none": 4.0}), gaps(NORM, {"pre": 1.5}, best=1.0)).verdict
        == HOLDS
    )
    assert (
        judged(BY_NORM, gaps(NORM, {"none": 4.0}, best=1.0), gaps(NORM, {"pre": 1.5})).verdict
        == OPEN
    )
    assert judged(BY_INIT, gaps(INIT, {"torch": 4.0}), end).verdict == HOLDS
    # The larger gap is that of the other value, whose own could be as large: sqrt's rate is an end.
    wide, narrow = gaps(INIT, {"unit": 6.0}), arm("none", 0.2, parameters={INIT: "torch"})
    for best, verdict in ((0.1, HOLDS), (1.0, OPEN)):
        sqrt = arm("sqrt", 0.1, best=best, parameters={INIT: "torch"})
        assert judged(BY_INIT, wide, narrow, sqrt).verdict == verdict


@pytest.mark.slow
@pytest.mark.parametrize("judge", [BY_INIT, BY_NORM, initialisation.folded])
def test_without_an_effect_none_is_found(judge: Callable[[Results], Judgement]) -> None:
    def sweep(generator: np.random.Generator) -> list[Run]:
        return [
            run
            for init, norm in (("torch", "none"), ("unit", "none"), ("torch", "pre"))
            for scale in ("none", "folded", "sqrt")
            for run in arm(
                scale,
                list(0.2 * np.exp(0.6 * generator.standard_normal(3)).clip(0.1, 4)),
                parameters={INIT: init, NORM: norm},
            )
        ]

    counts = count(judge, sweep)
    assert counts.get(HOLDS, 0) + counts.get(DEPENDS, 0) <= ALLOWED, counts
