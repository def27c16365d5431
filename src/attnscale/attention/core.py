"""Attention as a pure function of q, k and v.

    q, k ──▶ scale ──▶ logits ──▶ mask ──▶ softmax ──▶ weights ──▶ dropout ──▶ · v ──▶ output

    output_i = Σ_j softmax_j(s_ij) v_j,    s = scale(q, k)

Source: Vaswani et al. 2017, equation 1, with the factor 1/√d_k made replaceable (see ``scale/``).
It differs from most code in one more way: a row with no key kept gives zeros, and zero gradients,
not NaN.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from attnscale.attention.dropout import dropout as drop
from attnscale.attention.masks import causal_keep, softmax_over_kept
from attnscale.attention.scale import Scale, choose_scale, name_of, scores_of
from attnscale.checks import check_choice

BACKENDS = ("auto", "explicit", "fused")
FUSED_FROM_KEYS_CPU = 128
"""On a CPU the fused path is taken from this many keys on: ``benchmarks/backends.py``."""


@dataclass(frozen=True, kw_only=True)
class Attended:
    """What a tap receives of one call of :func:`attend`: detached, enough to know the rest.

    Attributes:
        raw_q: Before the scale, (batch, head, query, d_k); the score is raw_q · raw_k.
        raw_k: Before the scale, (batch, head, key, d_k).
        q: After the scale's :meth:`Scale.qk`.
        k: After the scale's :meth:`Scale.qk`.
        keep: True where a key may be attended, broadcastable to (batch, head, query, key), or None.
        scale: The scale.
        explicit_logits: The logits of the forward pass, or None where it made none (fused).
        explicit_weights: The weights of the forward pass before dropout, or None, likewise.
        x: What keys and values were made from, (batch, key, d_model), or None if not known.
        queries: Which side the queries come from, "source" or "target".
        keys: Which side the keys come from.
    """

    raw_q: Tensor
    raw_k: Tensor
    q: Tensor
    k: Tensor
    keep: Tensor | None
    scale: Scale
    explicit_logits: Tensor | None = None
    explicit_weights: Tensor | None = None
    x: Tensor | None = None
    queries: str = "source"
    keys: str = "source"

    @torch.no_grad()
    def scores(self) -> Tensor:
        """Recompute the raw scores q·k, fp32 or wider, (batch, head, query, key)."""
        return scores_of(self.raw_q, self.raw_k)

    @torch.no_grad()
    def logits(self) -> Tensor:
        """Return the logits before the mask, fp32 or wider, (batch, head, query, key)."""
        if self.explicit_logits is not None:
            return self.explicit_logits
        # A scale that may run fused has no function of the scores.
        return scores_of(self.q, self.k)

    @torch.no_grad()
    def weights(self) -> Tensor:
        """Return the weights before dropout, fp32 or wider, (batch, head, query, key)."""
        if self.explicit_weights is not None:
            return self.explicit_weights
        return softmax_over_kept(self.logits(), self.keep)


Tap = Callable[[Attended], None]


def choose_backend(backend: str, scale: Scale, n_keys: int, device: torch.device) -> str:
    """Return "explicit" or "fused" for one call.

    Raises:
        ValueError: For an unknown backend, or "fused" with a scale that needs the score matrix.
    """
    check_choice("attention.backend", backend, BACKENDS)
    if backend == "fused" and not scale.fusible:
        raise ValueError(
            f"attention.backend=fused: scale mode {name_of(scale)!r} needs the score matrix; "
            "use explicit or auto"
        )
    if backend != "auto":
        return backend
    long_enough = device.type != "cpu" or n_keys >= FUSED_FROM_KEYS_CPU
    return "fused" if scale.fusible and long_enough else "explicit"


def _fused(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, dropout: float) -> Tensor:
    if keep is None:
        return functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=1.0)
    # Kernels differ in what they do with a row without keys, so such a row is opened and its output
    # set to zero; that cuts its gradient too.
    alive = keep.any(dim=-1, keepdim=True)
    mask = (keep | ~alive).broadcast_to(*keep.shape[:-2], q.shape[2], k.shape[2])
    output = functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, scale=1.0
    )
    return output.masked_fill(~alive, 0.0)


def named_scale(scale: str | float, *, n_heads: int, d_k: int) -> Scale:
    """Return the scale of a name or number that learns and keeps nothing.

    Raises:
        ValueError: For an unknown name, or a mode that must be made once and kept.
    """
    module = choose_scale(scale)(n_heads=n_heads, d_k=d_k)
    if module.state_dict():
        raise ValueError(
            f"scale mode {scale!r} learns: make it once, {type(module).__name__}(...), and pass it"
        )
    return module


def attend(
    q: Float[Tensor, "batch head query d_k"],
    k: Float[Tensor, "batch head key d_k"],
    v: Float[Tensor, "batch head key d_v"],
    *,
    scale: str | float | Scale = "sqrt",
    keep: Bool[Tensor, "..."] | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    backend: str = "auto",
    tap: Tap | None = None,
) -> Float[Tensor, "batch head query d_v"]:
    """Attend from queries to keys, and return the weighted sum of the values.

    This is the one place where q and k become logits. Try it on random vectors and look at what the
    scale does to the spread of the logits, and so to the softmax::

        >>> import torch
        >>> from attnscale.attention import attend
        >>> q, k, v = (torch.randn(2, 4, 10, 64) for _ in range(3))
        >>> attend(q, k, v, scale="sqrt").shape       # logits with standard deviation 1
        torch.Size([2, 4, 10, 64])
        >>> calls = []
        >>> _ = attend(q, k, v, scale="none", tap=calls.append)
        >>> bool(calls[0].logits().std() > 7)         # about √64 = 8: most rows pick one key
        True

    Args:
        q: Queries.
        k: Keys. d_k is read from here: it never comes from d_model.
        v: Values; d_v may differ from d_k.
        scale: A :class:`Scale`; or the name of a mode that learns nothing, or a positive number
            that multiplies q·k.
        keep: True where a key may be attended; broadcastable to (batch, head, query, key).
        causal: Also hide the keys after each query, anchored at the end (see
            ``masks.causal_keep``).
        dropout: Probability with which a weight is dropped, 0 to 1. Pass 0 in evaluation.
        backend: "explicit", "fused" (PyTorch's kernel) or "auto" (the faster one that is allowed).
        tap: Called once with an :class:`Attended`; it changes neither the result nor the backend.

    Returns:
        (batch, head, query, d_v). Rows with no key kept are 0.

    Raises:
        ValueError: For an unknown scale or backend, the name of a mode that learns, or "fused" with
            a scale that needs the scores.
    """
    if not isinstance(scale, Scale):
        scale = named_scale(scale, n_heads=q.shape[1], d_k=q.shape[-1])
    n_queries, n_keys = q.shape[2], k.shape[2]
    if causal and n_queries > 1:
        earlier = causal_keep(n_queries, n_keys, q.device)
        keep = earlier if keep is None else keep & earlier
    raw_q, raw_k = q, k
    q, k = scale.qk(q, k, keep)
    logits = weights = None
    if choose_backend(backend, scale, n_keys, q.device) == "fused":
        output = _fused(q, k, v, keep, dropout)
    else:
        logits = scale.logits(scores_of(q, k), keep)
        weights = scale.weights(logits, keep)
        output = drop(weights.to(v.dtype), dropout) @ v
    if tap is not None:
        tap(
            Attended(
                raw_q=raw_q.detach(),
                raw_k=raw_k.detach(),
                q=q.detach(),
                k=k.detach(),
                keep=keep,
                scale=scale,
                explicit_logits=None if logits is None else logits.detach(),
                explicit_weights=None if weights is None else weights.detach(),
            )
        )
    return output
