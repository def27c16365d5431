"""What the tests of attention share: sizes, masks, and what each mode reads as configured."""

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor

from attnscale.attention import (
    SCALE_MODES,
    Attended,
    MultiHeadAttention,
    Sizes,
    attend,
    check_options,
    padding_keep,
    resolve_scale,
)

BATCH, HEADS, QUERY, KEY, D_K, D_V, D_MODEL = 2, 3, 5, 7, 11, 13, 17
STATISTICS = {"length_p97_5": 26.0}
OPTIONS_FOLDER = Path(__file__).parents[2] / "conf" / "attention" / "options"
BACKENDS = ("explicit", "fused")

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

LINEAR: tuple[str | float, ...] = (*FACTORS, 0.37)
SCALES: tuple[str | float, ...] = (*SCALE_MODES, 0.37)
FUSIBLE: tuple[str | float, ...] = tuple(s for s in SCALES if resolve_scale(s).fusible)
SOFTMAX: tuple[str | float, ...] = tuple(s for s in SCALES if not resolve_scale(s).normaliser)
MODE_AND_BACKEND: list[tuple[str | float, str]] = [
    (scale, backend)
    for scale in SCALES
    for backend in BACKENDS
    if backend == "explicit" or scale in FUSIBLE
]
every_mode = pytest.mark.parametrize(("scale", "backend"), MODE_AND_BACKEND)

Numbers = dict[str, Tensor | float]


def factor_of(scale: str | float, d_k: int = D_K, d_model: int = D_MODEL) -> float:
    return FACTORS[scale](d_k, d_model) if isinstance(scale, str) else scale


def options_of(scale: str | float, **changed: float) -> dict[str, float]:
    """Return a mode's options as ``conf/`` has them, with the changes that the mode knows."""
    mode = resolve_scale(scale)
    if not mode.options:
        return {}
    read: Mapping[str, str | float] = yaml.safe_load(
        (OPTIONS_FOLDER / f"{mode.name}.yaml").read_text()
    )
    # YAML 1.1 takes 1e-3 for a string; OmegaConf, which reads it in earnest, does not.
    made = {name: float(value) for name, value in read.items()}
    return check_options(mode, made | {n: x for n, x in changed.items() if n in made})


def values_of(
    scale: str | float,
    n_heads: int = HEADS,
    d_k: int = D_K,
    *,
    d_model: int = D_MODEL,
    training: bool = True,
    dtype: torch.dtype = torch.float32,
    **changed: float,
) -> Numbers:
    """Return what a mode reads before training, options as configured but for the changes."""
    options = options_of(scale, **changed)
    sizes = Sizes(n_heads=n_heads, d_k=d_k, d_model=d_model, options=options, statistics=STATISTICS)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        made = resolve_scale(scale).start(sizes)
    finally:
        torch.set_default_dtype(usual)
    if "training" in made:
        made["training"] = float(training)
    return made


def parameters_of(scale: str | float, values: Numbers, d_k: int = D_K) -> dict[str, Tensor]:
    """Make what a mode learns require gradients, and return it."""
    mode = resolve_scale(scale)
    if mode.parameters is None:
        return {}
    sizes = Sizes(
        n_heads=HEADS, d_k=d_k, d_model=D_MODEL, options=options_of(scale), statistics=STATISTICS
    )
    found = {}
    for name in mode.parameters(sizes):
        value = values[name]
        assert isinstance(value, Tensor)
        found[name] = value.requires_grad_()
    return found


def moved_values(scale: str | float, *, training: bool = True, **changed: float) -> Numbers:
    """Return fp64 values as after some training: no parameter is 1, 0 or equal to another."""
    values = values_of(scale, training=training, dtype=torch.float64, **changed)  # type: ignore[arg-type]
    for name, value in values.items():
        if isinstance(value, Tensor):
            moved = value * (1 + 0.3 * torch.rand_like(value)) + 0.1 * torch.rand_like(value)
            values[name] = moved
    parameters_of(scale, values)
    return values


def build(scale: str | float = "sqrt", **changed: int | float | str | bool) -> MultiHeadAttention:
    """Build a module of the sizes above, with the options as configured."""
    options = options_of(scale, **{n: x for n, x in changed.items() if isinstance(x, float)})
    parts = {
        "d_model": D_MODEL,
        "n_heads": HEADS,
        "d_k": D_K,
        "d_v": D_V,
        **{n: x for n, x in changed.items() if n not in options},
    }
    return MultiHeadAttention(scale=scale, options=options, statistics=STATISTICS, **parts)  # type: ignore[arg-type]


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


def seen_by_tap(
    q: Tensor,
    k: Tensor,
    scale: str | float,
    values: Mapping[str, Tensor | float] | None = None,
    keep: Tensor | None = None,
    *,
    causal: bool = False,
) -> Attended:
    """Return what a tap receives of one call."""
    seen: list[Attended] = []
    v = torch.zeros(*k.shape[:3], D_V).to(k)
    values = {} if values is None else values
    attend(q, k, v, scale=scale, values=values, keep=keep, causal=causal, tap=seen.append)
    (attended,) = seen
    return attended


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


def assert_same(made: Tensor, wanted: Tensor, leaves: Iterable[Tensor]) -> None:
    """Compare two fp64 computations of one thing: forward, and gradients of every leaf."""
    leaves = tuple(leaves)
    torch.testing.assert_close(made, wanted, rtol=1e-9, atol=1e-11)
    cotangent = torch.randn_like(wanted)
    for x, y in zip(
        torch.autograd.grad(made, leaves, cotangent),
        torch.autograd.grad(wanted, leaves, cotangent),
        strict=True,
    ):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-11)
