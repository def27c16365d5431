"""Gradients in training, growth of the scores, and the best rate over d_k: planted curves."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from attnscale.claims import mechanism
from attnscale.claims.judgement import DEPENDS, FAILS, HOLDS, OPEN
from attnscale.tracking.runs import Run
from tests.claims.sweeps import ALLOWED, NOISE, RATES, arm, count, judged
from tests.support.runs import trained_run

SEEDS = len(NOISE)


def by_seed(
    scale: str, curves: Sequence[dict[str, list[tuple[int, float]]]], **more: Any
) -> list[Run]:
    """Return an arm whose seeds have curves of their own."""
    runs = []
    for seed, of_seed in enumerate(curves):
        every = arm(scale, [0.2] * (seed + 1), curves=of_seed, **more)
        runs += [run for run in every if run.seed == seed]
    return runs


def gradients(scale: str, thirds: Sequence[float], noise: Sequence[float] = NOISE) -> list[Run]:
    """Return an arm with a gradient norm in each third of 30 steps."""
    return by_seed(
        scale,
        [
            {"grad_norm/q": [(step, thirds[step // 10] * math.exp(x)) for step in range(30)]}
            for x in noise
        ],
    )


SQRT = gradients("sqrt", (1.0, 0.5, 0.1))


@pytest.mark.parametrize(
    ("verdict", "none"),
    [
        (HOLDS, gradients("none", (0.5, 0.1, 1e-6))),
        (FAILS, gradients("none", (9.0, 1.0, 0.3))),
        (FAILS, gradients("none", (1.0, 0.5, 0.1))),
        (DEPENDS, gradients("none", (9.0, 0.1, 1e-6))),
        (OPEN, gradients("none", (1.0, 0.5, 0.1), (0.9, -0.7, 0.5, -1.1, 0.2))),
        (OPEN, arm("none", 0.3)),
    ],
)
def test_gradients_in_training(verdict: str, none: list[Run]) -> None:
    assert judged(mechanism.gradients, none, SQRT).verdict == verdict


def test_gradients_are_compared_at_one_rate() -> None:
    # At its own best rate none's gradient is as large as that of sqrt; at sqrt's it is gone.
    gone = [(step, 1e-6 * (1 + x)) for step in range(30) for x in [0.0]]
    none = [
        *by_seed("none", [{"grad_norm/q": gone}] * SEEDS, rates=[0.1]),
        *by_seed(
            "none",
            [{"grad_norm/q": [(s, 1.0) for s in range(30)]}] * SEEDS,
            rates=[0.01],
            best=0.01,
        ),
    ]
    assert judged(mechanism.gradients, none, SQRT).verdict == HOLDS


# --- claim 5 ---


def growing(
    slopes: Sequence[float],
    noise: Sequence[float] = NOISE,
    permuted: Sequence[float] = (0.0, 0.0, 0.0),
    **more: Any,
) -> list[Run]:
    """Return sqrt at three d_k, with slopes of ln score_std_relative at 0, 10 and 100 %."""
    runs = []
    for d_k in (16, 64, 256):
        curves = [
            {
                f"attention/a{layer}/{name}": [
                    (step, math.exp((slope + own) * math.log(d_k) + layer))
                    for step, slope in zip((0, 30, 300), values, strict=True)
                ]
                for layer in (0, 1)
                for name, values, own in (
                    ("score_std_relative", slopes, x),
                    ("score_std_permuted", permuted, 0.0),
                )
            }
            for x in noise
        ]
        runs += by_seed("sqrt", curves, d_k=d_k, **more)
    return runs


@pytest.mark.parametrize(
    ("verdict", "runs"),
    [
        (HOLDS, growing((0.0, 0.0, 0.0))),
        (FAILS, growing((0.2, 0.3, 0.5))),
        (DEPENDS, growing((0.0, 0.3, 0.5))),
        (OPEN, growing((0.0, 0.0, 0.0), (0.3, -0.2, 0.4, -0.3, 0.1))),
        # Preferred directions: both grow faster than ½, and alike.
        (HOLDS, growing((0.0, 0.2, 0.3), permuted=(0.0, 0.2, 0.3))),
        (OPEN, arm("sqrt", 0.2)),
    ],
)
def test_independence(verdict: str, runs: list[Run]) -> None:
    assert judged(mechanism.growth, runs).verdict == verdict


def test_sizes_are_compared_at_equal_initialisation() -> None:
    unit, torch = {"model.init": "unit"}, {"model.init": "torch"}
    runs = [*growing((0.0,) * 3, parameters=unit), *growing((0.5,) * 3, parameters=torch)]
    judgement = judged(mechanism.growth, runs)
    assert judgement.verdict == DEPENDS
    assert (
        "experiment init=unit, exponent at 0 % of training, − that of permuted keys +0.0002"
        in judgement.value
    )


def test_the_exponent_and_its_null_are_told_at_three_moments() -> None:
    runs = growing((0.0, 0.3, 0.5), permuted=(0.0, 0.0, 0.25))
    value = judged(mechanism.growth, runs).value
    for share, difference in ((0, "+0.0002"), (10, "+0.3"), (100, "+0.25")):
        assert f"exponent at {share} % of training, − that of permuted keys {difference}" in value
    assert "exponent at 100 % of training: 1" in value
    absent = judged(mechanism.growth, arm("sqrt", 0.2), arm("sqrt", 0.2, d_k=64)).value
    assert "missing: attention/*/score_std_relative" in absent


@pytest.mark.parametrize(
    ("verdict", "bests"),
    [
        (HOLDS, (0.1, 0.1, 0.1)),
        (FAILS, (0.3, 0.1, 0.03)),
        # An end of the grid.
        (OPEN, (1.0, 0.1, 0.1)),
        (OPEN, (0.01, 0.01, 0.01)),
    ],
)
def test_one_rate_for_all_sizes(verdict: str, bests: Sequence[float]) -> None:
    rates = (0.01, 0.03, 0.1, 0.3, 1.0)
    runs = [
        run
        for d_k, best in zip((16, 64, 256), bests, strict=True)
        for run in arm("sqrt", 0.2, d_k=d_k, best=best, rates=rates)
    ]
    judgement = judged(mechanism.transfer, runs)
    assert judgement.verdict == verdict, judgement.value


def test_the_best_rate_of_inverse_is_told_beside_and_not_judged() -> None:
    runs = [
        run
        for d_k, best in ((16, 0.1), (256, 0.3))
        for scale in ("sqrt", "inverse")
        for run in arm(
            scale,
            0.2,
            d_k=d_k,
            best=best if scale == "inverse" else 0.1,
            rates=(0.01, 0.1, 0.3, 1.0),
        )
    ]
    judgement = judged(mechanism.transfer, runs)
    assert judgement.verdict == HOLDS
    # ln 3 / ln 16.
    assert f"inverse +{math.log(3) / math.log(16):.3g}" in judgement.value


def test_without_an_effect_none_is_found() -> None:
    def sweep(generator: np.random.Generator) -> list[Run]:
        return [
            run
            for scale in ("none", "sqrt")
            for run in gradients(scale, (1.0, 0.5, 0.1), list(0.5 * generator.standard_normal(4)))
        ]

    counts = count(mechanism.gradients, sweep)
    assert counts.get(HOLDS, 0) + counts.get(DEPENDS, 0) <= ALLOWED, counts


def test_independent_q_and_k_are_not_called_dependent() -> None:
    def sweep(generator: np.random.Generator) -> list[Run]:
        return growing((0.0, 0.0, 0.0), list(0.2 * generator.standard_normal(4)), rates=RATES[1:2])

    counts = count(mechanism.growth, sweep)
    assert counts.get(FAILS, 0) + counts.get(DEPENDS, 0) <= ALLOWED, counts


def test_one_rate_that_serves_all_is_not_called_another() -> None:
    rates = (0.01, 0.03, 0.1, 0.3, 1.0)

    def sweep(generator: np.random.Generator) -> list[Run]:
        return [
            trained_run(
                scale="sqrt",
                d_k=d_k,
                lr=lr,
                seed=seed,
                loss=0.2 + 0.02 * math.log(lr / 0.1) ** 2 + 0.03 * generator.standard_normal(),
            )
            for d_k in (16, 64, 256)
            for lr in rates
            for seed in range(5)
        ]

    counts = count(mechanism.transfer, sweep)
    assert counts.get(FAILS, 0) + counts.get(DEPENDS, 0) <= ALLOWED, counts
