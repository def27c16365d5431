"""Planted sweeps, and how often a judge finds what is not there."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attnscale.analysis.rates import Results
from attnscale.claims.judgement import Judgement
from attnscale.tracking.runs import Run
from tests.support.runs import trained_run

RATES = (0.01, 0.1, 1.0)
NOISE = (0.0, 0.003, -0.002, 0.001, -0.001)
"""What a seed adds to a loss, as a share of it."""

Losses = float | Sequence[float | None]

SWEEPS, ALLOWED = 300, 26
"""Sweeps without an effect, and how many may find one: of 300 with 5 % each, 26 or fewer in 99.6 %
(binomial)."""


def arm(
    scale: str,
    losses: Losses,
    *,
    best: float = 0.1,
    rates: Sequence[float] = RATES,
    **more: Any,
) -> list[Run]:
    """Return the runs of an arm: at its best rate the losses, at the others twice as much.

    Args:
        scale: ``attention.scale``.
        losses: By seed, None for a diverged run; a number is a mean, which each seed varies.
        best: Its best rate.
        rates: All of its rates.
        more: Arguments of ``trained_run``.
    """
    if isinstance(losses, float):
        losses = [losses * (1 + x) for x in NOISE]
    given: dict[str, Any] = {"d_k": 128, "start_loss": 1.0, **more}
    return [
        trained_run(
            scale=scale,
            lr=lr,
            seed=seed,
            loss=loss if lr == best or loss is None else min(2 * loss, 0.95),
            **given,
        )
        for lr in rates
        for seed, loss in enumerate(losses)
    ]


def judged(judge: Callable[[Results], Judgement], *groups: Sequence[Run]) -> Judgement:
    return judge({"experiment": [run for group in groups for run in group]})


def count(
    judge: Callable[[Results], Judgement],
    sweep: Callable[[np.random.Generator], Sequence[Run]],
) -> Mapping[str, int]:
    """Return how often each verdict comes, of :data:`SWEEPS` sweeps."""
    generator = np.random.default_rng(20)
    verdicts = [judged(judge, sweep(generator)).verdict for _ in range(SWEEPS)]
    return {verdict: verdicts.count(verdict) for verdict in set(verdicts)}
