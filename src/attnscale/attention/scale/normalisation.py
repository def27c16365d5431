"""Modes that normalise q and k before their product, so that the logits are bounded.

    q̂ = q / ‖q‖,   RMS(q) = γ ⊙ q / √(mean q² + ε),   LN(q) = γ ⊙ (q − mean q) / √(var q + ε)

Random directions have a cosine of standard deviation 1/√d_k. A gain γ (length d_k) is shared by the
heads. Norms are taken in fp32 where q is narrower. A vector of zeros, of a padded position, has no
direction: it stays zero, and so does its gradient, which would be 1/√ε times that of its neighbours
and no number in half precision.

Sources: Liu et al. 2022, Swin Transformer V2 (``cosine``; its position bias is not part of the
mode); Henry et al. 2020, "Query-Key Normalization for Transformers" (``qknorm``); the
x-transformers library (``cosine_fixed``); Dehghani et al. 2023, ViT-22B (``qk_layernorm``, without
a bias); Gemma 3 technical report 2025 (``qk_rmsnorm``; with ``over_heads`` as in OLMo 2, "2 OLMo 2
Furious", 2025, and ``scalar`` as in Gemma 3 27B, 168 for d_k = 128); Loshchilov et al. 2024, nGPT
(``ngpt``, whose scale is stored at 1/√d_model so that it learns at the pace of the other weights).
"""

import math
from collections.abc import Mapping
from typing import ClassVar, cast

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
    root_factor,
    widen,
)


def _inverse_root(squares: Tensor, eps: float) -> Tensor:
    """Return 1/√(squares + ε), and 0 where there is nothing to divide."""
    # ε is added, not a bound: clamping took a third of the time. The threshold is one operation.
    return (functional.threshold(squares, 0.0, torch.inf) + eps).rsqrt()


def _unit(x: Tensor) -> Tensor:
    wide = widen(x)
    return wide * _inverse_root(wide.square().sum(dim=-1, keepdim=True), 1e-24)


def _rms(x: Tensor, eps: float) -> Tensor:
    wide = widen(x)
    return wide * _inverse_root(wide.square().mean(dim=-1, keepdim=True), eps)


def _layer_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    wide = widen(x)
    normed, mean, inverse = torch.native_layer_norm(
        wide, wide.shape[-1:], gain.to(wide.dtype), None, eps
    )
    # Of a vector of zeros the mean is 0, and ε alone is under the root. To read this off costs a
    # tenth of looking at the vectors.
    alive = (mean != 0) | (inverse < (1 - 4 * torch.finfo(wide.dtype).eps) * eps**-0.5)
    return cast(Tensor, normed * alive)


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
    source = "Gemma 3 technical report 2025 (gains stored as 1 + w there); `over_heads=1` is OLMo 2"

    def __init__(
        self, *, n_heads: int, d_k: int, eps: float = 1e-6, over_heads: float = 0, scalar: float = 0
    ) -> None:
        """Set ε under the square root, whether the heads have one norm (1, 0), and s of 1/√s.

        With one norm for all heads of a position, its mean and its gains are over n_heads · d_k
        components.
        """
        super().__init__()
        self.eps, self.d_k, self.factor = positive("eps", eps), d_k, root_factor(scalar, d_k)
        self.over_heads = checked("over_heads", over_heads, "0 or 1", lambda flag: flag in (0, 1))
        size = n_heads * d_k if over_heads else d_k
        # The order in which an optimizer's state in a checkpoint numbers them.
        self.k_gain = nn.Parameter(torch.ones(size))
        self.q_gain = nn.Parameter(torch.ones(size))

    def learned_scale(self) -> Tensor:
        """Return what multiplies the score of normalised q and k on average, (1,) or per head."""
        return (self.q_gain * self.k_gain).view(-1, self.d_k).square().mean(dim=-1).sqrt()

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return q and k normalised over their last axis, q times its factor."""
        # Both gains go to q: the product of q' and k' is the same, for one multiplication less.
        gain = self.q_gain * self.k_gain * self.factor
        normed = _rms(q, self.eps)
        return normed * gain.to(normed.dtype), _rms(k, self.eps)

    def qk(self, q: Tensor, k: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Normalise q and k."""
        if self.over_heads:
            # (batch, head, position, d_k) -> (batch, position, head * d_k), and back
            joined = self.normed(*(x.transpose(1, 2).flatten(2) for x in (q, k)))
            normed_q, normed_k = (
                x.view(*x.shape[:2], -1, self.d_k).transpose(1, 2) for x in joined
            )
        else:
            normed_q, normed_k = self.normed(q, k)
        return normed_q.to(q.dtype), normed_k.to(k.dtype)

    def predicted_std(self, moments: Moments) -> float:
        """Return the mean gain times d_k/√s times that of the cosine."""
        gain = mean_of(self.learned_scale())
        return float(gain * moments.d_k * self.factor * moments.cosine_std)


class QKLayerNorm(QKRMSNorm):
    """LayerNorm of q and k, with gains and without a bias, in front of the usual scale."""

    formula = "LN(q)·LN(k) / √d_k, gains start at 1, no bias"
    source = "Dehghani et al. 2023, ViT-22B (per head, gains shared by the heads)"

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return q and k normalised over their last axis, q times its factor."""
        q_gain = self.q_gain * self.factor
        return _layer_norm(q, q_gain, self.eps), _layer_norm(k, self.k_gain, self.eps)

    def predicted_std(self, moments: Moments) -> float:
        """Return that of ``qk_rmsnorm`` × √(m / (m − 1)) for m normalised components."""
        # The components of a LayerNormed vector add up to 0, so that m − 1 of them are free.
        size = len(self.q_gain)
        free = (size / max(size - 1, 1)) ** 0.5
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
