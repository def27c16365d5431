"""Attention as a pure function of q, k and v.

    q, k ──▶ scale mode ──▶ logits ──▶ mask ──▶ softmax ──▶ weights ──▶ dropout ──▶ · v ──▶ output

    output_i = Σ_j softmax_j(s_ij) v_j,    s_ij = q'_i · k'_j  or  f(q_i · k_j)

Source: Vaswani et al. 2017, equation 1, with the factor 1/√d_k made replaceable (see ``scale.py``).
It differs from most code in one more way: a row with no key kept gives zeros, and zero gradients,
not NaN.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from attnscale.attention.dropout import dropout as drop
from attnscale.attention.masks import causal_keep, combine
from attnscale.attention.scale import ScaleMode, Values, resolve_scale
from attnscale.attention.scale.record import Count

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
        values: The mode's options, facts, parameters and buffers, detached.
        raw_q: Before the mode's q/k function; the score is raw_q · raw_k.
        raw_k: Before the mode's q/k function.
        x: What keys and values were made from, (batch, key, d_model), or None if not known.
        made_logits: The logits of the forward pass, or None where it made none (fused).
        made_weights: The weights of the forward pass before dropout, or None, likewise.
        queries: Side that the queries come from, "source" or "target".
        keys: Side that keys and values come from.
    """

    q: Tensor
    k: Tensor
    keep: Tensor | None
    mode: ScaleMode
    values: Values
    raw_q: Tensor
    raw_k: Tensor
    x: Tensor | None = None
    made_logits: Tensor | None = None
    made_weights: Tensor | None = None
    queries: str = "source"
    keys: str = "source"

    @torch.no_grad()
    def scores(self) -> Tensor:
        """Recompute the raw scores q·k, fp32 or wider, (batch, head, query, key)."""
        return scores_of(self.raw_q, self.raw_k)

    @torch.no_grad()
    def logits(self) -> Tensor:
        """Return the logits before the mask, fp32 or wider, (batch, head, query, key)."""
        if self.made_logits is not None:
            return self.made_logits
        return logits_of(self.q, self.k, self.mode, self.values, self.keep)

    @torch.no_grad()
    def weights(self) -> Tensor:
        """Return the weights before dropout, fp32 or wider, (batch, head, query, key)."""
        if self.made_weights is not None:
            return self.made_weights
        return normalise(self.logits(), self.keep, self.mode, self.values)


Tap = Callable[[Attended], None]


def scores_of(
    q: Float[Tensor, "batch head query d_k"], k: Float[Tensor, "batch head key d_k"]
) -> Float[Tensor, "batch head query key"]:
    """Multiply q and k, in fp32 where they are narrower.

    Half precision is widened first: an unscaled score of 1024 components passes fp16's 65,504, and
    bf16 keeps three digits, which moves a weight by several per cent at a logit of 30.
    """
    if q.dtype in _HALF or torch.is_autocast_enabled(q.device.type):
        with torch.autocast(q.device.type, enabled=False):
            wide = torch.promote_types(q.dtype, torch.float32)
            return q.to(wide) @ k.to(wide).transpose(-2, -1)
    return q @ k.transpose(-2, -1)


def logits_of(
    q: Float[Tensor, "batch head query d_k"],
    k: Float[Tensor, "batch head key d_k"],
    mode: ScaleMode,
    values: Values,
    keep: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "batch head query key"]:
    """Multiply q' and k', and apply the mode's score function; the mask is yet to come.

    Args:
        q: After the mode's q/k function.
        k: After the mode's q/k function.
        mode: The scale mode.
        values: What the mode reads.
        keep: What a score function that normalises must count; True where a key may be attended.
    """
    scores = scores_of(q, k)
    return scores if mode.score is None else mode.score(scores, keep, q.shape[-1], values)


def kept_count(keep: Bool[Tensor, "..."] | None, n_keys: int) -> Count:
    """Return the number of kept keys of each row, broadcastable to (batch, head, query, 1)."""
    if keep is None:
        return float(n_keys)
    counted = keep.sum(dim=-1, keepdim=True)
    return (counted if keep.shape[-1] == n_keys else counted * n_keys).float()


def normalise(
    logits: Float[Tensor, "batch head query key"],
    keep: Bool[Tensor, "..."] | None,
    mode: ScaleMode | None = None,
    values: Values | None = None,
) -> Float[Tensor, "batch head query key"]:
    """Softmax over the kept keys, or the mode's own normaliser.

    A row with no key kept has weights 0 and sends no gradient back.
    """
    if mode is not None and mode.normaliser is not None:
        return mode.normaliser(logits, keep, values or {})
    if keep is None:
        return logits.softmax(dim=-1)
    # The lowest finite number, not -inf: a row without any key must not become NaN in the softmax.
    weights = torch.where(keep, logits, torch.finfo(logits.dtype).min).softmax(dim=-1)
    if weights.device.type == "cpu":
        return weights * keep.to(weights.dtype)  # several times as fast as a choice there
    return torch.where(keep, weights, 0.0)


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
    show: Callable[[Tensor, Tensor], None] | None,
) -> Tensor:
    if mode.score is None:
        logits = scores_of(q, k)
    else:
        scores = scores_of(q, k)
        logits = mode.score(scores, keep, q.shape[-1], values)
        if mode.observe is not None and values["training"]:
            mode.observe(scores.detach(), keep, values)
    wide = normalise(logits, keep, mode, values)
    if show is not None:
        show(logits.detach(), wide.detach())
    weights = wide.to(v.dtype)
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


def _check_values(mode: ScaleMode, values: Values) -> None:
    for name in (*mode.options, *mode.needs):
        if name not in values:
            raise ValueError(
                f"scale mode {mode.name!r} reads {name!r}: pass it in values, or use "
                "MultiHeadAttention, which does"
            )


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
        values: What the mode reads: its options, parameters and facts, by name;
            ``resolve_scale(name).start(sizes)`` makes the initial ones.
        keep: True where a key may be attended; broadcastable to (batch, head, query, key).
        causal: Also hide the keys after each query, anchored at the end (see
            ``masks.causal_keep``).
        dropout: Probability with which a weight is dropped, 0 to 1. Pass 0 in evaluation.
        backend: "explicit", "fused" (PyTorch's kernel) or "auto" (the faster one that is allowed).
        tap: Called once with an :class:`Attended`; it changes neither the result nor the backend.

    Returns:
        (batch, head, query, d_v). Rows with no key kept are 0.

    Raises:
        ValueError: For an unknown scale or backend, values that the mode reads and that are
            missing, or "fused" with a mode that needs the scores.
    """
    mode = scale if isinstance(scale, ScaleMode) else resolve_scale(scale)
    values = {} if values is None else values
    _check_values(mode, values)
    n_queries, n_keys = q.shape[2], k.shape[2]
    if causal and n_queries > 1:
        keep = combine(keep, causal_keep(n_queries, n_keys, q.device))
    raw_q, raw_k = q, k
    if mode.qk is not None:
        q, k = mode.qk(q, k, kept_count(keep, n_keys) if mode.counts else 0.0, values)
    chosen = choose_backend(backend, mode, n_keys, q.device)
    show = None
    if tap is not None:
        detached = {n: x.detach() if isinstance(x, Tensor) else x for n, x in values.items()}
        raw = raw_q.detach(), raw_k.detach()
        attended = Attended(q.detach(), k.detach(), keep, mode, detached, *raw)
        if chosen == "fused":
            tap(attended)

        def show(logits: Tensor, weights: Tensor) -> None:
            tap(replace(attended, made_logits=logits, made_weights=weights))

    if chosen == "fused":
        return _fused(q, k, v, keep, dropout)
    return _explicit(q, k, v, mode=mode, values=values, keep=keep, dropout=dropout, show=show)
