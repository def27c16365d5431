"""What one attention did with one batch, and the intermediates that its statistics share.

    ε_i   = Σ_{j≠m} p_ij,   T_ir = Σ_{j≠m} p_ij^r    (p_m the largest weight of the row)
    Σ p²  = p_m² + T_2      1 − Σ p² = ε (2 − ε) − T_2
    ‖J‖²  = Σp² − 2Σp³ + (Σp²)² = p_m² (ε² + T_2) + T_2 (1 + p_m² + T_2) − 2 T_3

J = diag(p) − p pᵀ is the Jacobian of the softmax. The forms with ε and T are the same numbers for
weights that add up to 1, without the cancellation of the usual ones: near a one-hot row those lose
in fp32 what is below 3·10⁻⁴ of ‖J‖, and such rows are what an unscaled attention is made of.

Each tensor of the size of the score matrix is walked when a statistic first asks for it, and once.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from attnscale.attention.scale.base import widen
from attnscale.attention.stats.rows import Rows, Spread
from attnscale.attention.stats.vectors import blank, component_variance, cosine_of_units, ratio


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """What one attention did with one batch. Pass what the statistics need.

    Polarity of every mask: True is kept, or real. Values at places that are hidden or not real are
    never used, whatever they are.

    Attributes:
        weights: After the softmax, before dropout: 0 at hidden keys, else they add up to 1.
        logits: Scaled scores, before the mask.
        scores: q · k before any scale; None to compute them from ``q`` and ``k``.
        q: Queries, before the scale mode touches them.
        k: Keys, likewise.
        x: The layer input that the keys are made of; (batch, input, key, d_model) where the heads
            are those of several attentions with an input each, one after the other.
        w_q: Weight of the query projection, the heads one after the other.
        w_k: Weight of the key projection, likewise.
        keep: Broadcastable to (batch, head, query, key); None keeps every key.
        real_queries: Broadcastable to (batch, head, query), with three axes; None if all are real.

    Raises:
        ValueError: If there is no tensor to read the shape from, or the mask of real queries has
            not three axes (with two, batch would silently be read as head).
    """

    _MATRICES: ClassVar = ("weights", "logits", "scores")

    weights: Float[Tensor, "batch head query key"] | None = None
    logits: Float[Tensor, "batch head query key"] | None = None
    scores: Float[Tensor, "batch head query key"] | None = None
    q: Float[Tensor, "batch head query d_k"] | None = None
    k: Float[Tensor, "batch head key d_k"] | None = None
    x: Float[Tensor, "batch *input key d_model"] | None = None
    w_q: Float[Tensor, "rows d_model"] | None = None
    w_k: Float[Tensor, "rows d_model"] | None = None
    keep: Bool[Tensor, "..."] | None = None
    real_queries: Bool[Tensor, "..."] | None = None

    def __post_init__(self) -> None:
        """Refuse what would be read wrongly without an error."""
        mask = self.real_queries
        if mask is not None and mask.ndim != 3:
            raise ValueError(
                f"real_queries has shape {tuple(mask.shape)}: needs three axes, (batch, head or "
                "1, position)"
            )
        if all(getattr(self, name) is None for name in self._MATRICES) and (
            self.q is None or self.k is None
        ):
            raise ValueError("needs weights, logits or scores, or both q and k")

    def wide(self, name: str) -> Tensor:
        """Return an input in fp32 or wider.

        Raises:
            ValueError: If the sample was made without it.
        """
        values: Tensor | None = getattr(self, name)
        if values is None:
            raise ValueError(f"needs Sample.{name}, which is None")
        return widen(values)

    @cached_property
    def _like(self) -> Tensor:
        """A tensor with the shape (batch, head, query, key), for shape, dtype and device only."""
        for name in self._MATRICES:
            if getattr(self, name) is not None:
                return self.wide(name)
        q, k = self.wide("q"), self.wide("k")
        return q.new_empty(()).expand(*q.shape[:3], k.shape[2])

    @cached_property
    def n_heads(self) -> int:
        """Number of heads."""
        return self._like.shape[1]

    @cached_property
    def d_k(self) -> int:
        """Length of a query or key."""
        return self.wide("q").shape[-1]

    @cached_property
    def rows(self) -> Rows:
        """The rows that count."""
        keep = self.keep
        if keep is not None:
            keep = keep.reshape((1,) * (4 - keep.ndim) + keep.shape)
            keep = keep.expand(-1, -1, -1, self._like.shape[-1])
        return Rows(self._like, keep, self.real_queries)

    @cached_property
    def logit_spread(self) -> Spread:
        """The logits, row by row."""
        return Spread(self.wide("logits"), self.rows)

    @cached_property
    def score_spread(self) -> Spread:
        """The raw scores, row by row."""
        if self.scores is None:
            return Spread(self.wide("q") @ self.wide("k").mT, self.rows)
        return Spread(self.wide("scores"), self.rows)

    @cached_property
    def entropy(self) -> Tensor:
        """Entropy H_i of each row, nats."""
        weights = self.wide("weights")
        # A weight of 0 adds 0; a logarithm is cheaper than ``torch.special.entr``.
        logs = weights.clamp_min(torch.finfo(weights.dtype).tiny).log_()
        return -logs.mul_(weights).sum(dim=-1)

    @cached_property
    def entropy_norm(self) -> Tensor:
        """H_i / ln n_i of each row, 0 to 1."""
        return self.entropy / self.rows.size.log()

    @cached_property
    def _rest(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Largest weight of each row, and ε, T_2 and T_3 of the others."""
        weights = self.wide("weights")
        top = weights.max(dim=-1, keepdim=True)
        rest = weights.scatter(-1, top.indices, 0.0)
        first = rest.sum(dim=-1)
        square = rest * rest
        return top.values[..., 0], first, square.sum(dim=-1), rest.mul_(square).sum(dim=-1)

    @cached_property
    def p_max(self) -> Tensor:
        """Largest weight of each row."""
        return self._rest[0]

    @cached_property
    def p_squared(self) -> Tensor:
        """Σ_j p_ij² of each row."""
        top, _, second, _ = self._rest
        return top.square() + second

    @cached_property
    def one_minus_p_squared(self) -> Tensor:
        """1 − Σ_j p_ij² of each row, the trace of the Jacobian of the softmax."""
        _, first, second, _ = self._rest
        return first * (2 - first) - second

    @cached_property
    def jacobian_squared(self) -> Tensor:
        """Squared Frobenius norm of the Jacobian of the softmax of each row."""
        top, first, second, third = self._rest
        square = top.square()
        main = square * (first.square() + second)
        return main + second * (1 + square + second) - 2 * third

    @cached_property
    def jac_fro_rms(self) -> Float[Tensor, " head"]:
        """Root mean square of the Jacobian's Frobenius norm."""
        return self.rows.mean(self.jacobian_squared).sqrt()

    @cached_property
    def attended(self) -> Bool[Tensor, "#batch #head #key"]:
        """True where some real query may attend to the key, which so is no padding."""
        keep = self.rows.keep
        if keep is None:
            keep = torch.ones((1,) * 4, dtype=torch.bool, device=self._like.device)
        if self.real_queries is not None:
            keep = keep & self.real_queries[..., None]
        return keep.any(dim=-2)

    @cached_property
    def key_lengths(self) -> Tensor:
        """Length of each key that some query may attend, else 0."""
        lengths: Tensor = torch.linalg.vector_norm(self.wide("k"), dim=-1)
        return torch.where(self.attended, lengths, 0.0)

    @cached_property
    def query_lengths(self) -> Tensor:
        """Length of each query."""
        lengths: Tensor = torch.linalg.vector_norm(self.wide("q"), dim=-1)
        return lengths

    @cached_property
    def _inputs(self) -> Float[Tensor, "batch input key d_model"]:
        """The layer inputs; one, unless the sample is of several attentions."""
        x = self.wide("x")
        return x[:, None] if x.ndim == 3 else x

    @cached_property
    def _real_x(self) -> Bool[Tensor, "batch some key"]:
        """True where a position of the layer input is no padding, for each head or for all."""
        batch, _, positions, _ = self._inputs.shape
        return self.attended.expand(batch, -1, positions)

    @cached_property
    def unit_x(self) -> Float[Tensor, "batch input key d_model"]:
        """The layer inputs as vectors of length 1, 0 where no head has a real key."""
        real = self._real_x.any(dim=1)[:, None, :, None]
        return functional.normalize(blank(self._inputs, real, real.to(self._inputs.dtype)), dim=-1)

    @cached_property
    def x_cos(self) -> Float[Tensor, " head"]:
        """Mean cosine of two different real positions of a head's layer input."""
        cosines = cosine_of_units(self.unit_x, self._real_x)
        return cosines.repeat_interleave(self.n_heads // len(cosines))

    @cached_property
    def q_var(self) -> Float[Tensor, " head"]:
        """Variance σ_q² of a component of the real queries."""
        q, real = self.wide("q"), self.real_queries
        everything = torch.ones((1,) * 3, dtype=torch.bool, device=q.device)
        return component_variance(q, everything if real is None else real)

    @cached_property
    def k_var(self) -> Float[Tensor, " head"]:
        """Variance σ_k² of a component of the real keys."""
        return component_variance(self.wide("k"), self.attended)

    @cached_property
    def align(self) -> Float[Tensor, " head"]:
        """tr(C) / (d_k σ_q σ_k): the mean of q_i · k_j over kept pairs, in units of d_k σ_q σ_k."""
        trace = self.rows.total(self.score_spread.row_sum) / self.rows.pairs.clamp(min=1)
        return ratio(trace, self.d_k * (self.q_var * self.k_var).sqrt())

    @cached_property
    def align_cos(self) -> Float[Tensor, " head"]:
        """Mean cosine of q_i and k_j over kept pairs."""
        each_key = ratio(torch.ones_like(self.key_lengths), self.key_lengths)
        summed = (self.score_spread.clean @ each_key[..., None])[..., 0]
        cosines = ratio(summed, self.query_lengths)
        return self.rows.total(cosines) / self.rows.pairs.clamp(min=1)

    @cached_property
    def align_top(self) -> Float[Tensor, " head"]:
        """Mean cosine of q_i and the key with the largest logit of its row."""
        floor = self.rows.floor
        logits = self.logit_spread.clean if floor is None else self.logit_spread.clean + floor
        top = logits.argmax(dim=-1, keepdim=True)
        lengths = self.key_lengths[:, :, None].expand(logits.shape).gather(-1, top)[..., 0]
        scores = self.score_spread.clean.gather(-1, top)[..., 0]
        return self.rows.mean(ratio(scores, lengths * self.query_lengths))

    @cached_property
    def q_rms(self) -> Float[Tensor, " head"]:
        """Root mean square of a component of the counted rows' queries."""
        return (self.rows.mean(self.query_lengths.square()) / self.d_k).sqrt()

    @cached_property
    def k_rms(self) -> Float[Tensor, " head"]:
        """Root mean square of a component of the real keys."""
        count = self.attended.expand(self.key_lengths.shape).sum(dim=(0, 2)).clamp(min=1)
        return (self.key_lengths.square().sum(dim=(0, 2)) / (count * self.d_k)).sqrt()

    @cached_property
    def row_cos(self) -> Float[Tensor, " head"]:
        """Mean over counted rows of the mean cosine of two different inputs that the row sees."""
        unit, weight, n = self.unit_x, self.rows.weight, self.rows.size
        if weight is None:
            weight = unit.new_ones(1, 1, 1, unit.shape[-2])
        # The sum over pairs of unit vectors is the squared length of their sum, less the diagonal.
        squares = (weight @ unit).square().sum(dim=-1)
        squares = squares.repeat_interleave(self.n_heads // squares.shape[1], dim=1)
        return self.rows.mean((squares - n) / (n * (n - 1))).clamp(max=1)

    @cached_property
    def sizes_std(self) -> Float[Tensor, " head"]:
        """√d_k · rms q · rms k · √(1 − c̄): what sizes alone make of the deviation in a row."""
        return self.q_rms * self.k_rms * (self.d_k * (1 - self.row_cos)).sqrt()

    @cached_property
    def permuted_std(self) -> Float[Tensor, " head"]:
        """score_std_row of queries with the previous sequence's keys; 0 if there is but one."""
        q, k, keep = self.wide("q"), self.wide("k"), self.rows.keep
        if len(q) == 1:
            return q.new_zeros(self.n_heads)
        rows = Rows(self._like, None if keep is None else keep.roll(1, 0), self.real_queries)
        return Spread(q @ k.roll(1, 0).mT, rows).std_row
