"""Sweeps in which nothing has an effect: how often the answer finds one all the same.

Seeds are fixed beforehand: a loss is a seed's own part (deviation 0.1), noise (0.05) and, where the
sweep is curved, a loss over rates that is the same for all. Every finding is false.
"""

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from attnscale.analysis.settings import make_grid
from attnscale.report.answer import make_answer
from attnscale.tracking.runs import Run

SCALES = ("sqrt", "none", "folded", "learned", "mup", "inverse")
CURVATURE = 0.02


def sweep(
    rng: np.random.Generator, rates: Mapping[str, int], seeds: int, curved: bool
) -> list[Run]:
    """Return runs of some scales, each with its number of rates."""
    of_seed = rng.normal(0, 0.1, seeds)
    runs = []
    for scale, rate, seed in (
        (scale, rate, seed)
        for scale, n in rates.items()
        for rate, seed in itertools.product(range(n), range(seeds))
    ):
        loss = 1 + of_seed[seed] + rng.normal(0, 0.05) + curved * CURVATURE * (rate - 2) ** 2
        parameters = {
            "attention.scale": scale,
            "optimizer.lr": str(1e-3 * 4**rate),
            "seed": str(seed),
            # Without a margin, so that nothing is called equivalent.
            "margin.relative": "0",
        }
        name = f"{scale} {rate} {seed}"
        runs.append(Run(run_id=name, parameters=parameters, metrics={"val/best_loss": loss}))
    return runs


def findings(
    sweeps: int, rates: Mapping[str, int], seeds: int, curved: bool = False
) -> Counter[str]:
    """Count the sweeps with a finding: in the headline, in the first family, at equal rates."""
    rng = np.random.default_rng(1)
    counts: Counter[str] = Counter()
    for _ in range(sweeps):
        answer = make_answer(make_grid(sweep(rng, rates, seeds, curved)))
        told = [] if answer.headline is None else [answer.headline]
        for name, comparisons in (
            ("headline", told),
            ("at best", answer.at_best),
            ("at equal rates", answer.comparisons),
        ):
            counts[name] += any(c.difference.better is not None for c in comparisons)
        counts["told"] += len(told)
    return counts


def limit(sweeps: int) -> float:
    """Return three standard errors above 5 %: 40 of 500."""
    return 0.05 * sweeps + 3 * math.sqrt(0.05 * 0.95 * sweeps)


def check(counts: Counter[str], sweeps: int) -> None:
    assert limit(500) < 40
    for name in ("headline", "at best", "at equal rates"):
        assert counts[name] <= limit(sweeps), counts


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("rates", [1, 5])
def test_without_an_effect_hardly_any_sweep_has_a_finding(rates: int, seeds: int) -> None:
    counts = findings(200, {"sqrt": rates, "none": rates}, seeds)
    check(counts, 200)
    assert counts["told"] == 200


@pytest.mark.slow
@pytest.mark.parametrize("arms", [2, 6])
@pytest.mark.parametrize(("rates", "curved"), [(1, False), (5, False), (5, True)])
@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_the_whole_design_without_an_effect(
    arms: int, rates: int, seeds: int, curved: bool
) -> None:
    check(findings(500, dict.fromkeys(SCALES[:arms], rates), seeds, curved), 500)


@pytest.mark.parametrize("seeds", [4, 10])
@pytest.mark.parametrize("rates", [{"sqrt": 1, "none": 12}, {"sqrt": 12, "none": 1}])
def test_more_rates_of_one_arm_make_no_finding(rates: dict[str, int], seeds: int) -> None:
    """Best against best over all seeds would find one in 20 to 29 of these 200."""
    counts = findings(200, rates, seeds)
    check(counts, 200)
    assert counts["told"] == 200


@pytest.mark.parametrize("rates", [{"sqrt": 1, "none": 5}, {"folded": 1, "none": 5}])
def test_with_few_seeds_and_unequal_grids_nothing_is_claimed(rates: dict[str, int]) -> None:
    rng = np.random.default_rng(1)
    answer = make_answer(make_grid(sweep(rng, rates, 3, curved=False)))
    assert (answer.headline, answer.at_best) == (None, ())
    (told,) = [text for text in answer.sentences if text.startswith("At their best nothing is")]
    assert "scale=none" in told


def test_a_real_effect_is_found_in_most_sweeps() -> None:
    """Two standard deviations of the noise, ten seeds: the rule is not silence."""
    rng = np.random.default_rng(1)
    better = 0
    for _ in range(50):
        runs = sweep(rng, {"sqrt": 5, "none": 5}, 10, curved=True)
        losses: list[Any] = [run.metrics for run in runs if run.scale == "none"]
        for metrics in losses:
            metrics["val/best_loss"] -= 0.1
        headline = make_answer(make_grid(runs)).headline
        better += headline is not None and headline.difference.better is True
    assert better >= 45
