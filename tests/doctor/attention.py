"""One attention, computed in the ways that people compute it."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention as fused

D_MODEL, N_HEADS, D_K, N = 60, 5, 12, 20
"""Sizes without coincidences: √d_model is no multiple of √d_k, and no two sizes are alike."""

Core = Callable[[Tensor, Tensor, Tensor], Tensor]


class Attention(nn.Module):
    """Projections around a core that makes an output of q, k and v, (batch, head, position, d)."""

    def __init__(self, core: Core, *, heads: int = N_HEADS) -> None:
        super().__init__()
        self.core, self.num_heads = core, heads
        self.q, self.k, self.v = (nn.Linear(D_MODEL, heads * D_K) for _ in range(3))
        self.o = nn.Linear(heads * D_K, D_MODEL)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            projection(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for projection in (self.q, self.k, self.v)
        )
        y: Tensor = self.o(self.core(q, k, v).transpose(1, 2).flatten(2))
        return y


class Block(nn.Module):
    """A residual block, so that an attention has a path."""

    def __init__(self, core: Core) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(D_MODEL), Attention(core)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(self.norm(x))


def model(core: Core, seed: int = 0) -> Attention:
    """Return an attention whose weights give logits of a spread near 1."""
    torch.manual_seed(seed)
    attention = Attention(core)
    for parameter in attention.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    return attention


def batch(seed: int = 1) -> Tensor:
    return torch.randn(2, N, D_MODEL, generator=torch.Generator().manual_seed(seed))


def turned(q: Tensor, factor: float = 1.0) -> Tensor:
    """Rotate pairs of components by the position, times a factor: RoPE, and YaRN's of it."""
    angle = torch.arange(q.shape[-2])[:, None] * torch.rand(
        q.shape[-1] // 2, generator=torch.Generator().manual_seed(2)
    )
    cos, sin = (f(torch.cat((angle, angle), -1)) * factor for f in (torch.cos, torch.sin))
    half = q.shape[-1] // 2
    return q * cos + torch.cat((-q[..., half:], q[..., :half]), dim=-1) * sin


def causal(scores: Tensor) -> Tensor:
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(later, -torch.inf)


def in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    scores /= D_K**0.5
    scores.masked_fill_(torch.ones(N, N, dtype=torch.bool).triu(1), -torch.inf)
    return scores.softmax(dim=-1) @ v


def shifted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT * D_K**-0.5
    weights = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    return weights / weights.sum(dim=-1, keepdim=True) @ v


def sinks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT * D_K**-0.5
    column = torch.full((*scores.shape[:-1], 1), 0.3)
    return torch.cat((scores, column), dim=-1).softmax(dim=-1)[..., :-1] @ v


def top_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT * D_K**-0.5
    least = scores.topk(7, dim=-1).values[..., -1:]
    return scores.masked_fill(scores < least, -torch.inf).softmax(dim=-1) @ v


def folded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    rows = torch.zeros(q.shape[0] * q.shape[1], q.shape[2], k.shape[2])
    scores = torch.baddbmm(rows, q.flatten(0, 1), k.mT.flatten(0, 1), alpha=D_K**-0.5)
    return (scores.softmax(dim=-1) @ v.flatten(0, 1)).view_as(v)


def padded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (functional.pad(t, (0, 4)) for t in (q, k, v))
    return fused(q, k, v)[..., :D_K]


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (t[:, :1].expand_as(t) for t in (k, v))
    return torch.softmax(q @ k.mT * D_K**-0.5, dim=-1) @ v


WAYS: dict[str, tuple[Core, float]] = {
    "eager": (lambda q, k, v: (q @ k.mT * D_K**-0.5).softmax(-1) @ v, D_K**-0.5),
    "eager, no factor": (lambda q, k, v: (q @ k.mT).softmax(-1) @ v, 1.0),
    "eager, causal": (lambda q, k, v: causal(q @ k.mT / D_K**0.5).softmax(-1) @ v, D_K**-0.5),
    "einsum": (
        lambda q, k, v: (torch.einsum("bhid,bhjd->bhij", q, k) * 0.7).softmax(-1) @ v,
        0.7,
    ),
    "keys first": (
        lambda q, k, v: (k @ q.mT * 0.7).softmax(-2).mT @ v,
        0.7,
    ),
    "in place": (in_place, D_K**-0.5),
    "largest taken off": (shifted, D_K**-0.5),
    "sinks": (sinks, D_K**-0.5),
    "mask made of scores": (top_keys, D_K**-0.5),
    "heads in the batch": (folded, D_K**-0.5),
    "shared keys": (grouped, D_K**-0.5),
    "q in front": (lambda q, k, v: ((q * D_K**-0.5) @ k.mT).softmax(-1) @ v, D_K**-0.5),
    "both in front": (
        lambda q, k, v: ((q * D_K**-0.25) @ (k * D_K**-0.25).mT).softmax(-1) @ v,
        D_K**-0.5,
    ),
    "q, then rotated": (
        lambda q, k, v: fused(turned(q * 0.5), turned(k), v, scale=1.0),
        0.5,
    ),
    "rotated by more than 1": (
        lambda q, k, v: fused(turned(q, 1.3), turned(k, 1.3), v),
        1.69 * D_K**-0.5,
    ),
    "a position's bias": (
        lambda q, k, v: (
            (
                q @ k.mT * D_K**-0.5 - 0.1 * (torch.arange(N)[:, None] - torch.arange(N)).abs()
            ).softmax(-1)
            @ v
        ),
        D_K**-0.5,
    ),
    "soft cap": (
        lambda q, k, v: (2 * torch.tanh(4 * q @ k.mT * D_K**-0.5 / 2)).softmax(-1) @ v,
        4 * D_K**-0.5,
    ),
    "normalised": (
        lambda q, k, v: (
            (functional.normalize(q, dim=-1) @ functional.normalize(k, dim=-1).mT * 9)
            .softmax(-1)
            .matmul(v)
        ),
        9.0,
    ),
    "fused, default": (fused, D_K**-0.5),
    "fused, causal": (lambda q, k, v: fused(q, k, v, is_causal=True), D_K**-0.5),
    "fused, a scale": (lambda q, k, v: fused(q, k, v, scale=0.3), 0.3),
    "fused, a mask": (
        lambda q, k, v: fused(q, k, v, attn_mask=torch.ones(N, N, dtype=torch.bool).tril()),
        D_K**-0.5,
    ),
    "fused, a bias": (
        lambda q, k, v: fused(q, k, v, attn_mask=torch.linspace(0, 1, N).expand(N, N)),
        D_K**-0.5,
    ),
    "fused, padded heads": (
        padded,
        16**-0.5,
    ),
}
"""Way -> core, and its scale by hand."""
