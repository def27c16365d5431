"""The computations that settle claims without long training.

reparametrisation   softmax((c W_q x)·k) = softmax(c · (W_q x)·k)
folding             50 steps of a small autoencoder in float64, from the same function
gradient            ‖∂L/∂q‖ of a random loss, none ÷ sqrt: root mean squares, and row by row
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional

from attnscale.analysis.estimate import Estimate, Interval
from attnscale.attention import Attended, MultiHeadAttention, attend, attentions, tapped
from attnscale.attention.scale import CosineFixed, ScoreLayerNorm, Sqrt
from attnscale.theory.draws import mean_of, seeded
from attnscale.theory.initialisation import autoencoder
from attnscale.theory.simulate import logits_of_rows
from attnscale.theory.simulate_softmax import gradient_statistics, softmax_statistics
from attnscale.theory.tables import SHIFTED, largest_of

STEPS = 50


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Figures that verdicts are computed from.

    Attributes:
        largest_of_shifted: Smallest and largest of the largest weights of :data:`SHIFTED`, and the
            largest weight of ten times the first.
        gradient_ratios: (d_k, rms gradient of q none ÷ sqrt, live rows of none).
        row_gradients: (d_k, median over rows of the gradient of q none ÷ sqrt, share of rows with
            a smaller one under none).
        initial_stds: (model and initialisation, std of the logits under sqrt), every attention.
        reformer: (d_k, deviation within rows of Reformer's logits ÷ that of q·k/√d_k).
        reparametrised: Largest difference of outputs.
        folding: (optimizer, largest relative difference of loss between folded and sqrt).
        adam_difference: The same between none and sqrt under Adam.
        cosine_stds: (d_k, deviation of the logits of cosine_fixed).
        row_spread: Deviation over rows of the rows' deviation: score_layernorm; sqrt with queries
            of one length, and with those of an untrained model.
        subtracting: Largest change of a weight by a row constant.
        overflow: (implementation, share of finite weights).
        inverse_entropy: H/ln n of inverse and of sqrt, d_k = 64.
    """

    largest_of_shifted: tuple[float, float, float]
    gradient_ratios: Sequence[tuple[int, Estimate, Estimate]]
    row_gradients: Sequence[tuple[int, Estimate, Estimate]]
    initial_stds: Sequence[tuple[str, Estimate]]
    reformer: Sequence[tuple[int, Estimate]]
    reparametrised: float
    folding: Sequence[tuple[str, float]]
    adam_difference: float
    cosine_stds: Sequence[tuple[int, Estimate]]
    row_spread: tuple[Estimate, Estimate, Estimate]
    subtracting: float
    overflow: Sequence[tuple[str, float]]
    inverse_entropy: tuple[Estimate, Estimate]


def small_model(scale: str, *, d_k: int, seed: int) -> nn.Module:
    """Return an untrained autoencoder of 32 components and one layer, in float64."""
    attention = partial(MultiHeadAttention, scale=scale)
    with seeded(seed):
        return autoencoder(attention, "unit", "none", d_k, d_model=32, n_layers=1).double()


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


def _gradients(
    seed: int,
) -> tuple[list[tuple[int, Estimate, Estimate]], list[tuple[int, Estimate, Estimate]]]:
    """Return the ratio of the root mean squares with the live rows, and the ratio row by row."""
    ratios, by_row = [], []
    # One seed: both see the same q, k and loss, so that rows have partners.
    scaled, unscaled = (
        gradient_statistics((16, 64, 512), scale, n=14, draws=2000, seed=seed)
        for scale in ("sqrt", "none")
    )
    for usual, row in zip(scaled, unscaled, strict=True):
        value = row.query.value / usual.query.value
        # Independent relative errors add in squares; 1.96 is the normal quantile.
        error = value * math.hypot(*(x.error / x.value for x in (row.query, usual.query)))
        interval = Interval(value - 1.96 * error, value + 1.96 * error)
        n = row.query.n
        ratios.append((row.d_k, Estimate(value, error * math.sqrt(n), n, interval), row.live))
        of_rows = row.query_norms / usual.query_norms
        middle = stats.quantile_test(of_rows.numpy(), p=0.5).confidence_interval()
        median = Estimate(
            float(of_rows.median()), None, n, Interval(float(middle.low), float(middle.high))
        )
        by_row.append((row.d_k, median, mean_of(of_rows < 1)))
    return ratios, by_row


def _cosine(seed: int) -> list[tuple[int, Estimate]]:
    stds = []
    for d_k in (64, 512):
        with seeded(seed):
            q, k = torch.randn(2000, d_k), torch.randn(2000, 14, d_k)
        rows = logits_of_rows(q, k, CosineFixed())
        stds.append((d_k, mean_of(rows.std(dim=-1))))
    return stds


def _row_spread(seed: int) -> tuple[Estimate, Estimate, Estimate]:
    def spread(logits: Tensor) -> Estimate:
        return mean_of(logits.std(dim=-1).view(20, 100).std(dim=-1))

    with seeded(seed):
        q, k = functional.normalize(torch.randn(2000, 64), dim=-1) * 8, torch.randn(2000, 14, 64)
        model = autoencoder(partial(MultiHeadAttention, scale="sqrt"), "torch", "pre", 64)
        taps: list[Attended] = []
        with torch.no_grad(), tapped(model, lambda _, attended: taps.append(attended)):
            model(torch.randn(125, 8, 64))
    normed, one_length = (
        spread(logits_of_rows(q, k, scale)) for scale in (ScoreLayerNorm(n_heads=1), Sqrt())
    )
    return normed, one_length, spread(taps[0].logits().flatten(0, 2))


def overflow(*, std: float, d_k: int, seed: int) -> list[tuple[str, float]]:
    """Return the share of finite weights of four implementations of softmax(q·k), no factor.

    Three are what people write: scores in fp16, which ends at 65,504; scores in bf16, which has
    fp32's range; fp32 without the row's maximum subtracted, whose exp ends at 88. The fourth is
    :func:`attnscale.attention.attend`, in fp16.

    Args:
        std: Deviation of the components of q and k; scores have std² √d_k.
        d_k: Their number.
        seed: Of the draws.
    """
    with seeded(seed):
        q, k = (std * torch.randn(4, 2, 14, d_k) for _ in range(2))
    taps: list[Attended] = []
    half, exponentials = torch.float16, (q @ k.mT).exp()
    attend(q.to(half), k.to(half), k.to(half), scale="none", tap=taps.append)
    weights = {
        "softmax(q @ k.T) in fp16": (q.to(half) @ k.to(half).mT).softmax(-1),
        "the same in bf16": (q.bfloat16() @ k.bfloat16().mT).softmax(-1),
        "exp(s) / Σ exp(s) in fp32": exponentials / exponentials.sum(-1, keepdim=True),
        "attend in fp16": taps[0].weights(),
    }
    return [(name, float(w.isfinite().double().mean())) for name, w in weights.items()]


def reformer_logits(q: Tensor, k: Tensor) -> Tensor:
    """Return q·k̂/√d_k, k̂ = k/rms(k) (Kitaev et al. 2020, as in their released code).

    The keys are the queries of the other positions, so nothing but W_qk is learned.

    Args:
        q: A query per row, (row, d_k).
        k: The keys of each row, (row, key, d_k).
    """
    keys = k / k.square().mean(dim=-1, keepdim=True).sqrt()
    scores = (q[:, None] * keys).sum(dim=-1)
    return scores / math.sqrt(q.shape[-1])


def reformer_ratios(
    seed: int, logits: Callable[[Tensor, Tensor], Tensor] = reformer_logits
) -> list[tuple[int, Estimate]]:
    """Return (d_k, deviation within rows of ``logits`` ÷ that of ordinary attention).

    Both see the same shared q and k: of 15 positions with vectors of several lengths, as trained
    ones have, the first attends to the others. Ordinary attention takes the keys as they are.

    Args:
        seed: Of all draws.
        logits: A rule from q (row, d_k) and k (row, key, d_k) to logits (row, key).
    """
    ratios = []
    for d_k in (16, 64, 256):
        with seeded(seed):
            x = torch.randn(2000, 15, d_k) * torch.randn(2000, 15, 1).mul(0.5).exp()
        q, k = x[:, 0], x[:, 1:]
        rule, usual = logits(q, k), logits_of_rows(q, k, "sqrt")
        ratios.append((d_k, mean_of(rule.std(dim=-1) / usual.std(dim=-1))))
    return ratios


def _subtracting(seed: int) -> float:
    with seeded(seed):
        logits = torch.randn(100, 14, dtype=torch.float64)
    return float(((logits - 0.43 * math.log(14)).softmax(-1) - logits.softmax(-1)).abs().max())


def collect(*, initial: Sequence[tuple[str, Estimate]], seed: int) -> Evidence:
    """Compute all figures; some seconds.

    Args:
        initial: (model and initialisation, deviation under sqrt) of the real models' attentions.
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
    ratios, by_row = _gradients(seed)
    return Evidence(
        largest_of_shifted=(
            min(largest),
            max(largest),
            largest_of([10 * value for value in SHIFTED[0]]),
        ),
        gradient_ratios=ratios,
        row_gradients=by_row,
        initial_stds=initial,
        reformer=reformer_ratios(seed),
        reparametrised=_reparametrised(64, seed),
        folding=[
            (rule, _difference(curves["folded", rule], curves["sqrt", rule])) for rule in OPTIMIZERS
        ],
        adam_difference=_difference(unscaled, curves["sqrt", "Adam"]),
        cosine_stds=_cosine(seed),
        row_spread=_row_spread(seed),
        subtracting=_subtracting(seed),
        overflow=overflow(std=50.0, d_k=1024, seed=seed),
        inverse_entropy=(flat.entropy_norm, usual.entropy_norm),
    )
