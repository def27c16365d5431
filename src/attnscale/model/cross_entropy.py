"""Cross-entropy of a linear layer's outputs, in one buffer.

    loss = Σ_i [ (1 − ε) · (−ln p_i(t_i)) + ε · mean_v(−ln p_i(v)) ],    p_i = softmax(h_i Wᵀ)

ε is the label smoothing of Szegedy et al. 2016, section 7. tokens × vocabulary is by far the
largest array of a small translation model. PyTorch passes over it for the logits, their
log-softmax, its gradient and the gradient of the logits, each in memory of its own; here the logits
become the log-softmax, the softmax and the gradient in place.
"""

from functools import cache
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from attnscale.attention.scale.base import widen


@cache
def bf16_units() -> bool:
    """Whether this CPU multiplies bf16 by itself; without, fp32 is several times faster."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def _matmul_dtype(device: str) -> torch.dtype:
    """Return the type that autocast should multiply in on a device."""
    if device == "cpu" and not bf16_units():
        return torch.float32
    return torch.get_autocast_dtype(device)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply in the type of ``hidden``, whatever autocast says, and return fp32 or wider."""
    with torch.autocast(hidden.device.type, enabled=False):
        bias = None if bias is None else bias.to(hidden.dtype)
        return widen(functional.linear(hidden, weight.to(hidden.dtype), bias))


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        smoothing: float,
    ) -> Tensor:
        logits = _logits(hidden, weight, bias)
        torch.log_softmax(logits, dim=-1, out=logits)
        rows = torch.arange(len(target), device=target.device)
        loss = logits[rows, target].sum() * (smoothing - 1.0)
        if smoothing:
            loss = loss - smoothing * logits.mean(dim=-1).sum()
        logits.exp_()
        if smoothing:
            logits.sub_(smoothing / logits.shape[-1])
        logits[rows, target] -= 1.0 - smoothing
        ctx.save_for_backward(hidden, weight, logits)
        ctx.has_bias = bias is not None
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None, None]:
        hidden, weight, logits = ctx.saved_tensors
        (factor,) = gradients
        narrow = logits.to(hidden.dtype)
        to_hidden = (narrow @ weight.to(hidden.dtype)) * factor
        to_weight = (narrow.T @ hidden).to(weight.dtype) * factor
        to_bias = logits.sum(dim=0).to(weight.dtype) * factor if ctx.has_bias else None
        return to_hidden, to_weight, to_bias, None, None


def linear_cross_entropy(
    hidden: Float[Tensor, "token d_model"],
    weight: Float[Tensor, "vocabulary d_model"],
    bias: Float[Tensor, " vocabulary"] | None,
    target: Int[Tensor, " token"],
    *,
    smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """Return the summed cross-entropy of the tokens, in nats.

    Args:
        hidden: What the output layer reads, for each token that counts.
        weight: The output layer's weight.
        bias: Its bias, or None.
        target: The correct token's number.
        smoothing: Label smoothing ε, 0 to 1.
    """
    if torch.is_autocast_enabled(hidden.device.type):
        hidden = hidden.to(_matmul_dtype(hidden.device.type))
    if torch.is_grad_enabled():
        loss = _LinearCrossEntropy.apply(hidden, weight, bias, target, smoothing)  # type: ignore[no-untyped-call]
        return cast(Tensor, loss)
    logits = _logits(hidden, weight, bias)
    return functional.cross_entropy(logits, target, reduction="sum", label_smoothing=smoothing)
