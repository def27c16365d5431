import doctest
import math
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from jaxtyping import TypeCheckError
from torch import Tensor
from torch.nn import functional

from attnscale.attention import SCALE_MODES, Attended, attend, padding_keep
from attnscale.attention.core import FUSED_FROM_KEYS_CPU, choose_backend, logits_of, normalise
from attnscale.attention.scale import resolve_scale
from tests.attention.conftest import (
    BACKENDS,
    BATCH,
    D_K,
    D_V,
    FACTORS,
    FUSIBLE,
    HEADS,
    KEY,
    LINEAR,
    MASKS,
    QUERY,
    assert_same,
    draw,
    every_mode,
    factor_of,
    full_mask,
    mask,
    seen_by_tap,
    values_of,
)

D_KS = (1, 3, 64)
CAP = 1.5


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


def test_every_mode_that_only_multiplies_is_compared_here() -> None:
    q, k, _ = draw()
    constant = set()
    for name in SCALE_MODES:
        values = values_of(name, dtype=torch.float64)
        attended = seen_by_tap(q, k, name, values, mask("padding")[0])
        ratio = attended.logits() / attended.scores()
        if torch.allclose(ratio, ratio.flatten()[0]):
            constant.add(name)
    assert constant == set(FACTORS) | {"nap"}


@pytest.mark.parametrize(
    ("scale", "d_k"), [*((s, D_K) for s in LINEAR), *(("sqrt", d) for d in D_KS)]
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_equals_pytorch(scale: str | float, backend: str, d_k: int) -> None:
    values = values_of(scale, d_k=d_k, dtype=torch.float64)
    for kind in MASKS:
        q, k, v = draw(d_k)
        keep, causal = mask(kind)
        made = attend(
            q, k, v, scale=scale, values=values, keep=keep, causal=causal, backend=backend
        )
        wanted = oracle(q, k, v, factor_of(scale, d_k), full_mask(keep, causal))
        assert_same(made, wanted, (q, k, v))


@pytest.mark.parametrize("d_k", [*D_KS, D_K])
def test_softcap_equals_its_formula(d_k: int) -> None:
    for kind in MASKS:
        q, k, v = draw(d_k)
        keep, causal = mask(kind)
        assert_same(
            attend(q, k, v, scale="softcap", values={"cap": CAP}, keep=keep, causal=causal),
            softcap_oracle(q, k, v, full_mask(keep, causal)),
            (q, k, v),
        )


@pytest.mark.parametrize("scale", FUSIBLE)
def test_explicit_equals_fused_in_fp32(scale: str | float) -> None:
    values = values_of(scale)
    for kind in MASKS:
        q, k, v = draw(dtype=torch.float32)
        keep, causal = mask(kind)
        made = []
        for backend in BACKENDS:
            out = attend(
                q, k, v, scale=scale, values=values, keep=keep, causal=causal, backend=backend
            )
            made.append((out, *torch.autograd.grad(out.square().sum(), (q, k, v))))
        for explicit, fused in zip(*made, strict=True):
            torch.testing.assert_close(explicit, fused, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_learned_temperatures_act_on_their_own_head(backend: str) -> None:
    q, k, v = draw()
    log_scale = torch.randn(HEADS, dtype=torch.float64, requires_grad=True)
    heads = [
        (q[:, h] @ k[:, h].transpose(-2, -1) * log_scale[h].exp()).softmax(dim=-1) @ v[:, h]
        for h in range(HEADS)
    ]
    assert_same(
        attend(q, k, v, scale="learned", values={"log_scale": log_scale}, backend=backend),
        torch.stack(heads, dim=1),
        (q, k, v, log_scale),
    )


@every_mode
def test_shapes_are_checked(scale: str | float, backend: str) -> None:
    q, k, v = draw()
    options = {"scale": scale, "values": values_of(scale), "backend": backend}
    assert attend(q, k, v, **options).shape == (BATCH, HEADS, QUERY, D_V)  # type: ignore[arg-type]
    with pytest.raises(TypeCheckError):
        attend(q, k.transpose(1, 2), v, **options)  # type: ignore[arg-type]
    with pytest.raises(TypeCheckError):
        attend(q, k, v[:, :, 1:], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scale", [*LINEAR, "log_n", "log_n_base", "ssmax"])
def test_a_vector_added_to_every_key_changes_nothing(scale: str | float, backend: str) -> None:
    q, k, v = draw()
    values = values_of(scale)
    moved = k + 3 * torch.randn(BATCH, HEADS, 1, D_K, dtype=k.dtype)
    torch.testing.assert_close(
        attend(q, moved, v, scale=scale, values=values, backend=backend),
        attend(q, k, v, scale=scale, values=values, backend=backend),
        rtol=1e-9,
        atol=1e-11,
    )


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
@every_mode
def test_dropout_keeps_the_mean(scale: str | float, backend: str, masked: bool) -> None:
    rate, copies = 0.3, 400
    q, k = torch.randn(copies, HEADS, QUERY, D_K), torch.randn(copies, HEADS, KEY, D_K)
    v = torch.ones(copies, HEADS, KEY, D_V)
    keep = torch.arange(KEY) < KEY - 1 if masked else None
    values = values_of(scale)
    weights = seen_by_tap(q, k, scale, values, keep).weights()
    total_of_weights = 0.0 if resolve_scale(scale).normaliser else 1.0
    torch.testing.assert_close(
        weights.sum(dim=-1), torch.full(weights.shape[:-1], total_of_weights), rtol=0, atol=1e-5
    )
    out = attend(q, k, v, scale=scale, values=values, keep=keep, dropout=rate, backend=backend)
    total = out[..., 0]
    # A row's total is Σ w_j b_j / (1 − rate), with variance Σ w_j² · rate / (1 − rate).
    wanted = math.sqrt(float(weights.square().sum(dim=-1).mean()) * rate / (1 - rate))
    tolerance = 5 * wanted / math.sqrt(total.numel())
    mean, spread = float(total.mean()), float(total.std())
    assert abs(mean - total_of_weights) < tolerance, f"mean {mean}, allowed ± {tolerance}"
    # The variance of a squared total is below that of a coin: kurtosis at most 1 / (0.3 · 0.7).
    relative = 5 * math.sqrt(1 / (rate * (1 - rate)) / (4 * total.numel()))
    assert abs(spread / wanted - 1) < relative, f"standard deviation {spread}, wanted {wanted}"


@pytest.mark.parametrize("unlike", ["flash", "EXPLICIT", ""])
def test_refuses_an_unknown_backend(unlike: str) -> None:
    q, k, v = draw()
    with pytest.raises(
        ValueError, match=rf"attention\.backend={unlike}: allowed are auto, explicit, fused"
    ):
        attend(q, k, v, backend=unlike)


@pytest.mark.parametrize("name", sorted(set(SCALE_MODES) - set(FUSIBLE)))
def test_refuses_fused_where_the_scores_are_needed(name: str) -> None:
    q, k, v = draw()
    with pytest.raises(ValueError, match=rf"attention\.backend=fused: scale mode '{name}' needs"):
        attend(q, k, v, scale=name, values=values_of(name), backend="fused")


@pytest.mark.parametrize("name", [n for n, m in SCALE_MODES.items() if m.options or m.needs])
def test_names_what_is_missing_in_values(name: str) -> None:
    q, k, v = draw()
    mode = SCALE_MODES[name]
    for missing in (*mode.options, *mode.needs):
        given = {n: x for n, x in values_of(name).items() if n != missing}
        with pytest.raises(ValueError, match=rf"^scale mode '{name}' reads '{missing}': pass it"):
            attend(q, k, v, scale=name, values=given)


@pytest.mark.parametrize(
    ("scale", "n_keys", "device", "chosen"),
    [
        ("sqrt", FUSED_FROM_KEYS_CPU - 1, "cpu", "explicit"),
        ("sqrt", FUSED_FROM_KEYS_CPU, "cpu", "fused"),
        ("sqrt", 1, "cuda", "fused"),
        ("softcap", FUSED_FROM_KEYS_CPU, "cpu", "explicit"),
        ("softcap", FUSED_FROM_KEYS_CPU, "cuda", "explicit"),
        ("nap", FUSED_FROM_KEYS_CPU, "cuda", "explicit"),
        ("ssmax", FUSED_FROM_KEYS_CPU, "cpu", "fused"),
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


def draw_with_logits_of_30(scale: str | float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values with logits up to 30, or √d_k · 30 as scores if they are bounded."""
    q, k, v = (x.detach().float() for x in draw())
    values = values_of(scale)
    logits = seen_by_tap(q, k, scale, values).logits()
    if torch.allclose(seen_by_tap(2 * q, k, scale, values).logits(), 2 * logits, rtol=1e-4):
        q *= 30 / logits.abs().max()
    else:
        q *= 30 * math.sqrt(D_K) / (q @ k.mT).abs().max()
    return q.to(dtype), k.to(dtype), v.to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_mode
def test_half_precision_is_close_to_fp32(
    scale: str | float, backend: str, dtype: torch.dtype
) -> None:
    values = values_of(scale)
    for kind in ("none", "padding+causal", "rows with no key"):
        halves = draw_with_logits_of_30(scale, dtype)
        keep, causal = mask(kind)

        def run(*x: Tensor, keep: Tensor | None = keep, causal: bool = causal) -> Tensor:
            return attend(*x, scale=scale, values=values, keep=keep, causal=causal, backend=backend)

        assert_close_in_half(run(*halves), run(*(x.float() for x in halves)), dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_explicit_scores_of_half_precision_are_fp32(dtype: torch.dtype) -> None:
    q, k, v = draw_with_logits_of_30("none", dtype)
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
@every_mode
def test_autocast_is_close_to_fp32(scale: str | float, backend: str, kind: str) -> None:
    q, k, v = (x.float() for x in draw_with_logits_of_30(scale, torch.bfloat16))
    keep, causal = mask(kind)
    values = values_of(scale)

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


def test_a_hidden_key_has_no_weight_beside_keys_without_any() -> None:
    logits = torch.full((1, 1, 2, 3), -torch.inf)
    keep = torch.tensor([[True, True, False], [True, False, False]])
    assert torch.equal(normalise(logits, keep)[..., 2], torch.zeros(1, 1, 2))
    assert torch.equal(normalise(logits, keep)[0, 0, 1, 1:], torch.zeros(2))
