"""Logits simulated: q and k through a scale.

    r = q·k  ->  scale  ->  logit  ->  softmax over the keys of a row  ->  weights

Logits and weights are read off a tap of :func:`attnscale.attention.attend`, so the scale functions
are the models' own. The densities that a histogram is compared with are in ``closed_form.py``.
"""

import itertools
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from attnscale.attention import Attended, Scale, attend
from attnscale.theory.draws import check_min, seeded

_COMPONENTS_PER_CHUNK = 2_000_000
"""Of q; in fp32 8 MB."""


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
    with seeded(seed), torch.no_grad():
        chunks = [
            logits_of_rows(torch.randn(m, d_k), torch.randn(m, 1, d_k), scale)[:, 0]
            for m in _chunks(draws, max(1, _COMPONENTS_PER_CHUNK // d_k))
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


def _chunks(total: int, size: int) -> list[int]:
    full, rest = divmod(total, size)
    return [size] * full + [rest] * (rest > 0)
