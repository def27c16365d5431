"""What the spread of the logits should be, from the moments of the batch at hand.

    Var_row(r) ≈ d_k · q_rms² · k_rms² · (1 − c̄),    c̄ the mean cosine of two inputs of a row

for weights that are independent of the input, as they are before training. A mode's own
``predicted_std`` takes it from there. In training q and k align, and the measured std leaves the
prediction: that is what to look for.

All moments are averages over the same rows: real queries with two kept keys or more. That matters
for the cosine in causal self-attention, where row i sees the first i + 1 positions only.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from attnscale.attention.core import Attended
from attnscale.attention.scale import Moments
from attnscale.attention.stats.sample import Sample, sample_of


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
    """Return the std within rows ÷ that of all kept pairs, root mean square over heads."""
    shares = []
    for head in range(scores.shape[1]):
        values, pairs, counted = scores[:, head], keep[:, head], rows[:, head]
        within = _row_variance(values, pairs)[counted].mean()
        shares.append(within / values[pairs].var(correction=0).clamp_min(1e-30))
    return float(torch.stack(shares).mean().sqrt())


@torch.no_grad()
def logit_std(attended: Attended, real: Tensor | None = None) -> float:
    """Return the measured standard deviation of the logits within a row (n − 1), over all heads.

    Raises:
        ValueError: If no row counts.
    """
    keep, rows = counted_rows(attended, real)
    if not bool(rows.any()):
        raise ValueError("no row has two kept keys")
    return float(_row_variance(attended.logits(), keep)[rows].mean().sqrt())


def _moments(sample: Sample, parts: int, *, over_batch: bool) -> list[Moments]:
    """Return the moments of each attention of a sample of ``parts`` attentions."""
    rows = sample.rows
    if sample.x is None:
        raise ValueError("the input of the keys is not known")

    def by_part(heads: Tensor) -> Tensor:
        return heads.reshape(*heads.shape[:-1], parts, -1).sum(dim=-1)

    n = rows.size
    # Which keys a counted row may attend, (batch, head, key).
    used = rows.counted.any(dim=-1, keepdim=True)
    if rows.keep is not None:
        several = rows.keep.shape[-2] > 1
        keep = rows.keep & rows.counted[..., None] if several else rows.keep & used[..., None]
        used = keep.any(dim=-2)
    used = used.expand(*rows.like.shape[:2], rows.like.shape[-1])
    k_squares = torch.where(used, sample.key_lengths.square(), 0.0).sum(dim=(0, 2))
    # The sum over pairs of unit vectors is the squared length of their sum, less the diagonal.
    unit = sample.unit_x
    weight = unit.new_ones(1, 1, unit.shape[2]) if rows.weight is None else rows.weight[:, 0]
    first = n[:, 0]
    sums = (weight[:, None] @ unit).square().sum(dim=-1)
    cosines = (sums - first[:, None]) / (first * (first - 1))[:, None]
    of_first = rows.counted[:, :1]
    x_cos = torch.where(of_first, cosines, 0.0).sum(dim=(0, 2)) / of_first.sum()
    of_rows = rows.totals(sample.query_lengths.square(), n.log().square(), n / (n - 1))
    table = torch.stack(
        [
            *(by_part(of_rows) / by_part(rows.count)),
            by_part(k_squares) / by_part(used.sum(dim=(0, 2))),
            x_cos.expand(parts),
        ]
    )
    shares = [1.0] * parts
    if over_batch:
        scores = sample.wide("scores")
        keep = torch.ones_like(scores, dtype=torch.bool) if rows.keep is None else rows.keep
        cut = zip(
            scores.chunk(parts, dim=1),
            keep.expand(scores.shape).chunk(parts, dim=1),
            rows.counted.chunk(parts, dim=1),
            strict=True,
        )
        shares = [_row_share(*part) for part in cut]
    return [
        Moments(
            d_k=sample.d_k,
            q_rms=(q_square / sample.d_k) ** 0.5,
            k_rms=(k_square / sample.d_k) ** 0.5,
            x_cos=min(1.0, cosine),
            log_n=log_square**0.5,
            row_share=share,
            shrink=shrink**0.5,
        )
        for (q_square, log_square, shrink, k_square, cosine), share in zip(
            table.T.tolist(), shares, strict=True
        )
    ]


@torch.no_grad()
def predicted_stds(sample: Sample, attended: Sequence[Attended]) -> list[float]:
    """Return :func:`predicted_std` of each attention that a sample was made of.

    Raises:
        ValueError: If no row counts, or the input is not known.
    """
    if not bool(sample.rows.counted.any()):
        raise ValueError("no row has two kept keys")
    over_batch = attended[0].scale.over_batch
    with torch.autocast(sample.rows.like.device.type, enabled=False):
        moments = _moments(sample, len(attended), over_batch=over_batch)
    return [one.scale.predicted_std(part) for one, part in zip(attended, moments, strict=True)]


def predicted_std(attended: Attended, real: Tensor | None = None) -> float:
    """Return the standard deviation that the mode's logits should have within a row.

    Args:
        attended: What a tap received from a MultiHeadAttention, which knows the input.
        real: (batch, query), True where a query is no padding; None counts all.

    Raises:
        ValueError: If no row counts, or the input is not known.
    """
    return predicted_stds(sample_of([attended], real), [attended])[0]
