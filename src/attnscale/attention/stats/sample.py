"""What one attention did with one batch, and the intermediates that its statistics share.

    ε_i   = Σ_{j≠m} p_ij,   T_ir = Σ_{j≠m} p_ij^r    (p_m the largest weight of the row)
    Σ p²  = p_m² + T_2      1 − Σ p² = ε (2 − ε) − T_2
    ‖J‖²  = Σp² − 2Σp³ + (Σp²)² = p_m² (ε² + T_2) + T_2 (1 + p_m² + T_2) − 2 T_3

J = diag(p) − p pᵀ is the Jacobian of the softmax. The forms with ε and T are the same numbers for
weights that add up to 1, without the cancellation of the usual ones: near a one-hot row those lose
in fp32 what is below 3·10⁻⁴ of ‖J‖, and such rows are what an unscaled attention is made of.

Each tensor of the size of the score matrix is walked when a statistic first asks for it, and once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from attnscale.attention.core import Attended
from attnscale.attention.scale import scores_of
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
        q = self.wide("q")
        real = self.real_queries
        if real is None:
            real = torch.ones((1,) * 3, dtype=torch.bool, device=q.device)
        return component_variance(q, real)

    @cached_property
    def k_var(self) -> Float[Tensor, " head"]:
        """Variance σ_k² of a component of the real keys."""
        return component_variance(self.wide("k"), self.attended)

    @cached_property
    def sigmas(self) -> Float[Tensor, " head"]:
        """σ_q σ_k."""
        return (self.q_var * self.k_var).sqrt()

    @cached_property
    def align(self) -> Float[Tensor, " head"]:
        """tr(C) / (d_k σ_q σ_k): the mean of q_i · k_j over kept pairs, in units of d_k σ_q σ_k."""
        trace = self.rows.total(self.score_spread.row_sum) / self.rows.pairs.clamp(min=1)
        return ratio(trace, self.d_k * self.sigmas)

    @cached_property
    def align_cos(self) -> Float[Tensor, " head"]:
        """Mean cosine of q_i and k_j over kept pairs."""
        each_key = ratio(torch.ones_like(self.key_lengths), self.key_lengths)
        summed = (self.score_spread.clean @ each_key[..., None])[..., 0]
        cosines = ratio(summed, self.query_lengths)
        return self.rows.total(cosines) / self.rows.pairs.clamp(min=1)


def sample_of(
    attended: Sequence[Attended], real_queries: Bool[Tensor, "batch query"] | None = None
) -> Sample:
    """Return the sample of what a tap received from one attention, or from several that are alike.

    Small tensors cost what starting their operations costs, so several attentions are measured as
    if their heads were those of one.

    Args:
        attended: What the tap received: the same shapes, mask, and kind of mode.
        real_queries: True where a query is no padding; None if all are real.
    """
    first = attended[0]
    inputs = [one.x for one in attended if one.x is not None]
    x: Tensor | None = inputs[0] if inputs else None
    if any(one is not x for one in inputs):
        x = torch.stack(inputs, dim=1)

    def heads(tensors: list[Tensor]) -> Tensor:
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim=1)

    q, k = (heads([getattr(one, name) for one in attended]) for name in ("raw_q", "raw_k"))
    return Sample(
        weights=heads([one.weights() for one in attended]) if first.scale.is_softmax else None,
        logits=heads([one.logits() for one in attended]),
        scores=scores_of(q, k),
        q=q,
        k=k,
        x=x,
        keep=first.keep,
        real_queries=None if real_queries is None else real_queries[:, None, :],
    )
