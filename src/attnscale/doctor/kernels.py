"""Attentions that are one operation: rows of their scores are computed from its arguments."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from attnscale.doctor.origin import wide
from attnscale.doctor.recovery import Rows

PADDING = 1
"""``mask_type`` of the native kernels for a mask of keys."""


@dataclass(frozen=True, eq=False)
class Fused:
    """The arguments of a fused kernel.

    Attributes:
        q: (batch, head, query, d).
        k: (batch, head, key, d), perhaps with fewer heads, each for several of q.
        v: (batch, head, key, d_v), likewise.
        scale: What the kernel multiplies q · k by.
        mask: True keeps, or numbers that are added; broadcastable to the scores. Or None.
        causal: Whether a query sees no later key.
        output: What the kernel gave, or None where it is not to be looked at.
        how: "fused" or "native".
        default_scale: Whether the scale was left to the kernel.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    mask: Tensor | None
    causal: bool
    output: Tensor | None
    how: str
    default_scale: bool

    @classmethod
    def of(cls, bound: Mapping[str, Any], output: Tensor) -> "Fused":
        """Return those of ``scaled_dot_product_attention`` in any of its forms."""
        q, scale = bound["query"], bound.get("scale")
        return cls(
            q=q,
            k=bound["key"],
            v=bound["value"],
            scale=q.shape[-1] ** -0.5 if scale is None else float(scale),
            mask=bound.get("attn_mask", bound.get("attn_bias")),
            causal=bool(bound.get("is_causal", False)),
            output=None if bound.get("dropout_p") else output,
            how="fused",
            default_scale=scale is None,
        )

    def rows(self, block: slice, batch: Tensor, queries: Tensor) -> tuple[Rows, Tensor | None]:
        """Return rows of some heads, and by how much the output is not that of the arguments."""
        group = self.q.shape[1] // self.k.shape[1]
        heads = torch.arange(self.q.shape[1], device=self.q.device)[block]
        q = wide(self.q.index_select(0, batch)[:, block].index_select(2, queries))
        k, v = (
            wide(t.index_select(0, batch).index_select(1, heads // group)) for t in (self.k, self.v)
        )
        scores = q @ k.mT
        still = torch.zeros_like(scores)
        if self.mask is not None:
            shape = (*self.q.shape[:3], self.k.shape[2])
            mask = self.mask.expand(shape)[batch][:, block].index_select(2, queries)
            still = still.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else wide(mask)
        if self.causal:
            later = torch.arange(self.k.shape[2], device=q.device) > queries[:, None]
            still = still.masked_fill(later, -torch.inf)
        logits = self.scale * scores + still
        weights = logits.softmax(dim=-1).nan_to_num()
        error = None
        if self.output is not None:
            own = wide(self.output.index_select(0, batch)[:, block].index_select(2, queries))
            error = (weights @ v - own).abs().max() / own.abs().max().clamp(min=1e-30)
        return Rows([scores], logits, still, weights), error


def native_arguments(bound: Mapping[str, Any]) -> tuple[Fused, int]:
    """Return what PyTorch's kernels of whole layers compute, and the width of their input.

    They serve ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer`` in evaluation without
    gradients, and take the weights as arguments.
    """
    x = bound["src"] if "src" in bound else bound["query"]
    heads = bound["num_heads"] if "num_heads" in bound else bound["num_head"]
    mask, kind = bound.get("mask"), bound.get("mask_type")
    if x.is_nested:
        lengths = torch.tensor([one.shape[0] for one in x.unbind()], device=x.device)
        x = torch.nested.to_padded_tensor(x, 0.0)
        mask = torch.arange(x.shape[1], device=x.device)[None] >= lengths[:, None]
        kind = PADDING
    if bound.get("norm_first"):
        norm = (bound["norm_weight_1"], bound["norm_bias_1"], bound["eps"])
        x = functional.layer_norm(x, x.shape[-1:], *norm)
    projected = functional.linear(x, bound["qkv_weight"], bound["qkv_bias"])
    q, k, v = projected.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    if mask is not None:
        mask = ~(mask[:, None, None, :] if kind == PADDING else mask).bool()
    scale = q.shape[-1] ** -0.5
    return Fused(q, k, v, scale, mask, False, None, "native", False), x.shape[-1]


def flex_rows(args: tuple[Any, ...], block: slice, batch: Tensor, queries: Tensor) -> Rows:
    """Return rows of ``flex_attention``: its own functions of scores and masks, called on them."""
    q, k, _, score_mod, block_mask, scale = args[:6]
    heads = torch.arange(q.shape[1], device=q.device)[block]
    keys = torch.arange(k.shape[2], device=q.device)
    index = (
        batch[:, None, None, None],
        heads[:, None, None],
        queries[:, None],
        keys,
    )
    group = q.shape[1] // k.shape[1]
    some_q = wide(q.index_select(0, batch)[:, block].index_select(2, queries))
    some_k = wide(k.index_select(0, batch).index_select(1, heads // group))
    scores = some_q @ some_k.mT
    hidden = torch.where(block_mask[-1](*index), 0.0, -torch.inf).to(scores).expand(scores.shape)
    still = score_mod(torch.zeros_like(scores), *index) + hidden
    logits = score_mod(scores * scale, *index) + hidden
    return Rows([scores], logits, still, logits.softmax(dim=-1).nan_to_num())
