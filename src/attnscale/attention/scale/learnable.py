"""Modes with a learned scale: logit = exp(τ) · r, τ starts at −½ ln d_k.

Source: Lee et al. 2021, "Vision Transformer for Small-Size Datasets", section 3.2, where τ is one
number per layer (``learned_shared``); that paper also hides the diagonal, which is a mask and not
part of the mode. ``learned`` has one τ per head. What is learned multiplies the logits: a
temperature would divide them.
"""

import math

import torch
from torch import Tensor, nn

from attnscale.attention.scale.base import Moments, Scale, mean_of, per_head


class Learned(Scale):
    """One learned scale per head."""

    formula = "exp(τ_head) · r, τ starts at −½ ln d_k"
    source = "Lee et al. 2021, section 3.2 (one per layer there)"

    def __init__(self, *, n_heads: int, d_k: int) -> None:
        """Start at ``sqrt``."""
        super().__init__()
        self.log_scale = nn.Parameter(torch.full((n_heads,), -0.5 * math.log(d_k)))

    def learned_scale(self) -> Tensor:
        """Return exp(τ)."""
        return self.log_scale.exp()

    def qk(self, q: Tensor, k: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Multiply q by exp(τ)."""
        return q * per_head(self.learned_scale()).to(q.dtype), k

    def predicted_std(self, moments: Moments) -> float:
        """Return the mean of exp(τ) times that of the scores."""
        return mean_of(self.learned_scale()) * moments.score_std


class LearnedShared(Learned):
    """One learned scale for all heads of an attention."""

    formula = "exp(τ) · r, one τ per attention, starts at −½ ln d_k"
    source = "Lee et al. 2021, section 3.2 (which also hides the diagonal)"

    def __init__(self, *, d_k: int) -> None:
        """Start at ``sqrt``."""
        super().__init__(n_heads=1, d_k=d_k)
