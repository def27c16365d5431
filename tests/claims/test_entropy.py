"""Low entropy with a higher loss, before it, and as its cause: planted runs."""

from collections.abc import Sequence

import numpy as np
import pytest

from attnscale.claims import entropy
from attnscale.claims.judgement import DEPENDS, FAILS, HOLDS, OPEN
from attnscale.tracking.runs import Run
from tests.claims.sweeps import ALLOWED, arm, count, judged
from tests.support.runs import trained_run

RATES = {0.01: 1.0, 0.1: 0.5}
"""Rate -> what it makes of the loss, which is no business of the entropy."""


def runs(pairs: Sequence[tuple[float, float]], kind: str = "self") -> list[Run]:
    """Return runs of two rates with pairs of last entropy and loss."""
    metric = f"attention/encoder.0.{kind}/entropy_norm"
    return [
        trained_run(lr=lr, seed=seed, loss=times * loss, curves={metric: [(300, own), (0, 0.9)]})
        for lr, times in RATES.items()
        for seed, (own, loss) in enumerate(pairs)
    ]


UNIFORM = {"attention/encoder.0.self/entropy_norm": [(0, 1.0), (300, 1.0)]}
RISING = [(0.2, 0.1), (0.4, 0.2), (0.5, 0.24), (0.8, 0.3), (0.9, 0.5)]
LEVEL = [(0.2, 0.3), (0.4, 0.1), (0.5, 0.4), (0.8, 0.35), (0.9, 0.2)]


@pytest.mark.parametrize(
    ("verdict", "groups"),
    [
        (FAILS, [runs(RISING)]),
        (HOLDS, [runs([(1 - h, loss) for h, loss in RISING])]),
        (OPEN, [runs(LEVEL)]),
        # r = 0.8 of ten runs.
        (FAILS, [runs([(0.2, 0.1), (0.4, 0.25), (0.5, 0.15), (0.8, 0.3), (0.9, 0.25)])]),
        (OPEN, [runs(RISING[:1])]),
        (OPEN, [arm("sqrt", 0.2)]),
        (DEPENDS, [runs(RISING, "cross"), runs([(1 - h, loss) for h, loss in RISING])]),
    ],
)
def test_entropy_and_loss_at_one_rate(verdict: str, groups: list[list[Run]]) -> None:
    judgement = judged(entropy.correlation, *groups)
    assert judgement.verdict == verdict, judgement.value


def test_kinds_of_attention_are_one_family() -> None:
    # r = 0.69 of ten runs: p = 0.04 alone, 0.08 of two.
    weak = [(0.2, 0.1), (0.4, 0.27), (0.5, 0.12), (0.8, 0.3), (0.9, 0.25)]
    assert judged(entropy.correlation, runs(weak)).verdict == FAILS
    assert judged(entropy.correlation, runs(weak), runs(weak, "cross")).verdict == OPEN


def test_runs_without_attention_are_no_runs_of_high_entropy() -> None:
    flat = [
        trained_run(scale="1e-20", lr=lr, seed=seed, loss=0.9, curves=UNIFORM)
        for lr in RATES
        for seed in range(5)
    ]
    assert judged(entropy.correlation, runs(LEVEL), flat).verdict == OPEN
    assert judged(entropy.correlation, flat, runs(RISING[:1])).verdict == OPEN
    assert "missing" in judged(entropy.correlation, flat).value


def test_what_the_rate_does_to_both_is_no_correlation() -> None:
    # The higher rate has lower entropy and lower loss; within a rate there is nothing.
    metric = "attention/a.self/entropy_norm"
    both = [
        trained_run(
            lr=lr, seed=seed, loss=times * loss, curves={metric: [(300, times * (0.5 + h / 50))]}
        )
        for lr, times in RATES.items()
        for seed, (h, loss) in enumerate([(0.2, 0.3), (0.4, 0.29), (0.5, 0.31), (0.3, 0.3)])
    ]
    assert judged(entropy.correlation, both).verdict == OPEN


def shaken(steps: Sequence[float], ahead: int) -> dict[str, list[tuple[int, float]]]:
    """Return curves whose loss rises where the entropy has fallen so many samples before."""
    h = 0.5 + 0.01 * np.cumsum(steps)
    loss = 1 - np.roll(h, ahead)
    return {
        "attention/encoder.0.self/entropy_norm": [(10 * i, float(x)) for i, x in enumerate(h)],
        "train/loss": [(10 * i + j, float(x)) for i, x in enumerate(loss) for j in (1, 5)],
    }


def led(ahead: int, generator: np.random.Generator, seeds: int = 4) -> list[Run]:
    return [
        trained_run(
            seed=seed, loss=0.2, curves=shaken(generator.standard_normal(16).tolist(), ahead)
        )
        for seed in range(seeds)
    ]


@pytest.mark.parametrize(("verdict", "ahead"), [(HOLDS, 1), (FAILS, -1), (OPEN, 0), (OPEN, 6)])
def test_what_comes_first(verdict: str, ahead: int) -> None:
    assert judged(entropy.lead, led(ahead, np.random.default_rng(3))).verdict == verdict


def test_few_samples_and_runs_without_statistics_say_nothing_of_what_comes_first() -> None:
    short = [
        trained_run(seed=seed, loss=0.2, curves=shaken([1.0, -1.0, 2.0, 0.5], 1)) for seed in (0, 1)
    ]
    for group in (short, arm("sqrt", 0.2)):
        judgement = judged(entropy.lead, group)
        assert judgement.verdict == OPEN
        assert "missing: 5 samples" in judgement.value


def constant(scale: float, own: float, loss: float | Sequence[float]) -> list[Run]:
    return arm(f"{scale}", loss, curves={"attention/a/entropy_norm": [(0, 0.9), (300, own)]})


@pytest.mark.parametrize(
    ("verdict", "arms"),
    [
        (HOLDS, [constant(4.0, 0.2, 0.4), constant(1.0, 0.5, 0.2), constant(0.1, 0.8, 0.3)]),
        (FAILS, [constant(4.0, 0.2, 0.2), constant(1.0, 0.5, 0.2), constant(0.1, 0.8, 0.3)]),
        (DEPENDS, [constant(4.0, 0.2, 0.3), constant(1.0, 0.5, 0.2), constant(0.1, 0.8, 0.4)]),
        (OPEN, [constant(4.0, 0.2, [0.1, 0.9, 0.3]), constant(1.0, 0.5, 0.2)]),
        (OPEN, [constant(4.0, 0.2, 0.4), arm("sqrt", 0.2)]),
        # No attention at all is no intervention on its entropy.
        (OPEN, [constant(4.0, 0.2, 0.4), constant(1e-20, 1.0, 0.9)]),
    ],
)
def test_entropy_held_low(verdict: str, arms: list[list[Run]]) -> None:
    assert judged(entropy.intervention, *arms).verdict == verdict


def bounded(option: float, own: float, loss: float) -> list[Run]:
    parameters = {"attention.options.cosine_fixed.factor": f"{option}"}
    curves = {"attention/a/entropy_norm": [(0, 0.9), (300, own)]}
    return arm("cosine_fixed", loss, curves=curves, parameters=parameters)


@pytest.mark.parametrize(("verdict", "losses"), [(HOLDS, (0.2, 0.3)), (FAILS, (0.3, 0.2))])
def test_entropy_held_by_an_option(verdict: str, losses: tuple[float, float]) -> None:
    sweep = bounded(1.0, 0.8, losses[0]), bounded(16.0, 0.2, losses[1])
    judgement = judged(entropy.intervention, *sweep)
    assert judgement.verdict == verdict
    assert "factor=16.0 (entropy 0.2) − " in judgement.value


def test_without_an_effect_none_is_found() -> None:
    def unrelated(generator: np.random.Generator) -> list[Run]:
        h, loss = generator.random(5), 0.2 * np.exp(0.3 * generator.standard_normal((2, 5)))
        metric = "attention/a.self/entropy_norm"
        return [
            trained_run(lr=lr, seed=seed, loss=loss[i, seed], curves={metric: [(9, h[seed])]})
            for i, lr in enumerate(RATES)
            for seed in range(5)
        ]

    def apart(generator: np.random.Generator) -> list[Run]:
        return led(6, generator)

    def alike(generator: np.random.Generator) -> list[Run]:
        losses = 0.2 * np.exp(0.1 * generator.standard_normal((3, 4)))
        return [
            run
            for (scale, own), of_arm in zip(
                ((4.0, 0.2), (1.0, 0.5), (0.1, 0.8)), losses, strict=True
            )
            for run in constant(scale, own, of_arm.tolist())
        ]

    for judge, sweep in (
        (entropy.correlation, unrelated),
        (entropy.lead, apart),
        (entropy.intervention, alike),
    ):
        counts = count(judge, sweep)
        assert counts.get(HOLDS, 0) + counts.get(DEPENDS, 0) <= ALLOWED, counts
