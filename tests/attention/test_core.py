import doctest
import math
import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest
import torch
from jaxtyping import TypeCheckError
from torch import Tensor
from torch.nn import functional

from attnscale.attention import SCALE_MODES, Attended, attend, padding_keep
from attnscale.attention.core import FUSED_FROM_KEYS_CPU, choose_backend, logits_of, normalise
from attnscale.attention.scale import resolve_scale

BATCH, HEADS, QUERY, KEY, D_K, D_V = 2, 3, 5, 7, 11, 13
D_KS = (1, 3, 11, 64)
CAP = 1.5
FUSIBLE: tuple[str | float, ...] = ("sqrt", "none", "inverse", "learned", 0.37)
BACKENDS = ("explicit", "fused")
MODE_AND_BACKEND = [
    *((scale, backend) for scale in FUSIBLE for backend in BACKENDS),
    ("softcap", "explicit"),
]


def factor_of(scale: str | float, d_k: int) -> float:
    if not isinstance(scale, str):
        return scale
    return {
        "sqrt": 1 / math.sqrt(d_k),
        "none": 1.0,
        "inverse": 1 / d_k,
        "learned": 1 / math.sqrt(d_k),
    }[scale]


def values_of(scale: str | float, d_k: int, heads: int = HEADS) -> Mapping[str, Tensor | float]:
    if scale == "learned":
        return {"log_scale": torch.full((heads,), -0.5 * math.log(d_k), dtype=torch.float64)}
    return {"cap": CAP} if scale == "softcap" else {}


def draw(d_k: int = D_K, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    q = torch.randn(BATCH, HEADS, QUERY, d_k, dtype=dtype, requires_grad=True)
    k = torch.randn(BATCH, HEADS, KEY, d_k, dtype=dtype, requires_grad=True)
    v = torch.randn(BATCH, HEADS, KEY, D_V, dtype=dtype, requires_grad=True)
    return q, k, v


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


def full_mask(keep: Tensor | None, causal: bool) -> Tensor:
    full = torch.ones(BATCH, HEADS, QUERY, KEY, dtype=torch.bool)
    if keep is not None:
        full &= keep
    if causal:
        for i in range(QUERY):
            full[:, :, i, i + KEY - QUERY + 1 :] = False
    return full


def oracle(q: Tensor, k: Tensor, v: Tensor, factor: float, full: Tensor) -> Tensor:
    alive = full.any(dim=-1, keepdim=True)
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=full | ~alive, scale=factor)
    return torch.where(alive, out, torch.zeros_like(out))


def softcap_oracle(q: Tensor, k: Tensor, v: Tensor, full: Tensor) -> Tensor:
    logits = CAP * torch.tanh(torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1]) / CAP)
    unnormalised = torch.where(full, logits.exp(), 0.0)
    total = unnormalised.sum(dim=-1, keepdim=True)
    weights = unnormalised / torch.where(total > 0, total, 1.0)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


def assert_same(
    made: Callable[[], Tensor], wanted: Callable[[], Tensor], leaves: tuple[Tensor, ...]
) -> None:
    """Compare two computations of one thing: forward, and gradients of every leaf."""
    a, b = made(), wanted()
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
    cotangent = torch.randn_like(b)
    for x, y in zip(
        torch.autograd.grad(a, leaves, cotangent),
        torch.autograd.grad(b, leaves, cotangent),
        strict=True,
    ):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-11)


def test_every_mode_has_an_oracle_here() -> None:
    assert {scale for scale in FUSIBLE if isinstance(scale, str)} == {
        name for name, mode in SCALE_MODES.items() if mode.fusible
    }
    assert {name for name, mode in SCALE_MODES.items() if not mode.fusible} == {"softcap"}


@pytest.mark.parametrize("d_k", D_KS)
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scale", FUSIBLE)
def test_equals_pytorch(scale: str | float, backend: str, kind: str, d_k: int) -> None:
    q, k, v = draw(d_k)
    keep, causal = mask(kind)
    assert_same(
        lambda: attend(
            q,
            k,
            v,
            scale=scale,
            values=values_of(scale, d_k),
            keep=keep,
            causal=causal,
            backend=backend,
        ),
        lambda: oracle(q, k, v, factor_of(scale, d_k), full_mask(keep, causal)),
        (q, k, v),
    )


@pytest.mark.parametrize("d_k", D_KS)
@pytest.mark.parametrize("kind", MASKS)
def test_softcap_equals_its_formula(kind: str, d_k: int) -> None:
    q, k, v = draw(d_k)
    keep, causal = mask(kind)
    assert_same(
        lambda: attend(q, k, v, scale="softcap", values={"cap": CAP}, keep=keep, causal=causal),
        lambda: softcap_oracle(q, k, v, full_mask(keep, causal)),
        (q, k, v),
    )


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("scale", FUSIBLE)
def test_explicit_equals_fused_in_fp32(scale: str | float, kind: str) -> None:
    q, k, v = draw(dtype=torch.float32)
    keep, causal = mask(kind)
    values = values_of(scale, D_K)
    made = []
    for backend in BACKENDS:
        out = attend(q, k, v, scale=scale, values=values, keep=keep, causal=causal, backend=backend)
        made.append((out, *torch.autograd.grad(out.square().sum(), (q, k, v))))
    for explicit, fused in zip(*made, strict=True):
        torch.testing.assert_close(explicit, fused, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_learned_temperatures_act_on_their_own_head(backend: str) -> None:
    q, k, v = draw()
    log_scale = torch.randn(HEADS, dtype=torch.float64, requires_grad=True)
    heads = lambda: torch.stack(  # noqa: E731
        [
            (q[:, h] @ k[:, h].transpose(-2, -1) * log_scale[h].exp()).softmax(dim=-1) @ v[:, h]
            for h in range(HEADS)
        ],
        dim=1,
    )
    assert_same(
        lambda: attend(q, k, v, scale="learned", values={"log_scale": log_scale}, backend=backend),
        heads,
        (q, k, v, log_scale),
    )


@pytest.mark.parametrize(("scale", "backend"), MODE_AND_BACKEND)
def test_shapes_are_checked(scale: str | float, backend: str) -> None:
    q, k, v = draw()
    options = {"scale": scale, "values": values_of(scale, D_K), "backend": backend}
    assert attend(q, k, v, **options).shape == (BATCH, HEADS, QUERY, D_V)  # type: ignore[arg-type]
    with pytest.raises(TypeCheckError):
        attend(q, k.transpose(1, 2), v, **options)  # type: ignore[arg-type]
    with pytest.raises(TypeCheckError):
        attend(q, k, v[:, :, 1:], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scale", FUSIBLE)
def test_a_vector_added_to_every_key_changes_nothing(scale: str | float, backend: str) -> None:
    q, k, v = draw()
    values = values_of(scale, D_K)
    moved = k + 3 * torch.randn(BATCH, HEADS, 1, D_K, dtype=k.dtype)
    torch.testing.assert_close(
        attend(q, moved, v, scale=scale, values=values, backend=backend),
        attend(q, k, v, scale=scale, values=values, backend=backend),
        rtol=1e-9,
        atol=1e-11,
    )


@pytest.mark.parametrize("kind", ["none", "padding", "rows with no key"])
@pytest.mark.parametrize("scale", [*FUSIBLE, "softcap"])
def test_softmax_ignores_a_constant_of_a_row(scale: str | float, kind: str) -> None:
    q, k, _ = draw()
    keep, _ = mask(kind)
    values = values_of(scale, D_K)
    mode = resolve_scale(scale)
    if mode.qk is not None:
        q, k = mode.qk(q, k, values)
    logits = logits_of(q, k, mode, values)
    constant = 50 * torch.randn(BATCH, HEADS, QUERY, 1, dtype=logits.dtype)
    torch.testing.assert_close(
        normalise(logits + constant, keep), normalise(logits, keep), rtol=1e-9, atol=1e-12
    )
    assert not torch.allclose(normalise(logits * 2, keep), normalise(logits, keep))


@pytest.mark.parametrize("extreme", [1e30, -1e30, torch.finfo(torch.float32).max / 2])
def test_extreme_logits_stay_finite(extreme: float) -> None:
    logits = torch.randn(BATCH, HEADS, QUERY, KEY)
    logits[..., 1] = extreme
    logits[0, 0, 0] = extreme
    logits.requires_grad_()
    keep = padding_keep(torch.tensor([KEY, 4]), KEY)
    weights = normalise(logits, keep)
    (gradient,) = torch.autograd.grad(weights.square().sum(), logits)
    assert weights.isfinite().all()
    assert gradient.isfinite().all()
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(BATCH, HEADS, QUERY))
    assert weights[1, :, :, 4:].abs().max() == 0
    torch.testing.assert_close(weights[0, 0, 0], torch.full((KEY,), 1 / KEY))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("scale", "backend"), MODE_AND_BACKEND)
def test_dropout_keeps_the_mean(scale: str | float, backend: str, masked: bool) -> None:
    rate, copies = 0.3, 400
    q, k = torch.randn(copies, HEADS, QUERY, D_K), torch.randn(copies, HEADS, KEY, D_K)
    v = torch.ones(copies, HEADS, KEY, D_V)
    keep = torch.arange(KEY) < KEY - 1 if masked else None
    values = values_of(scale, D_K)
    out = attend(q, k, v, scale=scale, values=values, keep=keep, dropout=rate, backend=backend)
    total = out[..., 0]
    # A row's total is Σ w_j b_j / (1 − rate), with variance at most rate / (1 − rate).
    tolerance = 5 * math.sqrt(rate / (1 - rate) / total.numel())
    mean, spread = float(total.mean()), float(total.std())
    assert abs(mean - 1) < tolerance, f"mean {mean}, allowed 1 ± {tolerance}"
    assert 0.1 < spread < math.sqrt(rate / (1 - rate)), f"standard deviation {spread}"


@pytest.mark.parametrize("unlike", ["flash", "EXPLICIT", ""])
def test_refuses_an_unknown_backend(unlike: str) -> None:
    q, k, v = draw()
    with pytest.raises(
        ValueError, match=rf"attention\.backend={unlike}: allowed are auto, explicit, fused"
    ):
        attend(q, k, v, backend=unlike)


def test_refuses_fused_where_the_scores_are_needed() -> None:
    q, k, v = draw()
    with pytest.raises(ValueError, match=r"attention\.backend=fused: scale mode 'softcap'"):
        attend(q, k, v, scale="softcap", values={"cap": CAP}, backend="fused")


@pytest.mark.parametrize(
    ("scale", "n_keys", "device", "chosen"),
    [
        ("sqrt", FUSED_FROM_KEYS_CPU - 1, "cpu", "explicit"),
        ("sqrt", FUSED_FROM_KEYS_CPU, "cpu", "fused"),
        ("sqrt", 1, "cuda", "fused"),
        ("softcap", FUSED_FROM_KEYS_CPU, "cpu", "explicit"),
        ("softcap", FUSED_FROM_KEYS_CPU, "cuda", "explicit"),
    ],
)
def test_auto_takes_the_faster_backend_that_is_allowed(
    scale: str, n_keys: int, device: str, chosen: str
) -> None:
    assert choose_backend("auto", SCALE_MODES[scale], n_keys, torch.device(device)) == chosen


@pytest.mark.parametrize("tap", [None, lambda _: None])
@pytest.mark.parametrize(("backend", "calls"), [("explicit", 0), ("fused", 1), ("auto", 0)])
def test_runs_the_backend_that_was_asked_for(
    backend: str,
    calls: int,
    tap: Callable[[Attended], None] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel, seen = functional.scaled_dot_product_attention, []

    def counted(*args: Tensor, **options: object) -> Tensor:
        seen.append(options)
        return kernel(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(functional, "scaled_dot_product_attention", counted)
    attend(*draw(), backend=backend, tap=tap)
    assert len(seen) == calls


def assert_close_in_half(out: Tensor, wide: Tensor, dtype: torch.dtype) -> None:
    """Compare with fp32, in units of the dtype's rounding: 2⁻⁷ for bf16, 2⁻¹⁰ for fp16.

    Both start from the same half-precision inputs. What is left is the rounding of q' (it moves a
    logit of 30 by up to 15 units, and a typical one by far less), of the weights and of the output.
    """
    assert out.dtype == dtype
    assert out.isfinite().all()
    error = (out.float() - wide) / torch.finfo(dtype).eps
    typical, largest = float(error.square().mean().sqrt()), float(error.abs().max())
    assert typical < 1.5, f"root mean square {typical} units"
    assert largest < 16, f"largest error {largest} units"


def draw_with_scores_of_30(factor: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (x.detach().float() for x in draw())
    q *= 30 / ((q @ k.transpose(-2, -1)).abs().max() * factor)
    return q.to(dtype), k.to(dtype), v.to(dtype)


@pytest.mark.parametrize("kind", ["none", "padding+causal", "rows with no key"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("scale", "backend"), MODE_AND_BACKEND)
def test_half_precision_is_close_to_fp32(
    scale: str | float, backend: str, dtype: torch.dtype, kind: str
) -> None:
    factor = factor_of(scale, D_K) if scale != "softcap" else D_K**-0.5
    halves = draw_with_scores_of_30(factor, dtype)
    keep, causal = mask(kind)
    values = {"cap": 50.0} if scale == "softcap" else values_of(scale, D_K)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(
            q, k, v, scale=scale, values=values, keep=keep, causal=causal, backend=backend
        )

    assert_close_in_half(run(*halves), run(*(x.float() for x in halves)), dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_explicit_scores_of_half_precision_are_fp32(dtype: torch.dtype) -> None:
    q, k, v = draw_with_scores_of_30(1.0, dtype)
    none = SCALE_MODES["none"]
    logits = logits_of(q, k, none, {})
    assert logits.dtype == torch.float32
    assert torch.equal(logits, q.float() @ k.float().transpose(-2, -1))
    out = attend(q, k, v, scale="none", backend="explicit").float()
    wide = attend(q.float(), k.float(), v.float(), scale="none", backend="explicit")
    # Without a factor q' is exact: only the weights, up to 1, and the output, up to 4, are rounded.
    rounding = torch.finfo(dtype).eps / 2 * 2 * float(v.abs().max())
    torch.testing.assert_close(out, wide, rtol=0, atol=rounding)


def test_fp16_scores_beyond_its_range_stay_finite() -> None:
    q, k = (40 * torch.randn(BATCH, HEADS, n, 1024) for n in (QUERY, KEY))
    v = torch.randn(BATCH, HEADS, KEY, D_V)
    halves = (q.half(), k.half(), v.half())
    widest = float((halves[0].float() @ halves[1].float().transpose(-2, -1)).abs().max())
    assert widest > 65504
    out = attend(*halves, scale="none", keep=mask("padding")[0], backend="explicit")
    wide = attend(*(x.float() for x in halves), scale="none", keep=mask("padding")[0])
    assert_close_in_half(out, wide, torch.float16)


@pytest.mark.parametrize("kind", ["padding+causal", "rows with no key"])
@pytest.mark.parametrize(("scale", "backend"), MODE_AND_BACKEND)
def test_autocast_is_close_to_fp32(scale: str | float, backend: str, kind: str) -> None:
    factor = factor_of(scale, D_K) if scale != "softcap" else D_K**-0.5
    q, k, v = (x.float() for x in draw_with_scores_of_30(factor, torch.bfloat16))
    keep, causal = mask(kind)
    values = {"cap": 50.0} if scale == "softcap" else values_of(scale, D_K)

    def run() -> Tensor:
        return attend(
            q, k, v, scale=scale, values=values, keep=keep, causal=causal, backend=backend
        )

    wide = run()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = run()
    assert_close_in_half(out, wide, torch.bfloat16)


def test_autocast_leaves_the_explicit_scores_in_fp32() -> None:
    q, k, _ = (x.float() for x in draw())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = logits_of(q, k, SCALE_MODES["none"], {})
    assert torch.equal(logits, q @ k.transpose(-2, -1))


def test_the_example_of_attend_runs() -> None:
    assert attend.__doc__ is not None
    example = doctest.DocTestParser().get_doctest(attend.__doc__, {}, "attend", None, 0)
    result = doctest.DocTestRunner(verbose=False).run(example)
    assert (result.failed, result.attempted) == (0, len(example.examples))
    assert result.attempted == 7


def test_importing_attention_is_cheap() -> None:
    program = (
        "import sys\n"
        "for name in ('attnscale', 'attnscale.attention'):\n"
        "    __import__(name)\n"
        "    heavy = {'mlflow', 'hydra', 'omegaconf', 'pytorch_lightning'} & set(sys.modules)\n"
        "    print(name, sorted(heavy), 'torch' in sys.modules)\n"
    )
    made = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert made.stdout.splitlines() == ["attnscale [] False", "attnscale.attention [] True"]
