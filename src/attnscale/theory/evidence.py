"""The computations that settle claims without long training.

reparametrisation   softmax((c W_q x)·k) = softmax(c · (W_q x)·k)
folding             50 steps of a small autoencoder in float64, from the same function
gradient            rms ‖∂L/∂q‖ of a random loss, none ÷ sqrt
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from attnscale.attention import MultiHeadAttention, Scale, attend, attentions
from attnscale.attention.scale import CosineFixed, ScoreLayerNorm, Sqrt
from attnscale.model.autoencoder import AttentionAutoencoder
from attnscale.theory.estimates import Estimate, mean_of, scaled, seeded
from attnscale.theory.simulate import Growth
from attnscale.theory.simulate_logits import logits_of_rows
from attnscale.theory.simulate_softmax import gradient_statistics, softmax_statistics

SHIFTED = ((1.0, 0.5, -0.5), (10.0, 9.5, 8.5), (100.0, 99.5, 98.5))
"""Vectors that a popular tutorial calls increasingly sharp; their differences are equal."""

STEPS = 50


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Figures that verdicts are computed from.

    Attributes:
        largest_of_shifted: Smallest and largest of the largest weights of :data:`SHIFTED`, and the
            largest weight of ten times the first.
        gradient_ratios: (d_k, rms gradient of q none ÷ sqrt, live rows of none).
        initial_deviations: (initialisation, deviation of the logits under sqrt), real models.
        growth_at_start: Exponent of the scores' deviation over d_k, independent q and k.
        reformer_ratio: Logits of Reformer's formula ÷ those of sqrt, keys of unit RMS.
        reparametrised: Largest difference of outputs.
        folding: (optimizer, largest relative difference of loss between folded and sqrt).
        adam_difference: The same between none and sqrt under Adam.
        cosine_deviations: (d_k, deviation of the logits of cosine_fixed).
        row_spread: Deviation over rows of the rows' deviation: score_layernorm, sqrt.
        subtracting: Largest change of a weight by a row constant.
        finite: (number format, share of finite outputs).
        inverse_entropy: H/ln n of inverse and of sqrt, d_k = 64.
    """

    largest_of_shifted: tuple[float, float, float]
    gradient_ratios: Sequence[tuple[int, Estimate, Estimate]]
    initial_deviations: Sequence[tuple[str, Estimate]]
    growth_at_start: Estimate
    reformer_ratio: float
    reparametrised: float
    folding: Sequence[tuple[str, float]]
    adam_difference: float
    cosine_deviations: Sequence[tuple[int, Estimate]]
    row_spread: tuple[Estimate, Estimate]
    subtracting: float
    finite: Sequence[tuple[str, float]]
    inverse_entropy: tuple[Estimate, Estimate]


def largest_of(vector: Sequence[float]) -> float:
    """Return the largest weight of a vector's softmax."""
    return float(torch.tensor(vector, dtype=torch.float64).softmax(dim=0).max())


def small_model(scale: str, *, d_k: int, seed: int) -> AttentionAutoencoder:
    """Return an untrained autoencoder of 32 components and two heads, in float64."""
    with seeded(seed):
        return AttentionAutoencoder(
            attention=partial(MultiHeadAttention, scale=scale),
            d_model=32,
            d_k=d_k,
            d_v=16,
            n_heads=2,
            n_layers=1,
            residual=False,
            norm="none",
            feed_forward=None,
            bias=False,
            dropout=0.0,
            init="unit",
        ).double()


def loss_curve(
    scale: str,
    make_optimizer: Callable[[list[Tensor]], torch.optim.Optimizer],
    *,
    d_k: int,
    seed: int,
    steps: int = STEPS,
) -> Tensor:
    """Train a small autoencoder on Gaussian sequences and return its losses, (step,)."""
    model = small_model(scale, d_k=d_k, seed=seed)
    optimizer = make_optimizer(list(model.parameters()))
    losses = []
    with seeded(seed + 1):
        for _ in range(steps):
            x = torch.randn(16, 8, 32, dtype=torch.float64)
            loss = functional.mse_loss(model(x), x)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.detach())
    return torch.stack(losses)


OPTIMIZERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "Adam": lambda ps: torch.optim.Adam(ps, lr=3e-3),
    "SGD": lambda ps: torch.optim.SGD(ps, lr=0.3),
    # Steps in proportion to the weights; the floors must not be what sets the step.
    "Adafactor": lambda ps: torch.optim.Adafactor(ps, lr=1e-2, eps=(1e-60, 1e-12)),
}


def _difference(a: Tensor, b: Tensor) -> float:
    return float(((a - b) / b).abs().max())


def _reparametrised(d_k: int, seed: int) -> float:
    plain, folded = (small_model(scale, d_k=d_k, seed=seed) for scale in ("sqrt", "none"))
    folded.load_state_dict(plain.state_dict())
    with torch.no_grad(), seeded(seed):
        for attention in attentions(folded).values():
            attention.q.weight.mul_(d_k**-0.5)
        x = torch.randn(16, 8, 32, dtype=torch.float64)
        return float((plain(x) - folded(x)).abs().max())


def _gradient_ratios(seed: int) -> list[tuple[int, Estimate, Estimate]]:
    made = []
    d_ks = (16, 64, 512)
    rows = {
        scale: gradient_statistics(d_ks, scale, n=14, draws=2000, seed=seed)
        for scale in ("sqrt", "none")
    }
    for scaled_row, row in zip(rows["sqrt"], rows["none"], strict=True):
        ratio = row.query.value / scaled_row.query.value
        # Independent relative errors add in squares; 1.96 is the normal quantile.
        parts = (row.query, scaled_row.query)
        error = ratio * math.sqrt(sum((x.error / x.value) ** 2 for x in parts))
        found = Estimate(ratio, error, ratio - 1.96 * error, ratio + 1.96 * error)
        made.append((row.d_k, found, row.live))
    return made


def _cosine(seed: int) -> list[tuple[int, Estimate]]:
    made = []
    for d_k in (64, 512):
        with seeded(seed):
            q, k = torch.randn(2000, d_k), torch.randn(2000, 14, d_k)
        rows = logits_of_rows(q, k, CosineFixed())
        made.append((d_k, mean_of(rows.std(dim=-1))))
    return made


def _row_spread(seed: int) -> tuple[Estimate, Estimate]:
    with seeded(seed):
        # Queries of several lengths, as trained ones have.
        q = torch.randn(2000, 64) * torch.rand(2000, 1).mul(1.5).exp()
        k = torch.randn(2000, 14, 64)
    found = []
    scales: tuple[Scale, ...] = (ScoreLayerNorm(n_heads=1), Sqrt())
    for scale in scales:
        deviations = logits_of_rows(q, k, scale).std(dim=-1).view(20, 100)
        found.append(mean_of(deviations.std(dim=-1)))
    return found[0], found[1]


def _finite(seed: int) -> list[tuple[str, float]]:
    made = []
    with seeded(seed):
        q, k, v = (10 * torch.randn(4, 2, 14, 1024) for _ in range(3))
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        out = attend(q.to(kind), k.to(kind), v.to(kind), scale="none")
        made.append((str(kind).removeprefix("torch."), float(out.isfinite().double().mean())))
    return made


def _reformer(seed: int) -> float:
    with seeded(seed):
        q, k = torch.randn(100, 64), torch.randn(100, 14, 64)
    k = k / k.square().mean(dim=-1, keepdim=True).sqrt()
    usual = logits_of_rows(q, k, "sqrt")
    # Kitaev et al. 2020 in the released code: keys of unit RMS, then divided by √d_k.
    normed = k / k.square().mean(dim=-1, keepdim=True).sqrt() * 64**-0.5
    theirs = (q[:, None] * normed).sum(dim=-1)
    return float((theirs / usual).median())


def _subtracting(seed: int) -> float:
    with seeded(seed):
        logits = torch.randn(100, 14, dtype=torch.float64)
    return float(((logits - 0.43 * math.log(14)).softmax(-1) - logits.softmax(-1)).abs().max())


def collect(
    *, growth: Sequence[Growth], initial: Sequence[tuple[str, Estimate]], seed: int
) -> Evidence:
    """Compute all figures; some seconds.

    Args:
        growth: Fits of independent q and k; that of "row" is used.
        initial: (initialisation, deviation under sqrt) of the real models.
        seed: Of all draws.
    """
    largest = [largest_of(vector) for vector in SHIFTED]
    curves = {
        (scale, rule): loss_curve(scale, make, d_k=64, seed=seed)
        for rule, make in OPTIMIZERS.items()
        for scale in ("sqrt", "folded")
    }
    unscaled = loss_curve("none", OPTIMIZERS["Adam"], d_k=64, seed=seed)
    flat, usual = softmax_statistics([1 / 8, 1.0], 14, draws=20_000, seed=seed)
    return Evidence(
        largest_of_shifted=(
            min(largest),
            max(largest),
            largest_of([10 * value for value in SHIFTED[0]]),
        ),
        gradient_ratios=_gradient_ratios(seed),
        initial_deviations=initial,
        growth_at_start=next(fit.exponent for fit in growth if fit.variance == "row"),
        reformer_ratio=_reformer(seed),
        reparametrised=_reparametrised(64, seed),
        folding=[
            (rule, _difference(curves["folded", rule], curves["sqrt", rule])) for rule in OPTIMIZERS
        ],
        adam_difference=_difference(unscaled, curves["sqrt", "Adam"]),
        cosine_deviations=_cosine(seed),
        row_spread=_row_spread(seed),
        subtracting=_subtracting(seed),
        finite=_finite(seed),
        inverse_entropy=(scaled(flat.entropy_norm, 1.0), scaled(usual.entropy_norm, 1.0)),
    )
