"""Softmax simulated: rows of Gaussian logits, and the gradient that reaches q and k.

    rows          s_j = β z_j,  z iid N(0, 1),  j = 1 … n;   p = softmax(s)
    gradients     L = Σ_j g_j p_j,  g iid N(0, 1):
                  ∂L/∂q = c Σ_j (J g)_j k_j,   ∂L/∂k_j = c (J g)_j q

Closed forms for small and for large β are in ``closed_form_softmax.py``; between them there is
only the simulation. The second line runs through :func:`attnscale.attention.attend` with g as the
values (d_v = 1), so its output is L and autograd gives the gradients with the models' own scale
functions. Units: entropies in nats, logits and weights without unit.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from attnscale.analysis.estimate import Estimate
from attnscale.attention import Attended, attend
from attnscale.attention.stats import LIVE_FROM, Sample
from attnscale.theory.draws import Sums, check_min, scaled, seeded

SATURATED_ABOVE = 0.9
"""A row is saturated if its largest weight is above this."""

_LOGITS_PER_CHUNK = 250_000
_COMPONENTS_PER_CHUNK = 1_500_000

INIT_CASES = {
    "inverse, unit, d_k=64": 1 / 8,
    "sqrt, torch": 1 / 3,
    "cosine 9.1, d_k=512": 9.1 / math.sqrt(512),
    "sqrt, gain 1/√2": 1 / 2,
    "sqrt, unit": 1.0,
    "cosine 9.1, d_k=64": 9.1 / 8,
    "none, torch, d_k=64": 8 / 3,
    "none, gain 1/√2, d_k=64": 4.0,
    "none, torch, d_k=512": math.sqrt(512) / 3,
    "none, unit, d_k=64": 8.0,
    "none, gain 1/√2, d_k=512": math.sqrt(512) / 2,
    "none, unit, d_k=512": math.sqrt(512),
}
"""Usual inits and β = c √d_k σ_q σ_k; gain 1/√2 is fairseq's Xavier init, Var W = 1/(2 fan_in)."""


@dataclass(frozen=True)
class SoftmaxRow:
    """Means over rows of n Gaussian logits of deviation ``beta``.

    Attributes:
        beta: Deviation of the logits.
        n: Keys of a row.
        entropy: H, in nats.
        entropy_norm: H / ln n, 0 to 1.
        p_max: Largest weight.
        concentration: Σp², 1/n to 1.
        participation: 1/Σp², 1 to n; the mean of the ratio.
        jacobian: ‖J‖_F.
        gain: β · rms‖J‖_F, the gradient of q over that of the weights.
        saturated: Share of rows with p_max above :data:`SATURATED_ABOVE`.
        live: Share of rows with 1 − Σp² above :data:`LIVE_FROM`.
    """

    beta: float
    n: int
    entropy: Estimate
    entropy_norm: Estimate
    p_max: Estimate
    concentration: Estimate
    participation: Estimate
    jacobian: Estimate
    gain: Estimate
    saturated: Estimate
    live: Estimate


@dataclass(frozen=True)
class GradientRow:
    """Gradients of one row's random loss at one d_k; q, k and g have unit-variance components.

    Attributes:
        d_k: Size of q and k.
        beta: Root of the mean variance within a row of the logits, measured.
        predicted: β · rms‖J‖_F.
        query: rms ‖∂L/∂q‖.
        keys: rms of ‖∂L/∂k‖ over all keys of a row together.
        live: Share of rows with 1 − Σp² above :data:`LIVE_FROM`.
        query_norms: ‖∂L/∂q‖ of every row, (row,).
    """

    d_k: int
    beta: Estimate
    predicted: float
    query: Estimate
    keys: Estimate
    live: Estimate
    query_norms: Float[Tensor, " row"] = field(compare=False, repr=False)


def softmax_statistics(
    betas: Sequence[float], n: int, *, draws: int, seed: int
) -> list[SoftmaxRow]:
    """Simulate the softmax of n independent Gaussian logits over a grid of deviations.

    The same standard normal rows serve every β, so differences between β are smoother than the
    errors of the single lines say.

    Args:
        betas: Deviations of the logits, not negative.
        n: Keys of a row, at least 2.
        draws: Rows, at least 2.
        seed: Of all draws.

    Raises:
        ValueError: If a number is out of its range.
    """
    check_min("n", n, 2)
    check_min("draws", draws, 2)
    if not betas or min(betas) < 0:
        raise ValueError(f"betas={list(betas)}: need at least one, none negative")
    sums: list[dict[str, Sums]] = [defaultdict(Sums) for _ in betas]
    step = max(1, _LOGITS_PER_CHUNK // n)
    with seeded(seed), torch.no_grad():
        for start in range(0, draws, step):
            z = torch.randn(min(step, draws - start), n, dtype=torch.float64)
            for beta, totals in zip(betas, sums, strict=True):
                for name, values in _statistics(beta * z).items():
                    totals[name].add(values)
    return [_row(beta, n, totals) for beta, totals in zip(betas, sums, strict=True)]


def gradient_statistics(
    d_ks: Sequence[int],
    scale: str | float,
    *,
    n: int,
    draws: int,
    seed: int,
) -> list[GradientRow]:
    """Measure the gradients of a random loss with respect to q and k, beside the prediction.

    The prediction takes β and ‖J‖ as independent and k as unaffected by which weight is large;
    both are true up to terms of relative size 1/d_k.

    Args:
        d_ks: Sizes of q and k.
        scale: The name of a mode that learns nothing, or a factor.
        n: Keys of a row, at least 2.
        draws: Rows per d_k, at least 2.
        seed: Of all draws.

    Raises:
        ValueError: For an unknown scale or a number that is out of its range.
    """
    check_min("n", n, 2)
    check_min("draws", draws, 2)
    with seeded(seed):
        return [_gradients(d_k, scale, n, draws) for d_k in d_ks]


def _statistics(logits: Float[Tensor, "row n"]) -> dict[str, Tensor]:
    """Return what each row adds to the means of a :class:`SoftmaxRow`."""
    sample = Sample(weights=logits.softmax(-1)[None, None])
    return {
        "entropy": sample.entropy,
        "p_max": sample.p_max,
        "concentration": sample.p_squared,
        "participation": 1 / sample.p_squared,
        "jacobian": sample.jacobian_squared.sqrt(),
        "square": sample.jacobian_squared,
        "saturated": sample.p_max > SATURATED_ABOVE,
        "live": sample.one_minus_p_squared > LIVE_FROM,
    }


def _row(beta: float, n: int, sums: dict[str, Sums]) -> SoftmaxRow:
    rms = sums.pop("square").root()
    means = {name: total.mean() for name, total in sums.items()}
    return SoftmaxRow(
        beta=beta,
        n=n,
        **means,
        entropy_norm=scaled(means["entropy"], 1 / math.log(n)),
        gain=scaled(rms, beta),
    )


def _gradients(d_k: int, scale: str | float, n: int, draws: int) -> GradientRow:
    sums: dict[str, Sums] = defaultdict(Sums)
    squares: list[Tensor] = []
    step = max(1, _COMPONENTS_PER_CHUNK // (n * d_k))
    for start in range(0, draws, step):
        m = min(step, draws - start)
        q = torch.randn(m, 1, 1, d_k, requires_grad=True)
        k = torch.randn(m, 1, n, d_k, requires_grad=True)
        taps: list[Attended] = []
        loss = attend(q, k, torch.randn(m, 1, n, 1), scale=scale, tap=taps.append)
        q_grad, k_grad = torch.autograd.grad(loss.sum(), (q, k))
        sample = Sample(weights=taps[0].weights())
        sums["variance"].add(taps[0].logits().var(dim=-1))
        sums["norm"].add(sample.jacobian_squared)
        squares.append(q_grad.square().sum((-1, -2)).flatten())
        sums["query"].add(squares[-1])
        sums["keys"].add(k_grad.square().sum((-1, -2)))
        sums["live"].add(sample.one_minus_p_squared > LIVE_FROM)
    beta = sums["variance"].root()
    return GradientRow(
        d_k=d_k,
        beta=beta,
        predicted=beta.value * sums["norm"].root().value,
        query=sums["query"].root(),
        keys=sums["keys"].root(),
        live=sums["live"].mean(),
        query_norms=torch.cat(squares).sqrt(),
    )
