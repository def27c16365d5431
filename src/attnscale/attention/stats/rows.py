"""Rows of a score matrix: which of them count, averages over them, and their spread.

    n_i   = number of kept keys of row i          counted: real rows with n_i ≥ 2
    c_ij  = s_ij − mean_j s_ij over kept keys     Var_i = Σ_j c_ij² / (n_i − 1)
    std_row² = mean_i Var_i                       std_total² = Σ_ij (s_ij − s̄)² / (N − 1)

N is the number of kept pairs of the counted rows of a head. The sum in std_total² is put together
from rows, Σ_j c_ij² + n_i (mean_j s_ij − s̄)², so the matrix is not walked again for it.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscale.attention.stats.vectors import blank


@dataclass(frozen=True, eq=False)
class Rows:
    """The counted rows of a sample, and averages over them. Every average is 0 without any row.

    Attributes:
        like: A tensor (batch, head, query, key): its shape, dtype and device are used.
        keep: True where a key may be attended, with four axes, the last of the full size; or None.
        real_queries: True where a query is no padding, with three axes; or None.
    """

    like: Tensor
    keep: Tensor | None
    real_queries: Tensor | None

    @cached_property
    def n(self) -> Tensor:
        """Kept keys of each row, broadcastable to (batch, head, query)."""
        if self.keep is None:
            return torch.full((1, 1, 1), self.like.shape[-1], device=self.like.device)
        return self.keep.sum(dim=-1)

    @cached_property
    def size(self) -> Tensor:
        """Kept keys as a float; 0 or 1 divides only rows that do not count, never summed."""
        return self.n.to(self.like.dtype)

    @cached_property
    def weight(self) -> Tensor | None:
        """``keep`` as 1 and 0; or None."""
        return None if self.keep is None else self.keep.to(self.like.dtype)

    @cached_property
    def floor(self) -> Tensor | None:
        """What a maximum over kept keys adds: 0, and −∞ at hidden keys; or None."""
        if self.keep is None:
            return None
        return torch.zeros_like(self.keep, dtype=self.like.dtype).masked_fill(
            ~self.keep, -torch.inf
        )

    @cached_property
    def counted(self) -> Bool[Tensor, "batch head query"]:
        """True for real rows with at least two kept keys."""
        several = self.n > 1
        if self.real_queries is not None:
            several = several & self.real_queries
        return several.expand(self.like.shape[:3])

    @cached_property
    def count(self) -> Float[Tensor, " head"]:
        """Number of counted rows of each head."""
        return self.counted.sum(dim=(0, 2)).to(self.like.dtype)

    @cached_property
    def pairs(self) -> Float[Tensor, " head"]:
        """Number of kept (query, key) pairs in the counted rows of each head."""
        return self.total(self.size)

    def totals(self, *values: Tensor) -> Tensor:
        """Add up over counted rows, several at once: each (batch, head, query) -> (each, head)."""
        shape = self.counted.shape
        together = torch.stack([each.expand(shape) for each in values])
        return torch.where(self.counted, together, 0.0).sum(dim=(1, 3))

    def means(self, *values: Tensor) -> Tensor:
        """Average over counted rows, several at once: each (batch, head, query) -> (each, head)."""
        return self.totals(*values) / self.count.clamp(min=1)

    def total(self, values: Tensor) -> Tensor:
        """Add up over counted rows: (batch, head, query) -> (head,)."""
        return torch.where(self.counted, values, 0.0).sum(dim=(0, 2))

    def mean(self, values: Tensor) -> Tensor:
        """Average over counted rows: (batch, head, query) -> (head,)."""
        return self.total(values) / self.count.clamp(min=1)

    def max(self, values: Tensor) -> Tensor:
        """Return the largest value of the counted rows: (batch, head, query) -> (head,)."""
        largest = torch.where(self.counted, values, -torch.inf).amax(dim=(0, 2))
        return torch.where(self.count > 0, largest, 0.0)

    def quantile(self, values: Tensor, level: float) -> Tensor:
        """Return a quantile over the counted rows of each head, linear between two rows."""
        # (batch, head, query) -> (head, batch · query), what does not count at the end
        ordered = torch.where(self.counted, values, torch.inf).transpose(0, 1).flatten(1)
        n = ordered.shape[-1]
        needed = min(n, math.ceil(level * (n - 1)) + 2)
        ordered = ordered.topk(needed, dim=-1, largest=False).values
        last = (self.count - 1).clamp(min=0)
        low = (level * last).long()
        ends = torch.stack([low, (low + 1).minimum(last.long())], dim=-1)
        below, above = ordered.gather(-1, ends).unbind(dim=-1)
        quantiles = below + (above - below) * (level * last - low)
        return torch.where(self.count > 0, quantiles, 0.0)


@dataclass(frozen=True, eq=False)
class Spread:
    """How far the kept entries of a score or logit matrix are from their row's mean.

    Attributes:
        values: (batch, head, query, key), fp32 or wider.
        rows: The rows that count.
    """

    values: Tensor
    rows: Rows

    @cached_property
    def clean(self) -> Float[Tensor, "batch head query key"]:
        """The entries, with 0 at hidden keys."""
        keep, weight = self.rows.keep, self.rows.weight
        if keep is None or weight is None:
            return self.values
        return blank(self.values, keep, weight)

    @cached_property
    def row_max(self) -> Tensor:
        """Largest kept entry of each row."""
        floor = self.rows.floor
        return (self.clean if floor is None else self.clean + floor).amax(dim=-1)

    @cached_property
    def row_sum(self) -> Tensor:
        """Sum of the kept entries of each row."""
        return self.clean.sum(dim=-1)

    @cached_property
    def row_mean(self) -> Tensor:
        """Mean of the kept entries of each row."""
        return self.row_sum / self.rows.size

    @cached_property
    def squares(self) -> Float[Tensor, "batch head query key"]:
        """Squared distance of each kept entry from its row's mean; 0 at hidden keys."""
        distance = self.clean - self.row_mean[..., None]
        if self.rows.weight is not None:
            distance *= self.rows.weight
        return distance.square_()

    @cached_property
    def row_squares(self) -> Tensor:
        """Sum of the squares of each row."""
        return self.squares.sum(dim=-1)

    @cached_property
    def _totals(self) -> tuple[Tensor, ...]:
        """Over the counted rows of each head: Var_i, the entries, n_i Var_i."""
        variance = self.row_squares / (self.rows.size - 1)
        totals = self.rows.totals(variance, self.row_sum, self.rows.size * variance)
        return totals.unbind()

    @cached_property
    def std_row(self) -> Float[Tensor, " head"]:
        """Square root of the mean variance (n − 1) of a row."""
        return (self._totals[0] / self.rows.count.clamp(min=1)).sqrt()

    @cached_property
    def std_total(self) -> Float[Tensor, " head"]:
        """Standard deviation (N − 1) of all N kept entries, whatever their row."""
        mean = self._totals[1] / self.rows.pairs
        between = self.rows.size * (self.row_mean - mean[:, None]).square()
        squares = self.rows.total(self.row_squares + between)
        return (squares / (self.rows.pairs - 1).clamp(min=1)).sqrt()

    @cached_property
    def kurtosis(self) -> Float[Tensor, " head"]:
        """Fourth moment over squared variance of the pooled c_ij √(n_i / (n_i − 1)).

        The root undoes what centring takes from a short row, so that rows of different lengths
        are comparable and independent Gaussian entries of one variance give 3, not 0.
        """
        pairs = self.rows.pairs.clamp(min=1)
        variance = self._totals[2] / pairs
        # Divided before it is squared: a fourth power overflows fp32 from 4·10⁹ on.
        some = variance > torch.finfo(variance.dtype).tiny
        precision = torch.where(some, 1 / torch.where(some, variance, 1.0), 0.0)
        fourth = (self.squares * precision[:, None, None]).square_().sum(dim=-1)
        correction = self.rows.size / (self.rows.size - 1)
        return self.rows.total(correction.square() * fourth) / pairs
