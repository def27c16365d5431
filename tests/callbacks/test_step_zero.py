"""Untrained models: entropy and largest weight against those of normal logits.

A row's logits are, given its query, normal with a deviation of its own,

    β_i = factor · ‖q_i‖ · k_rms · √(1 − c̄_i),    c̄_i the mean cosine of the row's inputs,

and queries differ in length (by a quarter at d_k = 16). The simulation draws, for each counted row,
n_i independent normal logits with β_i, not with one β for all rows.
The spread of the logits, mode by mode, is looked at in ``tests/model/test_step_zero.py``; here it
is compared with what the callbacks record.
"""

import math
from collections.abc import Callable
from statistics import mean, stdev
from typing import NamedTuple

import jaxtyping
import pytest
import torch
from scipy.stats import t as student
from torch import Tensor, nn

from attnscale.attention import Attended
from attnscale.attention.stats import Sample, counted_rows, measure, predicted_std
from attnscale.model.layers import INITS
from tests.support.step_zero import SEEDS, autoencoder, transformer

DRAWS = 4
FACTORS: dict[str, Callable[[int], float]] = {
    "sqrt": lambda d_k: d_k**-0.5,
    "none": lambda _: 1.0,
    "inverse": lambda d_k: 1 / d_k,
}
ALL = [(scale, init, d_k) for scale in FACTORS for init in INITS for d_k in (16, 64, 512)]
FAST = [one for one in ALL if one[0] != "inverse" and one[2] < 512]
SLOW = [one for one in ALL if one not in FAST]


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    # Hundreds of models: checking the shapes, as other tests do, would take most of the time.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    monkeypatch.setattr(jaxtyping, "jaxtyped", lambda **_: lambda function: function)


class Compared(NamedTuple):
    """Measured and expected of one attention and seed."""

    deviation: float
    entropy_norm: tuple[float, float]
    p_max: tuple[float, float]


def simulate(seen: Attended, keep: Tensor, rows: Tensor, factor: float) -> tuple[float, float]:
    """Return entropy_norm and p_max of normal logits with each row's own n and β."""
    assert seen.x is not None
    n = keep.sum(dim=-1)
    unit = nn.functional.normalize(seen.x, dim=-1)
    kept = keep.float()
    total = kept @ unit[:, None]
    cosines = (total.square().sum(dim=-1) - n) / (n * (n - 1)).clamp_min(1)
    used = (keep & rows[..., None]).any(dim=2)
    k_rms = seen.raw_k[used].square().mean().sqrt()
    beta = factor * seen.raw_q.norm(dim=-1) * k_rms * (1 - cosines).clamp_min(0).sqrt()
    logits = beta[..., None] * torch.randn(DRAWS, *keep.shape)
    weights = logits.masked_fill(~keep, -1e30).softmax(dim=-1)
    entropy = torch.special.entr(weights).sum(dim=-1) / n.clamp_min(2).log()
    largest = weights.amax(dim=-1)
    return float(entropy[:, rows].mean()), float(largest[:, rows].mean())


def compare(seen: Attended, real: Tensor, factor: float) -> Compared:
    keep, rows = counted_rows(seen, real)
    sample = Sample(
        weights=seen.weights(),
        logits=seen.logits(),
        keep=seen.keep,
        real_queries=real[:, None],
    )
    found = measure(sample, ("logit_std_row", "entropy_norm", "p_max"))
    spread = float(found["logit_std_row"].square().mean().sqrt())
    entropy, largest = simulate(seen, keep, rows, factor)
    return Compared(
        spread / predicted_std(seen, real),
        (float(found["entropy_norm"].mean()), entropy),
        (float(found["p_max"].mean()), largest),
    )


def look(model: str, scale: str, init: str, d_k: int) -> dict[str, list[Compared]]:
    """Return the comparisons of each attention, one per seed."""
    show = {"autoencoder": autoencoder, "transformer": transformer}[model]
    made: dict[str, list[Compared]] = {}
    for seed in range(SEEDS):
        for path, attended, real in show(scale, init, d_k, seed):
            made.setdefault(path, []).append(compare(attended, real, FACTORS[scale](d_k)))
    return made


def interval(values: list[float]) -> float:
    """Return half the width of the 95 % interval of the mean."""
    return float(student.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))


def check(model: str, scale: str, init: str, d_k: int) -> None:
    found = look(model, scale, init, d_k)
    assert len(found) == {"autoencoder": 1, "transformer": 3}[model]
    off = []
    for path, seeds in found.items():
        ratios = [one.deviation for one in seeds]
        entropies = [one.entropy_norm[0] - one.entropy_norm[1] for one in seeds]
        largest = [one.p_max[0] - one.p_max[1] for one in seeds]
        text = (
            f"{model} {path} {scale} {init} {d_k}: "
            f"deviation ÷ predicted {mean(ratios):.3f} ± {interval(ratios):.3f}, "
            f"entropy_norm {mean(entropies):+.4f} ± {interval(entropies):.4f}, "
            f"p_max {mean(largest):+.4f} ± {interval(largest):.4f}"
        )
        print(text)  # noqa: T201 -- shown with -s
        if abs(mean(ratios) - 1) > 0.05 or max(abs(mean(entropies)), abs(mean(largest))) > 0.02:
            off.append(text)
    assert not off, "\n".join(off)


@pytest.mark.parametrize("model", ["autoencoder", "transformer"])
@pytest.mark.parametrize(("scale", "init", "d_k"), FAST)
def test_figures_at_step_zero(model: str, scale: str, init: str, d_k: int) -> None:
    check(model, scale, init, d_k)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["autoencoder", "transformer"])
@pytest.mark.parametrize(("scale", "init", "d_k"), SLOW)
def test_more_figures_at_step_zero(model: str, scale: str, init: str, d_k: int) -> None:
    check(model, scale, init, d_k)
