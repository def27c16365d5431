"""What the spread of the logits should be, from the moments of the batch at hand.

    Var_row(r) ≈ d_k · q_rms² · k_rms² · (1 − c̄),    c̄ the mean cosine of two inputs of a row

for weights that are independent of the input, as they are before training. A mode's own
``deviation`` takes it from there. In training q and k align, and the measured deviation leaves the
prediction: that is what to look for.

All moments are averages over the same rows: real queries with two kept keys or more. That matters
for the cosine in causal self-attention, where row i sees the first i + 1 positions only.
"""

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn import functional

from attnscale.attention.core import Attended
from attnscale.attention.scale import Moments


def counted_rows(
    attended: Attended, real: Bool[Tensor, "batch query"] | None
) -> tuple[Tensor, Tensor]:
    """Return (keep, rows): keep as (batch, head, query, key), and which rows count.

    Args:
        attended: What a tap received.
        real: True where a query is no padding; None counts all.
    """
    batch, heads, queries, _ = attended.q.shape
    shape = (batch, heads, queries, attended.k.shape[2])
    keep = torch.ones(shape, dtype=torch.bool, device=attended.q.device)
    keep = keep if attended.keep is None else keep & attended.keep
    rows = keep.sum(dim=-1) > 1
    return keep, rows if real is None else rows & real[:, None, :]


def _row_variance(values: Tensor, keep: Tensor) -> Tensor:
    n = keep.sum(dim=-1).clamp_min(2)
    mean = values.masked_fill(~keep, 0.0).sum(dim=-1, keepdim=True) / n[..., None]
    centred = (values - mean).masked_fill(~keep, 0.0)
    return centred.square().sum(dim=-1) / (n - 1)


def _row_share(scores: Tensor, keep: Tensor, rows: Tensor) -> float:
    """Return the deviation within rows ÷ that of all kept pairs, root mean square over heads."""
    shares = []
    for head in range(scores.shape[1]):
        values, kept, counted = scores[:, head], keep[:, head], rows[:, head]
        within = _row_variance(values, kept)[counted].mean()
        shares.append(within / values[kept].var(correction=0).clamp_min(1e-30))
    return float(torch.stack(shares).mean().sqrt())


@torch.no_grad()
def logit_deviation(attended: Attended, real: Tensor | None = None) -> float:
    """Return the measured standard deviation of the logits within a row (n − 1), over all heads.

    Raises:
        ValueError: If no row counts.
    """
    keep, rows = counted_rows(attended, real)
    if not bool(rows.any()):
        raise ValueError("no row has two kept keys")
    return float(_row_variance(attended.logits(), keep)[rows].mean().sqrt())


@torch.no_grad()
def moments_of(attended: Attended, real: Tensor | None = None) -> Moments:
    """Measure what a mode's ``deviation`` reads.

    Args:
        attended: What a tap received from a MultiHeadAttention, which knows the input.
        real: (batch, query), True where a query is no padding; None counts all.

    Raises:
        ValueError: If no row counts, or the input is not known.
    """
    keep, rows = counted_rows(attended, real)
    if not bool(rows.any()):
        raise ValueError("no row has two kept keys")
    if attended.x is None:
        raise ValueError("the input of the keys is not known")
    n = keep.sum(dim=-1)
    used = (keep & rows[..., None]).any(dim=2)
    # The sum over pairs of unit vectors is the squared length of their sum, less the diagonal.
    unit = functional.normalize(attended.x.float(), dim=-1)
    sums = keep[:, 0].to(unit.dtype) @ unit
    pairs = (n[:, 0] * (n[:, 0] - 1)).clamp_min(1)
    cosines = (sums.square().sum(dim=-1) - n[:, 0]) / pairs
    size = n[rows].float()
    q, k = attended.raw_q.float(), attended.raw_k.float()
    normalises = attended.mode.buffers is not None
    return Moments(
        d_k=q.shape[-1],
        q_rms=float(q[rows].square().mean().sqrt()),
        k_rms=float(k[used].square().mean().sqrt()),
        x_cos=min(1.0, float(cosines[rows[:, 0]].mean())),
        log_n=float(size.log().square().mean().sqrt()),
        row_share=_row_share(attended.scores(), keep, rows) if normalises else 1.0,
        shrink=float((size / (size - 1)).mean().sqrt()),
    )


def predicted_deviation(attended: Attended, real: Tensor | None = None) -> float:
    """Return the standard deviation that the mode's logits should have within a row."""
    return attended.mode.deviation(moments_of(attended, real), attended.values)
