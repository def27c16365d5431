"""What tests of attention share: sizes, masks, drawn vectors, and scales of every mode.

What a formula can break is tested in every mode; what belongs to the seam around it, which no
mode knows of, in :data:`REPRESENTATIVE`. A mode that keeps statistics has two states, in training
and in evaluation; the others have one.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from attnscale.attention import (
    SCALES,
    Attended,
    MultiHeadAttention,
    Scale,
    ScaleFactory,
    attend,
    choose_scale,
    padding_keep,
)
from attnscale.attention.scale import options_of

BATCH, HEADS, QUERY, KEY, D_K, D_V, D_MODEL = 2, 3, 5, 7, 11, 13, 17
STATISTICS = {"length_p97_5": 26.0}
BACKENDS = ("explicit", "fused")

Mode = str | float
"""What ``attention.scale`` takes: a name or a number."""

FACTORS: dict[str, Callable[[int, int], float]] = {
    "sqrt": lambda d_k, d_model: 1 / math.sqrt(d_k),
    "none": lambda d_k, d_model: 1.0,
    "folded": lambda d_k, d_model: 1.0,
    "none_equiv": lambda d_k, d_model: 1.0,
    "inverse": lambda d_k, d_model: 1 / d_k,
    "mup": lambda d_k, d_model: 8 / d_k,
    "sqrt_d_model": lambda d_k, d_model: 1 / math.sqrt(d_model),
    "learned": lambda d_k, d_model: 1 / math.sqrt(d_k),
    "learned_shared": lambda d_k, d_model: 1 / math.sqrt(d_k),
}
"""What the modes that multiply the score by a number multiply it by, at the start."""

BUFFERED = ("score_batchnorm",)
"""The modes that keep statistics: alone in acting otherwise in evaluation."""
UNFUSIBLE = ("softcap", "score_layernorm", "score_batchnorm", "nap")
"""The modes that need the score matrix."""
NO_SOFTMAX = ("nap",)
"""The modes whose weights are no softmax; a row of theirs adds up to 0 before training."""

MODES: tuple[Mode, ...] = (*SCALES, 0.37)
LINEAR: tuple[Mode, ...] = (*FACTORS, 0.37)
FUSIBLE: tuple[Mode, ...] = tuple(mode for mode in MODES if mode not in UNFUSIBLE)
REPRESENTATIVE = ("sqrt", "ssmax", "score_layernorm", "score_batchnorm", "nap")
"""A fixed mode, a learned one that counts keys, one of the scores, one with buffers, no softmax."""

_EXPLICIT = [(mode, "explicit") for mode in MODES]
_FUSED = [(mode, "fused") for mode in REPRESENTATIVE if mode in FUSIBLE]
REPRESENTATIVE_AND_BACKEND = [(mode, "explicit") for mode in REPRESENTATIVE] + _FUSED

every_mode = pytest.mark.parametrize("mode", MODES)
representative = pytest.mark.parametrize("mode", REPRESENTATIVE)
representative_and_backend = pytest.mark.parametrize(
    ("mode", "backend"), REPRESENTATIVE_AND_BACKEND
)
every_mode_and_backend = pytest.mark.parametrize(("mode", "backend"), [*_EXPLICIT, *_FUSED])
"""Every mode; the fused backend, which no mode knows of, for the representative ones."""
every_state = pytest.mark.parametrize(
    ("mode", "training"), [*((m, True) for m in MODES), *((m, False) for m in BUFFERED)]
)
every_state_and_backend = pytest.mark.parametrize(
    ("mode", "backend", "training"),
    [
        *((mode, backend, True) for mode, backend in [*_EXPLICIT, *_FUSED]),
        *((mode, "explicit", False) for mode in BUFFERED),
    ],
)
representative_state_and_backend = pytest.mark.parametrize(
    ("mode", "backend", "training"),
    [
        *((mode, backend, True) for mode, backend in REPRESENTATIVE_AND_BACKEND),
        *((mode, "explicit", False) for mode in BUFFERED),
    ],
)


# --- scales ---


def factor_of(mode: Mode, d_k: int = D_K, d_model: int = D_MODEL) -> float:
    return FACTORS[mode](d_k, d_model) if isinstance(mode, str) else mode


def total_weight(mode: Mode) -> float:
    """Return what the weights of a row add up to before training."""
    return 0.0 if mode in NO_SOFTMAX else 1.0


def options_with(mode: Mode, **changed: float) -> dict[str, float]:
    """Return a mode's options, with the changes that the mode knows."""
    if not isinstance(mode, str):
        return {}
    options = options_of(SCALES[mode])
    return options | {name: value for name, value in changed.items() if name in options}


def factory_of(mode: Mode, **changed: float) -> ScaleFactory:
    """Return what makes the scales of a mode, its options changed where it has them."""
    return choose_scale(mode, options_with(mode, **changed), STATISTICS)


def new_scale(
    mode: Mode,
    n_heads: int = HEADS,
    d_k: int = D_K,
    *,
    d_model: int = D_MODEL,
    dtype: torch.dtype = torch.float32,
    **changed: float,
) -> Scale:
    """Return a scale as it is before training, its start computed in ``dtype``."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return factory_of(mode, **changed)(n_heads=n_heads, d_k=d_k, d_model=d_model)
    finally:
        torch.set_default_dtype(usual)


@torch.no_grad()
def moved_scale(mode: Mode, *, training: bool = True, **changed: float) -> Scale:
    """Return a float64 scale as after some training: no number is 1, 0 or equal to another."""
    scale = new_scale(mode, HEADS, D_K, d_model=D_MODEL, dtype=torch.float64, **changed)
    scale.train(training)
    for tensor in (*scale.parameters(), *scale.buffers()):
        tensor.mul_(1 + 0.3 * torch.rand_like(tensor)).add_(0.1 * torch.rand_like(tensor))
    return scale


@contextmanager
def buffers_put_back(scale: Scale) -> Iterator[None]:
    """Undo what happens to a scale's buffers inside."""
    before = [buffer.clone() for buffer in scale.buffers()]
    yield
    for buffer, earlier in zip(scale.buffers(), before, strict=True):
        buffer.copy_(earlier)


def build(
    mode: Mode = "sqrt", *, options: Mapping[str, float] | None = None, **changed: Any
) -> MultiHeadAttention:
    """Build an attention of the sizes above."""
    sizes = {"d_model": D_MODEL, "n_heads": HEADS, "d_k": D_K, "d_v": D_V}
    return MultiHeadAttention(scale=factory_of(mode, **(options or {})), **(sizes | changed))


def after_heads(attention: MultiHeadAttention, joined: Tensor) -> Tensor:
    """Return what an attention makes of its joined heads."""
    norm = attention.output_norm
    output: Tensor = attention.o(joined if norm is None else norm(joined))
    return output


# --- vectors ---


def draw(
    d_k: int = D_K,
    dtype: torch.dtype = torch.float64,
    *,
    n_queries: int = QUERY,
    n_keys: int = KEY,
    batch: int = BATCH,
) -> tuple[Tensor, Tensor, Tensor]:
    q = torch.randn(batch, HEADS, n_queries, d_k, dtype=dtype, requires_grad=True)
    k = torch.randn(batch, HEADS, n_keys, d_k, dtype=dtype, requires_grad=True)
    v = torch.randn(batch, HEADS, n_keys, D_V, dtype=dtype, requires_grad=True)
    return q, k, v


def attended_of(
    q: Tensor,
    k: Tensor,
    scale: Mode | Scale,
    keep: Tensor | None = None,
    *,
    causal: bool = False,
    backend: str = "auto",
) -> Attended:
    """Return what a tap receives of one call."""
    received: list[Attended] = []
    v = torch.zeros(*k.shape[:3], D_V).to(k)
    attend(q, k, v, scale=scale, keep=keep, causal=causal, backend=backend, tap=received.append)
    (attended,) = received
    return attended


# --- masks ---

MASKS = (
    "none",
    "padding",
    "causal",
    "padding+causal",
    "random",
    "random of query and key",
    "random+causal",
    "rows with no key",
    "sequence with no key",
)


def mask(kind: str) -> tuple[Tensor | None, bool]:
    """Return what ``attend`` is given: keep and causal."""
    padding = padding_keep(torch.tensor([KEY, 4]), KEY)
    random = torch.rand(BATCH, HEADS, QUERY, KEY) < 0.6
    random[..., 2] = True
    dead = random.clone()
    dead[0, 1, 3] = False
    dead[1, :, 0] = False
    return {
        "none": (None, False),
        "padding": (padding, False),
        "causal": (None, True),
        "padding+causal": (padding, True),
        "random": (random, False),
        "random of query and key": (random[0, 0], False),
        "random+causal": (random, True),
        "rows with no key": (dead, False),
        "sequence with no key": (padding_keep(torch.tensor([3, 0]), KEY), False),
    }[kind]


def full_mask(keep: Tensor | None, causal: bool) -> Tensor:
    full = torch.ones(BATCH, HEADS, QUERY, KEY, dtype=torch.bool)
    if keep is not None:
        full &= keep
    if causal:
        for i in range(QUERY):
            full[:, :, i, i + KEY - QUERY + 1 :] = False
    return full


def assert_same(actual: Tensor, expected: Tensor, leaves: Iterable[Tensor]) -> None:
    """Compare two fp64 computations of one thing: forward, and gradients of every leaf."""
    leaves = tuple(leaves)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)
    cotangent = torch.randn_like(expected)
    for x, y in zip(
        torch.autograd.grad(actual, leaves, cotangent),
        torch.autograd.grad(expected, leaves, cotangent),
        strict=True,
    ):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-11)
