"""The factor that an attention puts on q · k, and its figures, from rows of its softmax.

    change_ij = logits_ij − logits_ij without q · k
    change_ij − mean_j change_ij = slope · (r_ij − mean_j r_ij) + rest

by least squares over the rows of a head, each less its mean over the keys that are kept: a softmax
does not see a number common to a row, and whatever is in both logits, masks and biases, is gone.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnscale.attention.stats import Sample, measure
from attnscale.doctor.origin import wide

FIGURES = (
    "entropy_norm",
    "n_eff",
    "p_max",
    "saturated_90",
    "saturated_99",
    "live_rows",
    "logit_max",
    "logit_std_row",
    "score_std_row",
)
"""Statistics of docs/metrics.md that are taken; those of vectors need more than sampled rows."""

MAX_ENTRIES = 2**22
"""Entries of the score matrices that are in memory at once."""
MAX_MISFIT = 0.5
"""Above it the logits are no function of these scores, and no number is given."""
HIDDEN = 1e3
"""A key this far below the largest bias of its row is hidden."""
FIRST_OF = 8
"""Keys that a row must have more of for its first key to be a sink."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of some heads, (batch, head, query, key) each.

    Attributes:
        columns: Scores q' · k' of each product.
        logits: What the softmax gets.
        still: The same without q · k: masks and biases.
        weights: What it gives.
    """

    columns: Sequence[Tensor]
    logits: Tensor
    still: Tensor
    weights: Tensor


@dataclass
class Reading:
    """Figures of heads, as they come in."""

    slopes: list[Tensor] = field(default_factory=list)
    squares: list[Tensor] = field(default_factory=list)
    figures: dict[str, list[Tensor]] = field(default_factory=dict)
    first_key: list[Tensor] = field(default_factory=list)
    spread: list[Tensor] = field(default_factory=list)
    weight_sum: list[Tensor] = field(default_factory=list)
    masked: list[Tensor] = field(default_factory=list)
    bias: bool = False

    def heads(self, name: str) -> tuple[float, ...]:
        """Return a statistic of all heads."""
        return tuple(torch.cat(self.figures[name]).tolist())


def evenly(n: int, count: int, device: torch.device) -> Tensor:
    """Return at most ``count`` of the indices below n, evenly spread, the last among them."""
    count = min(n, count)
    return (
        torch.linspace(0, n - 1, count, device=device).round().long()
        if count > 1
        else (torch.tensor([n - 1], device=device))
    )


def sampled(batch: int, queries: int, rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return which sequences and queries are measured: ``rows`` of a head, spread over both."""
    n_batch = min(batch, max(4, rows // queries))
    return evenly(batch, n_batch, device), evenly(queries, max(1, rows // n_batch), device)


def head_blocks(heads: int, entries: int) -> Iterator[slice]:
    """Yield slices of the heads, each with at most :data:`MAX_ENTRIES` entries of its scores."""
    step = max(1, MAX_ENTRIES // max(1, entries))
    for first in range(0, heads, step):
        yield slice(first, min(heads, first + step))


def read(heads: int, entries: int, rows_of: Callable[[slice], Rows]) -> Reading:
    """Measure an attention, some heads at a time.

    Args:
        heads: How many there are.
        entries: Scores of a head that are measured.
        rows_of: Slice of heads -> their rows, in a wide type.

    Raises:
        ValueError: If there is nothing to measure, or the logits do not follow the scores.
    """
    reading = Reading()
    for block in head_blocks(heads, entries):
        _add(reading, rows_of(block))
    rest, whole = torch.stack(reading.squares).sum(dim=0).tolist()
    if whole == 0:
        raise ValueError("q · k is the same for all keys: there is nothing to measure")
    if (rest / whole) ** 0.5 > MAX_MISFIT:
        raise ValueError(
            f"the logits do not follow these scores (misfit {(rest / whole) ** 0.5:.2f})"
        )
    return reading


def _add(reading: Reading, rows: Rows) -> None:
    still, logits = rows.still, rows.logits
    if any(column.shape != logits.shape for column in rows.columns):
        raise ValueError("scores and logits have other shapes")
    largest = still.nan_to_num(neginf=-3e38).amax(dim=-1, keepdim=True)
    keep = still.isfinite() & (still > largest - HIDDEN) & logits.isfinite() & (logits > -1e30)
    count = keep.sum(dim=-1)
    seen = count > 1
    if not bool(seen.any()):
        raise ValueError("no row has two keys: there is nothing to measure")

    def centred(values: Tensor) -> Tensor:
        values = torch.where(keep, values, 0.0)
        mean = values.sum(dim=-1) / count.clamp(min=1)
        return torch.where(keep & seen[..., None], values - mean[..., None], 0.0)

    def by_head(values: Tensor) -> Tensor:
        return values.transpose(0, 1).flatten(1)

    change = centred(torch.where(keep, logits - still, 0.0))
    y = by_head(change)
    x = torch.stack([by_head(centred(column)) for column in rows.columns], dim=-1)
    gram, moment = x.mT @ x, x.mT @ y[..., None]
    slope = torch.linalg.lstsq(gram, moment).solution[..., 0]
    rest = (y - (x * slope[:, None]).sum(dim=-1)).square().sum()
    reading.slopes.append(slope)
    reading.squares.append(torch.stack((rest, y.square().sum())))
    n_seen = seen.sum(dim=(0, 2)).clamp(min=1)
    variance = change.square().sum(dim=-1) / (count - 1).clamp(min=1)
    reading.spread.append((variance.sum(dim=(0, 2)) / n_seen).sqrt())
    bias = centred(torch.where(keep, still, 0.0))
    reading.bias |= bool(bias.abs().max() > 1e-6 * change.abs().max().clamp(min=1e-30))
    weights = torch.where(keep, rows.weights, 0.0)
    total = weights.sum(dim=-1, keepdim=True)
    reading.weight_sum.append(torch.where(seen, total[..., 0], 0.0).sum(dim=(0, 2)) / n_seen)
    weights = weights / total.clamp(min=1e-30)
    long_rows = count > FIRST_OF
    first = torch.where(long_rows, weights[..., 0], 0.0).sum(dim=(0, 2))
    reading.first_key.append(first / long_rows.sum(dim=(0, 2)).clamp(min=1))
    reading.masked.append(1 - keep.double().mean(dim=(0, 2, 3)))
    sample = Sample(weights=weights, logits=logits, scores=rows.columns[0], keep=keep)
    for name, values in measure(sample, FIGURES).items():
        reading.figures.setdefault(name, []).append(values)


def unrelated_spread(q: Tensor, k: Tensor, slopes: Tensor) -> Tensor:
    """Return the spread of a row's logits if q and k were unrelated, of each head.

        slope · √(mean ‖q‖² · tr Cov(k) / d)

    Args:
        q: (batch, head, query, d).
        k: (batch, head, key, d); as many heads, or one for several of q (grouped).
        slopes: (head,).
    """
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1) if k.shape[1] != q.shape[1] else k
    squares = torch.linalg.vector_norm(q, dim=-1, dtype=torch.float32).square().mean(dim=(0, 2))
    centred = k.float() - k.float().mean(dim=-2, keepdim=True)
    variance = torch.linalg.vector_norm(centred, dim=-1).square().mean(dim=(0, 2))
    spread: Tensor = slopes.abs() * (squares * variance / q.shape[-1]).sqrt().to(slopes)
    return spread


def used(q: Tensor, k: Tensor) -> Tensor:
    """Return which components are not all zero: a head that is padded is no wider."""
    return (q != 0).flatten(0, -2).any(dim=0) | (k != 0).flatten(0, -2).any(dim=0)


def rows_at(values: Tensor, batch: Tensor, queries: Tensor) -> Tensor:
    """Return rows of (batch, head, query, key), in a wide type."""
    return wide(values.index_select(0, batch).index_select(2, queries))
