"""Dropout whose mask costs little.

    y = x · m / (1 − p),   m ~ Bernoulli(1 − p)

On a CPU PyTorch draws each element of the mask by itself, which takes a fifth of a small
Transformer's step. Here 64 random bits serve four elements: an element is dropped if its 16 bits
are below p · 2¹⁶, so p is met to within 2⁻¹⁷. Elsewhere, and where p is so near 1 that this is much
of the share that is kept, it is PyTorch's own dropout.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from attnscale.checks import check_share

LANES, RANGE = 4, 2**16
MAX_P = 0.99
"""Up to here the share that is kept, 1 − p, is met to within 2⁻¹⁷ / 0.01, less than 0.1 % of it."""


def _mask(x: Tensor, p: float) -> Tensor:
    """Return 0 with probability p, else 1, for each element of x and in its type."""
    n = x.numel()
    bits = torch.empty((n + LANES - 1) // LANES, dtype=torch.int64)
    bits.random_(torch.iinfo(torch.int64).min, None)  # all 64 bits
    lanes = bits.view(torch.int16)[:n].view(x.shape)
    mask = torch.empty_like(x, memory_format=torch.contiguous_format)
    # Straight into numbers: a mask of booleans costs several times as much to make and to use.
    return torch.ge(lanes, round(p * RANGE) - RANGE // 2, out=mask)


class _Dropout(torch.autograd.Function):
    """Keeps the mask, as 0 and 1, and nothing else for the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        """Drop and rescale."""
        mask = _mask(x, p)
        ctx.save_for_backward(mask)
        ctx.scale = 1.0 / (1.0 - p)
        return (x * mask).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Send back what was kept, with the same factor."""
        (mask,) = ctx.saved_tensors
        return (gradients[0] * mask).mul_(ctx.scale), None


def dropout(x: Tensor, p: float) -> Tensor:
    """Drop elements with probability p, 0 ≤ p < 1, and scale the others by 1/(1 − p)."""
    if p == 0.0:
        return x
    if x.device.type != "cpu" or p > MAX_P:
        return functional.dropout(x, p)
    return cast(Tensor, _Dropout.apply(x, p))  # type: ignore[no-untyped-call]


class Dropout(nn.Module):
    """:func:`dropout` while training, nothing in evaluation."""

    def __init__(self, p: float) -> None:
        """Take the probability.

        Raises:
            ValueError: If it is outside [0, 1).
        """
        super().__init__()
        check_share("model.dropout", p)
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Drop while training."""
        return dropout(x, self.p) if self.training else x
