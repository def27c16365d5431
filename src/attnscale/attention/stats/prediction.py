"""What the spread of the logits should be, from the moments of the batch at hand.

    Var_row(r) ≈ d_k · q_rms² · k_rms² · (1 − c̄),    c̄ the mean cosine of two inputs of a row

of one head,

for weights that are independent of the input and alike in all directions, as they are before
training. A mode's own ``predicted_std`` takes it from there. In training the measured std leaves
the prediction: W_q and W_k prefer some directions, or q and the keys of its sequence align.

The cosine is a mean over counted rows. That matters in causal self-attention, where row i sees the
first i + 1 positions only.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscale.attention.core import Attended
from attnscale.attention.scale import Moments
from attnscale.attention.stats.sample import Sample
from attnscale.attention.stats.taps import sample_of


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
    """Return the std within rows ÷ that of all kept pairs, of one head."""
    within = _row_variance(scores, keep)[rows].mean()
    return float((within / scores[keep].var(correction=0).clamp_min(1e-30)).sqrt())


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


def _moments(sample: Sample, *, over_batch: bool) -> list[Moments]:
    """Return the moments of each head."""
    rows, n = sample.rows, sample.rows.size
    log_squares, shrinks = rows.means(n.log().square(), n / (n - 1))
    shares = [1.0] * sample.n_heads
    if over_batch:
        scores = sample.wide("scores")
        keep = torch.ones_like(scores, dtype=torch.bool) if rows.keep is None else rows.keep
        heads = zip(
            *(pairs.unbind(1) for pairs in (scores, keep.expand(scores.shape), rows.counted)),
            strict=True,
        )
        shares = [_row_share(*head) for head in heads]
    columns = (sample.q_rms, sample.k_rms, sample.row_cos, log_squares.sqrt(), shrinks.sqrt())
    return [
        Moments(
            d_k=sample.d_k,
            q_rms=q_rms,
            k_rms=k_rms,
            x_cos=cosine,
            log_n=log_n,
            row_share=share,
            shrink=shrink,
        )
        for (q_rms, k_rms, cosine, log_n, shrink), share in zip(
            torch.stack(columns).T.tolist(), shares, strict=True
        )
    ]


@torch.no_grad()
def predicted_stds(sample: Sample, attended: Sequence[Attended]) -> Float[Tensor, " head"]:
    """Return the deviation within a row that the mode should give the logits of each head.

    Per head, since what a score is depends on the products of a head's own |q| and |k|: averaged
    over heads first, they would depend on how W_q and W_k share a factor that no score knows of.

    Args:
        sample: Of the attentions together.
        attended: What the taps received, which know the input: their heads, one after the other.

    Returns:
        0 for a head without any counted row.

    Raises:
        ValueError: If the input is not known.
    """
    with torch.autocast(sample.rows.like.device.type, enabled=False):
        moments = _moments(sample, over_batch=attended[0].scale.over_batch)
    of_attention = sample.n_heads // len(attended)
    stds = [
        attended[head // of_attention].scale.predicted_std(each)
        for head, each in enumerate(moments)
    ]
    return torch.where(sample.rows.count > 0, sample.rows.count.new_tensor(stds), 0.0)


def predicted_std(attended: Attended, real: Tensor | None = None) -> float:
    """Return what :func:`logit_std` should be: root mean square of the heads, by their rows.

    Args:
        attended: What a tap received from a MultiHeadAttention, which knows the input.
        real: (batch, query), True where a query is no padding; None counts all.

    Raises:
        ValueError: If no row counts, or the input is not known.
    """
    sample = sample_of([attended], real)
    count = sample.rows.count
    if not bool(count.any()):
        raise ValueError("no row has two kept keys")
    squares = predicted_stds(sample, [attended]).square()
    return float(((count * squares).sum() / count.sum()).sqrt())
