"""Speed, convergence and generalisation without the factor: planted curves."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from attnscale.analysis.rates import Results
from attnscale.attention import Attended, tapped
from attnscale.attention.stats import measure, sample_of
from attnscale.claims import convergence
from attnscale.claims.findings import NO_ATTENTION
from attnscale.claims.judgement import DEPENDS, FAILS, HOLDS, OPEN, Judgement
from attnscale.tracking.runs import Run
from tests.claims.sweeps import ALLOWED, arm, count, judged
from tests.support import models

Judge = Callable[[Results], Judgement]

UNIFORM = arm("1e-20", 0.6)
WIDE = (0.5, 2.0, 0.8, 1.5, 1.0)


def falling(
    scale: str, steps: Sequence[float] | float, *, floor: float = 0.2, **more: Any
) -> list[Run]:
    """Return an arm whose loss falls from 1 to a floor in so many steps, by seed."""
    by_seed = [steps] * 5 if isinstance(steps, float) else steps
    runs = []
    for seed, end in enumerate(by_seed):
        curve = [(step, max(1 - (1 - floor) * step / end, floor)) for step in range(20, 301, 20)]
        every = arm(scale, [floor] * (seed + 1), curve=curve, **more)
        runs += [run for run in every if run.seed == seed]
    return runs


@pytest.mark.parametrize(
    ("verdict", "none"),
    [
        (HOLDS, falling("none", [150.0, 160.0, 155.0, 170.0, 140.0])),
        (FAILS, falling("none", [51.0, 49.0, 52.0, 50.0, 48.0])),
        (FAILS, falling("none", [100.0, 101.0, 99.0, 102.0, 100.0])),
        (OPEN, falling("none", [100 * x for x in WIDE])),
        (OPEN, falling("none", [150.0])),
        (OPEN, falling("none", [150.0, 160.0, 155.0, 170.0, 140.0], best=1.0)),
        # It never comes as far as 90 %: slower, all the same.
        (HOLDS, falling("none", 150.0, floor=0.5)),
    ],
)
def test_more_slowly(verdict: str, none: list[Run]) -> None:
    judgement = judged(convergence.slower(above=64), none, falling("sqrt", 100.0))
    assert judgement.verdict == verdict, judgement.value


def test_slowness_is_judged_above_a_size_and_says_the_ratio() -> None:
    small = [*falling("none", 300.0, d_k=64), *falling("sqrt", 100.0, d_k=64)]
    assert judged(convergence.slower(above=64), small) == Judgement(
        OPEN, "missing: arms none and sqrt"
    )
    judgement = judged(convergence.slower(above=0), small)
    assert judgement.verdict == HOLDS
    assert "steps of none 3 times sqrt's to 50 %, 3 times sqrt's to 90 %" in judgement.value
    never = judged(
        convergence.slower(above=0), falling("none", 150.0, floor=0.5), falling("sqrt", 100.0)
    )
    assert "no pair to 90 % (5 never get there)" in never.value


def test_runs_that_stop_where_the_reference_arrives_are_not_called_alike() -> None:
    # Both train 300 steps; sqrt reaches 90 % near the end, none stops after half of the way.
    none, sqrt = falling("none", 322.0, floor=0.2), falling("sqrt", 322.0)
    assert judged(convergence.slower(above=64), none, sqrt).verdict == FAILS
    # Half of the way is as long, within a tenth; the last step is no arrival.
    late, never = ([(280, 1.0), (300, end)] for end in (0.2, 0.55))
    arms = arm("sqrt", 0.2, curve=late), arm("none", 0.55, curve=never)
    assert judged(convergence.slower(above=64), *arms).verdict == DEPENDS


def test_a_best_rate_at_an_end_says_nothing_of_speed_for_either() -> None:
    none = falling("none", [150.0, 160.0, 155.0, 170.0, 140.0])
    assert (
        judged(convergence.slower(above=64), none, falling("sqrt", 100.0, best=1.0)).verdict == OPEN
    )


# --- not at all ---

SQRT = arm("sqrt", 0.2)


@pytest.mark.parametrize(
    ("verdict", "groups"),
    [
        (FAILS, [arm("none", 0.3)]),
        (HOLDS, [arm("none", 0.7)]),
        # Better than without attention, by less than δ, 2 % of 0.2.
        (HOLDS, [arm("none", [0.598] * 5)]),
        (DEPENDS, [arm("none", [0.3, 0.9, 0.3])]),
        (HOLDS, [arm("none", [None] * 5)]),
        (DEPENDS, [arm("none", [0.3, 0.3, None])]),
        # Another rate might rescue it; where it has learned, no other matters.
        (OPEN, [arm("none", 0.7, best=1.0)]),
        (FAILS, [arm("none", 0.3, best=1.0)]),
        # The claim is about d_k above 64 only.
        (OPEN, [arm(s, x, d_k=64) for s, x in (("none", 0.9), ("sqrt", 0.2), ("1e-20", 0.6))]),
    ],
)
def test_not_at_all(verdict: str, groups: list[list[Run]]) -> None:
    judgement = judged(convergence.not_at_all, SQRT, UNIFORM, *groups)
    assert judgement.verdict == verdict, judgement.value


def test_without_the_arm_without_attention_nothing_is_said_of_convergence() -> None:
    judgement = judged(convergence.not_at_all, SQRT, arm("none", 0.3))
    assert judgement.verdict == OPEN
    assert "missing: attention.scale=1e-20" in judgement.value
    at_end = arm("1e-20", 0.6, best=1.0)
    assert judged(convergence.not_at_all, SQRT, at_end, arm("none", 0.3)).verdict == OPEN
    assert judged(convergence.not_at_all, SQRT, at_end, arm("none", 0.7)).verdict == HOLDS


def test_where_sqrt_learns_nothing_the_task_does_not_tell() -> None:
    flat = arm("sqrt", 0.6)
    assert judged(convergence.not_at_all, flat, UNIFORM, arm("none", 0.6)).verdict == OPEN


def test_sizes_that_disagree_depend() -> None:
    wide = [*arm("sqrt", 0.2, d_k=512), *arm("1e-20", 0.6, d_k=512), *arm("none", 0.9, d_k=512)]
    assert judged(convergence.not_at_all, SQRT, UNIFORM, arm("none", 0.3), wide).verdict == DEPENDS


def test_runs_that_learn_nothing_are_counted_beside_the_diverged() -> None:
    # sqrt improves by 0.8; 0.95 is less than a fifth of that below 1, and so are its other rates.
    none = [
        *arm("none", [0.3, 0.95, None], rates=[0.1]),
        *arm("none", [0.5] * 3, rates=[0.01], best=0.01),
    ]
    value = judged(convergence.not_at_all, SQRT, UNIFORM, none).value
    assert "at all rates 1 of 6 runs diverged and 1 learned less than 20 %" in value


@pytest.mark.parametrize("scale", [f"{NO_ATTENTION}", "sqrt"])
def test_a_factor_of_1e_20_is_no_attention(scale: str) -> None:
    torch.manual_seed(0)
    model = models.transformer(NO_ATTENTION if scale != "sqrt" else scale, d_model=32, d_k=64)
    tokens = torch.randint(1, 20, (4, 9))
    taps: list[Attended] = []
    with torch.no_grad(), tapped(model, lambda _, attended: taps.append(attended)):
        logits = model(tokens, tokens, 0)
    assert logits.isfinite().all()
    entropies = [measure(sample_of([tap]), ["entropy_norm"])["entropy_norm"] for tap in taps]
    assert len(entropies) == 6
    uniform = all(bool((1 - entropy < 1e-6).all()) for entropy in entropies)
    assert uniform == (scale != "sqrt")


# --- generalisation ---


def trained(scale: str, gaps: Sequence[float], *, steps: int = 300, **more: Any) -> list[Run]:
    """Return an arm whose training loss falls to 0.1, below its validation loss by a gap."""
    runs = []
    for seed, gap in enumerate(gaps):
        line = [(step, max(1 - 0.9 * step / steps, 0.1)) for step in range(10, 301, 10)]
        curves = {"train/loss": line}
        held_out = [(step, loss + gap) for step, loss in line[1::2]]
        every = arm(scale, [0.2] * (seed + 1), curve=held_out, curves=curves, **more)
        runs += [run for run in every if run.seed == seed]
    return runs


GAPS = (0.05, 0.052, 0.051, 0.049, 0.048)


@pytest.mark.parametrize(
    ("verdict", "none"),
    [
        (HOLDS, trained("none", [gap + 0.1 for gap in GAPS])),
        (FAILS, trained("none", [gap - 0.1 for gap in GAPS])),
        (FAILS, trained("none", GAPS)),
        (OPEN, trained("none", [0.05, 0.3, 0.0, 0.2, -0.1])),
        (OPEN, trained("none", [gap + 0.1 for gap in GAPS], best=1.0)),
    ],
)
def test_generalises_better(verdict: str, none: list[Run]) -> None:
    assert judged(convergence.generalises, none, trained("sqrt", GAPS)).verdict == verdict


def test_what_trains_more_slowly_does_not_generalise_worse() -> None:
    # At the end none's loss is 0.4 above sqrt's on both sets.
    slow = trained("none", GAPS, steps=540)
    assert judged(convergence.generalises, slow, trained("sqrt", GAPS)).verdict == FAILS
    assert judged(convergence.generalises, arm("none", 0.5), SQRT) == Judgement(
        OPEN, "missing: curves of none and sqrt"
    )


# --- no effect ---


def test_without_an_effect_no_arm_is_slower() -> None:
    def sweep(generator: np.random.Generator) -> list[Run]:
        return [
            run
            for scale in ("none", "sqrt")
            for run in falling(scale, list(100 * np.exp(0.2 * generator.standard_normal(4))))
        ]

    assert count(convergence.slower(above=64), sweep).get(HOLDS, 0) <= ALLOWED


def test_without_an_effect_none_generalises_better() -> None:
    def sweep(generator: np.random.Generator) -> list[Run]:
        return [
            run
            for scale in ("none", "sqrt")
            for run in trained(scale, list(0.1 + 0.03 * generator.standard_normal(4)))
        ]

    assert count(convergence.generalises, sweep).get(HOLDS, 0) <= ALLOWED


@pytest.mark.parametrize("loss", [0.2, 0.9], ids=["both learn", "neither learns"])
def test_a_model_without_the_factor_that_does_as_well_is_not_called_one_that_does_not_converge(
    loss: float,
) -> None:
    def sweep(generator: np.random.Generator) -> list[Run]:
        losses = {"none": loss, "sqrt": loss, "1e-20": 0.9}
        return [
            run
            for scale, mean in losses.items()
            for run in arm(scale, list(mean * (1 + 0.05 * generator.standard_normal(5))))
        ]

    assert count(convergence.not_at_all, sweep).get(HOLDS, 0) <= ALLOWED
