"""Modes that normalise q and k before their product, so that the logits are bounded.

    q̂ = q / ‖q‖,   RMS(q) = γ ⊙ q / √(mean q² + ε),   LN(q) = γ ⊙ (q − mean q) / √(var q + ε)

Random directions have a cosine of standard deviation 1/√d_k. A gain γ (length d_k) is shared by the
heads. Norms are taken in fp32 where q is narrower.

Sources: Liu et al. 2022, Swin Transformer V2 (``cosine``; its position bias is not part of the
mode); Henry et al. 2020, "Query-Key Normalization for Transformers" (``qknorm``); the
x-transformers library (``cosine_fixed``); Dehghani et al. 2023, ViT-22B (``qk_layernorm``, without
a bias); Gemma 3 technical report 2025 (``qk_rmsnorm``); Loshchilov et al. 2024, nGPT (``ngpt``,
whose scale is stored at 1/√d_model so that it learns at the pace of the other weights).
"""

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from attnscale.attention.scale.base import (
    Moments,
    Scale,
    checked,
    mean_of,
    per_head,
    positive,
    widen,
)


def _unit(x: Tensor) -> Tensor:
    wide = widen(x)
    # Added, not a bound: a vector of zeros stays zero, and clamping took a third of the time.
    return wide * (wide.square().sum(dim=-1, keepdim=True) + 1e-24).rsqrt()


def _rms(x: Tensor, eps: float) -> Tensor:
    wide = widen(x)
    return wide * (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt()


# --- one factor on the cosine ---


class Cosine(Scale):
    """A learned scale per head on the cosine, with a bound."""

    formula = "exp(min(τ_head, ln 100)) · q̂·k̂, τ starts at ln 10"
    source = "Liu et al. 2022, Swin Transformer V2"

    def __init__(self, *, n_heads: int, start: float = 10.0, largest: float = 100.0) -> None:
        """Set exp(τ) at the start, and its bound."""
        super().__init__()
        self.log_largest = math.log(positive("largest", largest))
        self.log_scale = nn.Parameter(torch.full((n_heads,), math.log(positive("start", start))))

    def learned_scale(self) -> Tensor:
        """Return exp(τ), bounded."""
        return self.log_scale.clamp(max=self.log_largest).exp()

    def qk(self, q: Tensor, k: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Normalise q and k, and multiply q by exp(τ)."""
        scaled = _unit(q) * per_head(self.learned_scale())
        return scaled.to(q.dtype), _unit(k).to(k.dtype)

    def predicted_std(self, moments: Moments) -> float:
        """Return the mean of exp(τ) times that of the cosine."""
        return mean_of(self.learned_scale()) * moments.cosine_std


class QKNorm(Scale):
    """One learned scale per attention on the cosine; its start depends on the data's length."""

    formula = (
        "g · q̂·k̂, one g per attention, starts at log₂(L² − L) with L the 97.5th percentile "
        "of the training sequences' lengths"
    )
    source = "Henry et al. 2020"
    statistics: ClassVar[Mapping[str, str]] = {"length": "length_p97_5"}

    def __init__(self, *, length: float) -> None:
        """Take L, at least 2."""
        super().__init__()
        checked("length", length, "a number from 2", lambda number: number >= 2)
        self.gain = nn.Parameter(torch.tensor([math.log2(length**2 - length)]))

    def learned_scale(self) -> Tensor:
        """Return g."""
        return self.gain

    def qk(self, q: Tensor, k: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Normalise q and k, and multiply q by g."""
        return (_unit(q) * self.gain).to(q.dtype), _unit(k).to(k.dtype)

    def predicted_std(self, moments: Moments) -> float:
        """Return g times that of the cosine."""
        return mean_of(self.gain) * moments.cosine_std


class CosineFixed(Scale):
    """A fixed factor on the cosine."""

    formula = "10 · q̂·k̂"
    source = "the x-transformers library, attn_qk_norm"

    def __init__(self, *, factor: float = 10.0) -> None:
        """Set what multiplies the cosine."""
        super().__init__()
        self.factor = positive("factor", factor)

    def qk(self, q: Tensor, k: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Normalise q and k, and multiply q by the factor."""
        return (_unit(q) * self.factor).to(q.dtype), _unit(k).to(k.dtype)

    def predicted_std(self, moments: Moments) -> float:
        """Return the factor times that of the cosine."""
        return self.factor * moments.cosine_std


# --- gains on the components ---


class QKRMSNorm(Scale):
    """Root mean square norm of q and k, with gains, in front of the usual scale."""

    formula = "RMS(q)·RMS(k) / √d_k, gains start at 1"
    source = "Gemma 3 technical report 2025 (gains stored as 1 + w there)"

    def __init__(self, *, d_k: int, eps: float = 1e-6) -> None:
        """Set ε under the square root."""
        super().__init__()
        self.eps = positive("eps", eps)
        # The order in which an optimizer's state in a checkpoint numbers them.
        self.k_gain = nn.Parameter(torch.ones(d_k))
        self.q_gain = nn.Parameter(torch.ones(d_k))

    def learned_scale(self) -> Tensor:
        """Return what multiplies the score of normalised q and k on average, (1,)."""
        return (self.q_gain * self.k_gain).square().mean().sqrt()[None]

    def qk(self, q: Tensor, k: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Normalise q and k."""
        # Both gains go to q: the product of q' and k' is the same, for one multiplication less.
        gain = self.q_gain * self.k_gain * q.shape[-1] ** -0.5
        normed = _rms(q, self.eps)
        return (normed * gain.to(normed.dtype)).to(q.dtype), _rms(k, self.eps).to(k.dtype)

    def predicted_std(self, moments: Moments) -> float:
        """Return the mean gain times √d_k times that of the cosine."""
        return float(mean_of(self.learned_scale()) * moments.d_k**0.5 * moments.cosine_std)


class QKLayerNorm(QKRMSNorm):
    """LayerNorm of q and k, with gains and without a bias, in front of the usual scale."""

    formula = "LN(q)·LN(k) / √d_k, gains start at 1, no bias"
    source = "Dehghani et al. 2023, ViT-22B (per head, gains shared by the heads)"

    def qk(self, q: Tensor, k: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Normalise q and k."""
        size = q.shape[-1:]
        wide_q, wide_k = widen(q), widen(k)
        q_gain = (self.q_gain * size[0] ** -0.5).to(wide_q.dtype)
        k_gain = self.k_gain.to(wide_k.dtype)
        normed_q = functional.layer_norm(wide_q, size, q_gain, None, self.eps)
        normed_k = functional.layer_norm(wide_k, size, k_gain, None, self.eps)
        return normed_q.to(q.dtype), normed_k.to(k.dtype)

    def predicted_std(self, moments: Moments) -> float:
        """Return that of ``qk_rmsnorm`` × √(d_k / (d_k − 1))."""
        # The components of a LayerNormed vector add up to 0, so that d_k − 1 of them are free.
        free = (moments.d_k / max(moments.d_k - 1, 1)) ** 0.5
        return float(super().predicted_std(moments) * free)


class NGPT(Scale):
    """Normalised q and k, each component with a learned scale of its own."""

    formula = "√d_k · (s⊙q̂)·(s⊙k̂), s per head and component, starts at 1"
    source = "Loshchilov et al. 2024, nGPT"

    def __init__(self, *, n_heads: int, d_k: int, d_model: int) -> None:
        """Start at s = 1."""
        super().__init__()
        self.d_model = float(d_model)
        # Stored at 1/√d_model, so that it learns at the pace of the other weights.
        self.scale = nn.Parameter(torch.full((n_heads, d_k), d_model**-0.5))

    def _squared(self) -> Tensor:
        """Return s², (head, d_k)."""
        return (self.scale * float(self.d_model**0.5)).square()

    def learned_scale(self) -> Tensor:
        """Return the root mean square of s² over the components."""
        return self._squared().square().mean(dim=-1).sqrt()

    def qk(self, q: Tensor, k: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Normalise q and k, and multiply q by s²."""
        # s stands with q and with k: once squared with q is the same, for one multiplication less.
        squared = self._squared()[:, None, :] * q.shape[-1] ** 0.5
        unit = _unit(q)
        return (unit * squared.to(unit.dtype)).to(q.dtype), _unit(k).to(k.dtype)

    def predicted_std(self, moments: Moments) -> float:
        """Return the mean of s² times √d_k times that of the cosine."""
        return float(mean_of(self.learned_scale()) * moments.d_k**0.5 * moments.cosine_std)
