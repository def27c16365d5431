"""Modes whose factor depends on n, the number of kept keys of a row.

    log_n       ln(n) · r / √d_k
    log_n_base  log_base(n) · r / √d_k, equal to sqrt at n = base
    ssmax       s_head · ln(n) · r / √d_k

n is the source's length in cross-attention and i + 1 in row i (from 0) of causal self-attention,
also while decoding step by step. With n = 1 the logit is 0; a softmax over one key does not mind.

Sources: Chiang & Cholak 2022, "Overcoming a Theoretical Limitation of Self-Attention" (``log_n``,
there applied to the input of W_q, so that its bias is not multiplied); Su 2021, on entropy
invariance (``log_n_base``); Nakanishi 2025, "Scalable-Softmax Is Superior for Attention"
(``ssmax``). Subtracting s · ln n instead of multiplying would do nothing at all.
"""

import math

import torch
from torch import Tensor, nn

from attnscale.attention.masks import kept_count
from attnscale.attention.scale.base import (
    Moments,
    Scale,
    checked,
    mean_of,
    per_head,
    positive,
    widen,
)


class LogN(Scale):
    """ln n in front of the usual scale."""

    formula = "ln(n) · r / √d_k"
    source = "Chiang & Cholak 2022 (there on the input of W_q, so not on its bias)"

    def factor(self, log_n: Tensor | float) -> Tensor | float:
        """Return what multiplies r / √d_k in a row of n keys; a tensor is (…, query or 1, 1)."""
        return log_n

    def qk(self, q: Tensor, k: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Multiply each query by its row's factor."""
        wide, n = widen(q), kept_count(keep, k.shape[2])
        # A row with no key has weights 0 whatever its logits; ln 0 would make it NaN.
        if isinstance(n, Tensor):
            log_n: Tensor | float = n.to(wide.dtype).clamp_min(1).log()
        else:
            log_n = math.log(max(n, 1.0))
        factor = self.factor(log_n) * q.shape[-1] ** -0.5
        # The product is rounded once, whether n is a number or a tensor: a step of decoding, which
        # has no mask, must equal the row of a whole pass, which has one.
        return (wide * factor).to(q.dtype), k

    def predicted_std(self, moments: Moments) -> float:
        """Return ln n / √d_k times that of the scores."""
        return float(moments.log_n * moments.d_k**-0.5 * moments.score_std)


class LogNBase(LogN):
    """The logarithm to a base, where the mode equals ``sqrt``."""

    formula = "log_base(n) · r / √d_k, equal to sqrt at n = base"
    source = "Su 2021, on entropy invariance"

    def __init__(self, *, base: float = 14.0) -> None:
        """Set the base; 14 is the mean length of Multi30k's sentences."""
        super().__init__()
        self.base = checked("base", base, "a number above 1", lambda number: number > 1)

    def factor(self, log_n: Tensor | float) -> Tensor | float:
        """Return log_base n."""
        return log_n / math.log(self.base)

    def predicted_std(self, moments: Moments) -> float:
        """Return log_base n / √d_k times that of the scores."""
        return super().predicted_std(moments) / math.log(self.base)


class SSMax(LogN):
    """A learned multiple of ln n, per head."""

    formula = "s_head · ln(n) · r / √d_k, s learned"
    source = "Nakanishi 2025, Scalable-Softmax"

    def __init__(self, *, n_heads: int, start: float = 0.379) -> None:
        """Set s at the start; 0.379 = 1 / ln 14."""
        super().__init__()
        self.gain = nn.Parameter(torch.full((n_heads,), positive("start", start)))

    def learned_scale(self) -> Tensor:
        """Return s."""
        return self.gain

    def factor(self, log_n: Tensor | float) -> Tensor | float:
        """Return s · ln n."""
        return log_n * per_head(self.gain)

    def predicted_std(self, moments: Moments) -> float:
        """Return the mean of s · ln n / √d_k times that of the scores."""
        return mean_of(self.gain) * super().predicted_std(moments)
