"""Scores and logits simulated: the variance of r = q·k, its growth with d_k, densities.

    replicate t        rows × (1 query, n keys)   ->   r_ij = q_i · k_ij
    second moment      mean r²                         about zero
    total variance     mean r² − (mean r)²             over all pairs, as textbooks have it
    row variance       mean_i Var_j r_ij               divisor n − 1: what a softmax sees
    exponent           slope of ½ log(variance) against log d_k, one per replicate

Three kinds of q and k:

    independent        all components iid N(0, 1)
    correlated         ``aligned`` of the n keys are ρ q + √(1 − ρ²) z, the others independent
    projected          LayerNormed x through W_q, W_k of an init; a replicate is a draw of weights

Logits and weights are read off a tap of :func:`attnscale.attention.attend`, so the scale functions
are the models' own; a score is the logit of the scale ``none``. Errors come from independent
replicates, not from the pairs within one, which share queries and weights.
Closed forms: ``closed_form.py``, which also names the sources.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from attnscale.analysis.curves import growth_exponent
from attnscale.analysis.estimate import Estimate
from attnscale.attention import Attended, Scale, attend
from attnscale.checks import check_choice
from attnscale.model.layers import initialise
from attnscale.theory import closed_form
from attnscale.theory.draws import check_min, mean_of, seeded

KINDS = ("independent", "correlated", "projected")
VARIANCES = ("second", "total", "row")
"""E r², Var r and E Var_j r_ij."""

_COMPONENTS_PER_CHUNK = 2_000_000
"""Of q; in fp32 8 MB."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What the q and k of a simulation are.

    Attributes:
        kind: One of :data:`KINDS`.
        n_rows: Queries of a replicate.
        n_keys: Keys of each query, at least 2.
        rho: ``correlated`` only: correlation of each component, -1 to 1.
        aligned: ``correlated`` only: how many of the keys are correlated with their query.
        init: ``projected`` only: one of ``attnscale.model.layers.INITS``.
        d_model: ``projected`` only: size of x.
        n_heads: ``projected`` only: W_q has n_heads · d_k outputs, of which the first head is used.
        x_cos: ``projected`` only: cosine of two inputs of a row before LayerNorm, 0 to 1.

    Raises:
        ValueError: If the kind or a number is out of its range.
    """

    kind: str = "independent"
    n_rows: int = 64
    n_keys: int = 14
    rho: float = 0.5
    aligned: int = 7
    init: str = "unit"
    d_model: int = 128
    n_heads: int = 1
    x_cos: float = 0.0

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, KINDS)
        check_min("n_keys", self.n_keys, 2)
        for name in ("n_rows", "d_model", "n_heads"):
            check_min(name, getattr(self, name), 1)
        for name, low, high in (("rho", -1, 1), ("aligned", 0, self.n_keys), ("x_cos", 0, 1)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name}={value}: must be {low} to {high}")


@dataclass(frozen=True)
class ScoreVariance:
    """A variance of r at one d_k; score².

    Attributes:
        d_k: Size of q and k.
        variance: One of :data:`VARIANCES`.
        simulated: Over replicates.
        predicted: From ``closed_form``; "row" with the measured cosine of the inputs.
    """

    d_k: int
    variance: str
    simulated: Estimate
    predicted: float


@dataclass(frozen=True)
class Growth:
    """Exponent a in std ∝ d_k^a, fitted over the d_k of one simulation.

    Attributes:
        variance: Whose root it is, one of :data:`VARIANCES`; of "second" that is the rms of r.
        exponent: Mean slope over replicates, with its interval.
        predicted: The slope through the predicted variances.
    """

    variance: str
    exponent: Estimate
    predicted: float


def score_variance(
    d_ks: Sequence[int], setting: Setting, *, draws: int, seed: int
) -> tuple[list[ScoreVariance], list[Growth]]:
    """Simulate the variances of r over d_k and fit how they grow.

    Args:
        d_ks: Sizes of q and k, two or more.
        setting: What q and k are.
        draws: Independent replicates, at least 2; each draws q, k and weights anew.
        seed: Of all draws.

    Returns:
        One record per d_k and variance, and the exponents of second moment, total and row
        variance. Intervals are 95 %, over replicates.

    Raises:
        ValueError: If a kind, an init or a number is out of its range.
    """
    check_min("draws", draws, 2)
    check_min("len(d_ks)", len(set(d_ks)), 2)
    measured = torch.empty(3, len(d_ks), draws, dtype=torch.float64)
    rows: list[ScoreVariance] = []
    with seeded(seed), torch.no_grad():
        for i, d_k in enumerate(d_ks):
            cosines = torch.zeros(draws, dtype=torch.float64)
            for t in range(draws):
                q, k, cosines[t] = _draw(d_k, setting)
                r = logits_of_rows(q, k, "none").double()
                second = r.square().mean()
                moments = (second, second - r.mean().square(), r.var(dim=-1).mean())
                measured[:, i, t] = torch.stack(moments)
            predicted = _predict(d_k, setting, float(cosines.mean()))
            rows += [
                ScoreVariance(d_k, name, mean_of(draws_of), expected)
                for name, draws_of, expected in zip(
                    VARIANCES, measured[:, i], predicted, strict=True
                )
            ]
    return rows, _fit(d_ks, measured, rows)


def _draw(d_k: int, setting: Setting) -> tuple[Tensor, Tensor, float]:
    """Draw q (row, d_k), k (row, key, d_k) and the mean cosine of the inputs of a row."""
    n_rows, n_keys = setting.n_rows, setting.n_keys
    if setting.kind != "projected":
        q, k = torch.randn(n_rows, d_k), torch.randn(n_rows, n_keys, d_k)
        if setting.kind == "correlated":
            near = k[:, : setting.aligned]
            near.mul_(math.sqrt(1 - setting.rho**2)).add_(setting.rho * q[:, None])
        return q, k, 0.0
    d_model = setting.d_model
    w_q, w_k = (nn.Linear(d_model, setting.n_heads * d_k, bias=False) for _ in range(2))
    for projection in (w_q, w_k):
        initialise(projection, setting.init)
    # One input for the query, n for the keys; what a row shares gives them their cosine.
    own, shared = torch.randn(n_rows, 1 + n_keys, d_model), torch.randn(n_rows, 1, d_model)
    x = math.sqrt(1 - setting.x_cos) * own + math.sqrt(setting.x_cos) * shared
    x = functional.layer_norm(x, (d_model,))
    keys = x[:, 1:]
    length = keys.sum(1).square().sum(-1) / d_model
    cosine = (length - n_keys) / (n_keys * (n_keys - 1))
    q, k = x[:, 0] @ w_q.weight[:d_k].T, keys @ w_k.weight[:d_k].T
    return q, k, float(cosine.mean())


def _predict(d_k: int, setting: Setting, x_cos: float) -> tuple[float, float, float]:
    """Return the second moment, total and row variance in closed form."""
    if setting.kind == "correlated":
        share = setting.aligned / setting.n_keys
        return (
            closed_form.second_moment_aligned(d_k, setting.rho, share),
            closed_form.variance_aligned(d_k, setting.rho, share),
            closed_form.row_variance_aligned(d_k, setting.rho, setting.n_keys, setting.aligned),
        )
    sigma = 1.0
    if setting.kind == "projected":
        fan_out = setting.n_heads * d_k
        sigma = closed_form.projection_std(setting.init, setting.d_model, fan_out)
    total = closed_form.variance_independent(d_k, sigma, sigma)
    return total, total, closed_form.row_variance(d_k, sigma, sigma, x_cos)


def _fit(d_ks: Sequence[int], measured: Tensor, rows: list[ScoreVariance]) -> list[Growth]:
    growths = []
    for name, variances in zip(VARIANCES, measured, strict=True):
        slopes = [growth_exponent(d_ks, x.sqrt().tolist()).value for x in variances.T]
        stds = [math.sqrt(row.predicted) for row in rows if row.variance == name]
        predicted = growth_exponent(d_ks, stds).value
        growths.append(Growth(name, mean_of(torch.tensor(slopes)), predicted))
    return growths


def draw_logits(d_k: int, scale: str | float, *, draws: int, seed: int) -> Float[Tensor, " draw"]:
    """Draw logits of independent standard normal q and k, one pair per draw, in float64.

    Args:
        d_k: Size of q and k.
        scale: The name of a mode that learns nothing, or a factor.
        draws: Pairs, at least 2.
        seed: Of all draws.

    Raises:
        ValueError: For an unknown scale or too few draws.
    """
    check_min("draws", draws, 2)
    step = max(1, _COMPONENTS_PER_CHUNK // d_k)
    with seeded(seed), torch.no_grad():
        chunks = [
            logits_of_rows(torch.randn(m, d_k), torch.randn(m, 1, d_k), scale)[:, 0]
            for m in (min(step, draws - start) for start in range(0, draws, step))
        ]
    return torch.cat(chunks).double()


def density_of(logits: Float[Tensor, " draw"], edges: Sequence[float]) -> list[float]:
    """Return the empirical density in each bin: the share of the draws over the bin's width.

    Raises:
        ValueError: For edges that do not increase.
    """
    if len(edges) < 2 or any(a >= b for a, b in itertools.pairwise(edges)):
        raise ValueError(f"edges={list(edges)}: need two or more, increasing")
    bounds = torch.tensor(edges, dtype=torch.float64)
    shares = torch.histogram(logits, bounds).hist / len(logits)
    return list((shares / bounds.diff()).tolist())


def attended(
    q: Float[Tensor, "row d_k"],
    k: Float[Tensor, "row key d_k"],
    scale: str | float | Scale,
) -> Attended:
    """Attend from one query per row to the keys of its row, and return what a tap receives.

    In the result each row is a batch entry of one head.

    Args:
        q: A query per row.
        k: Its keys.
        scale: The name of a mode that learns nothing, a factor, or a scale.
    """
    taps: list[Attended] = []
    # (row, d_k) -> (row, head, query, d_k), and the keys likewise; v plays no part.
    q, k = q[:, None, None], k[:, None]
    attend(q, k, k[..., :1], scale=scale, tap=taps.append)
    return taps[0]


def logits_of_rows(
    q: Float[Tensor, "row d_k"],
    k: Float[Tensor, "row key d_k"],
    scale: str | float | Scale,
) -> Float[Tensor, "row key"]:
    """Return the logits of each row's query and keys; arguments as :func:`attended`."""
    return attended(q, k, scale).logits()[:, 0, 0]
