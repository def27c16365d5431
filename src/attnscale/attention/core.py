"""Attention as a pure function of q, k and v.

    q, k ──▶ scale mode ──▶ logits ──▶ mask ──▶ softmax ──▶ weights ──▶ dropout ──▶ · v ──▶ output

    output_i = Σ_j softmax_j(s_ij) v_j,    s_ij = q'_i · k'_j  or  f(q_i · k_j)

Source: Vaswani et al. 2017, equation 1, with the factor 1/√d_k made replaceable (see ``scale.py``).
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
from attnscale.attention.masks import causal_keep, combine
from attnscale.attention.scale import ScaleMode, Values, resolve_scale

BACKENDS = ("auto", "explicit", "fused")
FUSED_FROM_KEYS_CPU = 128
"""On a CPU the fused path is taken from this many keys on: ``benchmarks/backends.py``."""

_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Attended:
    """What a tap receives of one call of :func:`attend`: detached, enough to recompute the rest.

    Attributes:
        q: After the mode's q/k function, (batch, head, query, d_k).
        k: After the mode's q/k function, (batch, head, key, d_k).
        keep: True where a key may be attended, broadcastable to (batch, head, query, key), or None.
        mode: The scale mode.
        values: The mode's options and parameters, detached.
    """

    q: Tensor
    k: Tensor
    keep: Tensor | None
    mode: ScaleMode
    values: Values

    @torch.no_grad()
    def logits(self) -> Tensor:
        """Recompute the logits before the mask, fp32 or wider, (batch, head, query, key)."""
        return logits_of(self.q, self.k, self.mode, self.values)

    @torch.no_grad()
    def weights(self) -> Tensor:
        """Recompute the weights before dropout, fp32 or wider, (batch, head, query, key)."""
        return normalise(self.logits(), self.keep)


Tap = Callable[[Attended], None]


def logits_of(
    q: Float[Tensor, "batch head query d_k"],
    k: Float[Tensor, "batch head key d_k"],
    mode: ScaleMode,
    values: Values,
) -> Float[Tensor, "batch head query key"]:
    """Multiply q' and k', in fp32 where they are narrower, and apply the mode's score function.

    Half precision is widened first: an unscaled score of 1024 components passes fp16's 65,504, and
    bf16 keeps three digits, which moves a weight by several per cent at a logit of 30.
    """
    if q.dtype in _HALF or torch.is_autocast_enabled(q.device.type):
        with torch.autocast(q.device.type, enabled=False):
            wide = torch.promote_types(q.dtype, torch.float32)
            scores = q.to(wide) @ k.to(wide).transpose(-2, -1)
    else:
        scores = q @ k.transpose(-2, -1)
    return scores if mode.score is None else mode.score(scores, q.shape[-1], values)


def normalise(
    logits: Float[Tensor, "batch head query key"], keep: Bool[Tensor, "..."] | None
) -> Float[Tensor, "batch head query key"]:
    """Softmax over the kept keys. A row with none has weights 0 and sends no gradient back."""
    if keep is None:
        return logits.softmax(dim=-1)
    hidden = ~keep
    # The lowest finite number, not -inf: a row without any key must not become NaN in the softmax.
    masked = logits.masked_fill(hidden, torch.finfo(logits.dtype).min)
    return masked.softmax(dim=-1).masked_fill(hidden, 0.0)


def choose_backend(backend: str, mode: ScaleMode, n_keys: int, device: torch.device) -> str:
    """Return "explicit" or "fused" for one call.

    Raises:
        ValueError: For an unknown backend, or "fused" with a mode that needs the score matrix.
    """
    if backend not in BACKENDS:
        raise ValueError(f"attention.backend={backend}: allowed are {', '.join(BACKENDS)}")
    if backend == "fused" and not mode.fusible:
        raise ValueError(
            f"attention.backend=fused: scale mode {mode.name!r} needs the score matrix; "
            "use explicit or auto"
        )
    if backend != "auto":
        return backend
    long_enough = device.type != "cpu" or n_keys >= FUSED_FROM_KEYS_CPU
    return "fused" if mode.fusible and long_enough else "explicit"


def _explicit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mode: ScaleMode,
    values: Values,
    keep: Tensor | None,
    dropout: float,
) -> Tensor:
    weights = normalise(logits_of(q, k, mode, values), keep).to(v.dtype)
    if dropout > 0.0:
        weights = drop(weights, dropout)
    return weights @ v


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


def attend(
    q: Float[Tensor, "batch head query d_k"],
    k: Float[Tensor, "batch head key d_k"],
    v: Float[Tensor, "batch head key d_v"],
    *,
    scale: str | float | ScaleMode = "sqrt",
    values: Values | None = None,
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
        >>> seen = []
        >>> _ = attend(q, k, v, scale="none", tap=seen.append)
        >>> bool(seen[0].logits().std() > 7)          # about √64 = 8: most rows pick one key
        True

    Args:
        q: Queries.
        k: Keys. d_k is read from here: it never comes from d_model.
        v: Values; d_v may differ from d_k.
        scale: A mode's name, a positive number that multiplies q·k, or a :class:`ScaleMode`.
        values: The mode's options and parameters, by name.
        keep: True where a key may be attended; broadcastable to (batch, head, query, key).
        causal: Also hide the keys after each query, anchored at the end (see
            ``masks.causal_keep``).
        dropout: Probability with which a weight is dropped, 0 to 1. Pass 0 in evaluation.
        backend: "explicit", "fused" (PyTorch's kernel) or "auto" (the faster one that is allowed).
        tap: Called once with an :class:`Attended`; it changes neither the result nor the backend.

    Returns:
        (batch, head, query, d_v). Rows with no key kept are 0.

    Raises:
        ValueError: For an unknown scale or backend, or "fused" with a mode that needs the scores.
    """
    mode = scale if isinstance(scale, ScaleMode) else resolve_scale(scale)
    values = {} if values is None else values
    n_queries, n_keys = q.shape[2], k.shape[2]
    if causal and n_queries > 1:
        keep = combine(keep, causal_keep(n_queries, n_keys, q.device))
    if mode.qk is not None:
        q, k = mode.qk(q, k, values)
    chosen = choose_backend(backend, mode, n_keys, q.device)
    if tap is not None:
        detached = {n: x.detach() if isinstance(x, Tensor) else x for n, x in values.items()}
        tap(Attended(q.detach(), k.detach(), keep, mode, detached))
    if chosen == "fused":
        return _fused(q, k, v, keep, dropout)
    return _explicit(q, k, v, mode=mode, values=values, keep=keep, dropout=dropout)
