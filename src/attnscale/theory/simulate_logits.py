"""Logits simulated: standard normal q and k through a scale, as a histogram and as one row.

    r = q·k  ->  scale  ->  logit  ->  softmax over the keys of a row  ->  weights

Logits and weights are read off a tap of :func:`attnscale.attention.attend`, so the scale functions
are the models' own. The densities that a histogram is compared with are in ``closed_form.py``.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnscale.analysis.estimate import Estimate
from attnscale.attention import Attended, Scale, attend
from attnscale.theory.draws import check_min, mean_of, seeded

_COMPONENTS_PER_CHUNK = 2_000_000
"""Of q; in fp32 8 MB."""


@dataclass(frozen=True)
class Histogram:
    """Logits of independent standard normal q and k.

    Attributes:
        d_k: Size of q and k.
        scale: The scale mode or factor.
        edges: Bin edges, one more than bins.
        counts: Logits in each bin; those outside are in none.
        density: Counts over draws times bin width, so an empirical density.
        density_error: Its binomial standard error.
        variance: Of the logits, with error.
        draws: Independent pairs of q and k.
    """

    d_k: int
    scale: str | float
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    density: tuple[float, ...]
    density_error: tuple[float, ...]
    variance: Estimate
    draws: int


@dataclass(frozen=True)
class ScoreRow:
    """One row of scores through softmax.

    Attributes:
        scale: The scale mode or factor.
        logits: One per key.
        weights: One per key; they sum to 1.
    """

    scale: str | float
    logits: tuple[float, ...]
    weights: tuple[float, ...]


def score_histogram(
    d_k: int,
    scale: str | float,
    *,
    edges: Sequence[float],
    draws: int,
    seed: int,
) -> Histogram:
    """Simulate logits of independent standard normal q and k, one pair per draw.

    Args:
        d_k: Size of q and k.
        scale: The name of a mode that learns nothing, or a factor.
        edges: Increasing bin edges, in units of the logit.
        draws: Pairs, at least 2.
        seed: Of all draws.

    Raises:
        ValueError: For an unknown scale, too few draws or edges that do not increase.
    """
    check_min("draws", draws, 2)
    if len(edges) < 2 or any(a >= b for a, b in itertools.pairwise(edges)):
        raise ValueError(f"edges={list(edges)}: need two or more, increasing")
    step = max(1, _COMPONENTS_PER_CHUNK // d_k)
    with seeded(seed), torch.no_grad():
        logits = torch.cat(
            [
                logits_of_rows(torch.randn(m, d_k), torch.randn(m, 1, d_k), scale)[:, 0]
                for m in _chunks(draws, step)
            ]
        ).double()
    bounds = torch.tensor(edges, dtype=torch.float64)
    counts = torch.histogram(logits, bounds).hist
    width, share = bounds.diff(), counts / draws
    return Histogram(
        d_k=d_k,
        scale=scale,
        edges=tuple(edges),
        counts=tuple(int(x) for x in counts),
        density=tuple((share / width).tolist()),
        density_error=tuple(((share * (1 - share) / draws).sqrt() / width).tolist()),
        variance=mean_of((logits - logits.mean()).square()),
        draws=draws,
    )


def score_rows(
    scales: Sequence[str | float], *, d_k: int, n_keys: int, seed: int
) -> list[ScoreRow]:
    """Send one row of standard normal q and k through softmax, once per scale.

    Args:
        scales: Names of modes that learn nothing, or factors.
        d_k: Size of q and k.
        n_keys: Length of the row.
        seed: Of q and k, which are the same for all scales.

    Raises:
        ValueError: For an unknown scale.
    """
    with seeded(seed), torch.no_grad():
        q, k = torch.randn(1, d_k), torch.randn(1, n_keys, d_k)
        rows = [(scale, attended(q, k, scale)) for scale in scales]
    return [
        ScoreRow(scale, tuple(x.logits().flatten().tolist()), tuple(x.weights().flatten().tolist()))
        for scale, x in rows
    ]


def attended(
    q: Float[Tensor, "row d_k"],
    k: Float[Tensor, "row key d_k"],
    scale: str | float | Scale,
) -> Attended:
    """Attend from one query per row to the keys of its row, and return what a tap receives.

    Arguments as :func:`score_histogram`. In the result each row is a batch entry of one head.
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


def _chunks(total: int, size: int) -> list[int]:
    full, rest = divmod(total, size)
    return [size] * full + [rest] * (rest > 0)
