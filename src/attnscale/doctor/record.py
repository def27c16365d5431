"""What was seen of an attention in one pass, in plain values."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Attention:
    """One attention of a model, as one forward pass used it.

    Attributes:
        path: Module path as in ``model.named_modules()``; "(model)" for the model itself.
        call: Which call of an attention at that path in the pass, from 0.
        how: "fused", "eager", "native" (PyTorch's own layer kernels) or "flex".
        default_scale: Whether a fused kernel was left to its own 1/√d.
        heads: Heads, or None where they are folded into the batch and nobody says how many.
        batch: Sequences.
        queries: Queries of a sequence.
        keys: Keys of a sequence, without sinks.
        rows: Rows of a head that were measured.
        d_k: Components of q and k that are used, that is, not all zero.
        d_product: Components of the tensors that are multiplied; more where heads are padded.
        d_model: Width of what q is projected from, or None if that was not seen.
        scales: Effective factor on q · k of each head, on q and k as they left their projections,
            or, where they are normalised, as the normalisation left them.
        further_scales: Those of further products in the same logits, mean over heads.
        factor_q: What q was multiplied by between there and the product.
        factor_k: The same of k.
        origin_q: "raw", "rescaled", "normalised", "put together" or "unknown".
        origin_k: The same of k.
        misfit: ‖logits − fit‖ / ‖logits‖ of the least squares, 0 to 1.
        softcap: c of c · tanh(· / c), or None.
        bias: Whether something besides q · k and masks differs within rows.
        masked: Share of keys that are hidden, of the rows that were measured.
        sinks: Columns of the softmax without a key.
        end: What makes weights of logits: "softmax", "exp" or "sigmoid".
        figures: Statistic of docs/metrics.md -> value of each head.
        spread: Standard deviation of what q · k contributes to a row's logits, of each head.
        predicted: The same if q and k were unrelated: scale · √(mean ‖q‖² · tr Cov(k) / d_k).
        first_key: Mean weight of the first key of each head, over rows of more than 8 keys.
        weight_sum: Mean sum of a row's weights over its keys; below 1 with sinks.
        output_error: max |output − softmax(scale · q kᵀ + mask) v| / max |output| of a fused
            kernel; None where it was not looked at.
    """

    path: str
    call: int
    how: str
    default_scale: bool
    heads: int | None
    batch: int
    queries: int
    keys: int
    rows: int
    d_k: int
    d_product: int
    d_model: int | None
    scales: tuple[float, ...]
    further_scales: tuple[float, ...]
    factor_q: float
    factor_k: float
    origin_q: str
    origin_k: str
    misfit: float
    softcap: float | None
    bias: bool
    masked: float
    sinks: int
    end: str
    figures: Mapping[str, tuple[float, ...]]
    spread: tuple[float, ...]
    predicted: tuple[float, ...]
    first_key: tuple[float, ...]
    weight_sum: float
    output_error: float | None

    @property
    def scale(self) -> float:
        """Effective factor on q · k, mean over heads."""
        return sum(self.scales) / len(self.scales)

    @property
    def times_sqrt(self) -> float:
        """The scale as a multiple of 1/√d_k."""
        return float(self.scale * self.d_k**0.5)

    @property
    def name(self) -> str:
        """The path, with the number of the call where it is not the first."""
        return f"{self.path}#{self.call}" if self.call else self.path

    def figure(self, name: str) -> float:
        """Return a statistic's mean over heads."""
        heads = self.figures[name]
        return sum(heads) / len(heads)


@dataclass(frozen=True, kw_only=True)
class NotVisible:
    """What looked like an attention and could not be read; nothing is guessed of it.

    Attributes:
        path: Module path.
        operation: The operation at which it was lost.
        reason: Why.
    """

    path: str
    operation: str
    reason: str
