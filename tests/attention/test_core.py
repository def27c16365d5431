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

from attnscale.attention import SCALES, Attended, Scale, attend, padding_keep, scores_of
from attnscale.attention.core import FUSED_FROM_KEYS_CPU, choose_backend, named_scale
from attnscale.attention.masks import kept_count, softmax_over_kept
from attnscale.attention.scale import Learned, SoftCap
from tests.support.modes import (
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
    MODES,
    QUERY,
    REPRESENTATIVE,
    UNFUSIBLE,
    Mode,
    assert_same,
    attended_of,
    draw,
    every_mode,
    every_mode_and_backend,
    factor_of,
    full_mask,
    mask,
    new_scale,
    representative_and_backend,
    total_weight,
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
    for name in SCALES:
        attended = attended_of(q, k, new_scale(name, dtype=torch.float64), mask("padding")[0])
        ratio = attended.logits() / attended.scores()
        if torch.allclose(ratio, ratio.flatten()[0]):
            constant.add(name)
    assert constant == set(FACTORS) | {"nap"}


@pytest.mark.parametrize(
    ("mode", "d_k"), [*((m, D_K) for m in LINEAR), *(("sqrt", d) for d in D_KS)]
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_equals_pytorch(mode: Mode, backend: str, d_k: int) -> None:
    scale = new_scale(mode, d_k=d_k, dtype=torch.float64)
    for kind in MASKS:
        q, k, v = draw(d_k)
        keep, causal = mask(kind)
        out = attend(q, k, v, scale=scale, keep=keep, causal=causal, backend=backend)
        wanted = oracle(q, k, v, factor_of(mode, d_k), full_mask(keep, causal))
        assert_same(out, wanted, (q, k, v))


@pytest.mark.parametrize("d_k", [*D_KS, D_K])
def test_softcap_equals_its_formula(d_k: int) -> None:
    for kind in MASKS:
        q, k, v = draw(d_k)
        keep, causal = mask(kind)
        assert_same(
            attend(q, k, v, scale=SoftCap(d_k=d_k, cap=CAP), keep=keep, causal=causal),
            softcap_oracle(q, k, v, full_mask(keep, causal)),
            (q, k, v),
        )


@pytest.mark.parametrize("mode", [mode for mode in REPRESENTATIVE if mode in FUSIBLE])
def test_explicit_equals_fused_in_fp32(mode: Mode) -> None:
    scale = new_scale(mode)
    for kind in MASKS:
        q, k, v = draw(dtype=torch.float32)
        keep, causal = mask(kind)
        results = []
        for backend in BACKENDS:
            out = attend(q, k, v, scale=scale, keep=keep, causal=causal, backend=backend)
            results.append((out, *torch.autograd.grad(out.square().sum(), (q, k, v))))
        for explicit, fused in zip(*results, strict=True):
            torch.testing.assert_close(explicit, fused, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_learned_scales_act_on_their_own_head(backend: str) -> None:
    q, k, v = draw()
    scale = Learned(n_heads=HEADS, d_k=D_K).double()
    torch.nn.init.normal_(scale.log_scale)
    heads = [
        (q[:, h] @ k[:, h].transpose(-2, -1) * scale.log_scale[h].exp()).softmax(dim=-1) @ v[:, h]
        for h in range(HEADS)
    ]
    assert_same(
        attend(q, k, v, scale=scale, backend=backend),
        torch.stack(heads, dim=1),
        (q, k, v, scale.log_scale),
    )


@representative_and_backend
def test_shapes_are_checked(mode: Mode, backend: str) -> None:
    q, k, v = draw()
    scale = new_scale(mode)
    assert attend(q, k, v, scale=scale, backend=backend).shape == (BATCH, HEADS, QUERY, D_V)
    with pytest.raises(TypeCheckError):
        attend(q, k.transpose(1, 2), v, scale=scale, backend=backend)
    with pytest.raises(TypeCheckError):
        attend(q, k, v[:, :, 1:], scale=scale, backend=backend)


@pytest.mark.parametrize("mode", [*LINEAR, "log_n", "log_n_base", "ssmax"])
def test_a_vector_added_to_every_key_changes_nothing(mode: Mode) -> None:
    q, k, v = draw()
    scale = new_scale(mode)
    moved = k + 3 * torch.randn(BATCH, HEADS, 1, D_K, dtype=k.dtype)
    torch.testing.assert_close(
        attend(q, moved, v, scale=scale), attend(q, k, v, scale=scale), rtol=1e-9, atol=1e-11
    )


@pytest.mark.parametrize("extreme", [1e30, -1e30, torch.finfo(torch.float32).max / 2])
def test_extreme_logits_stay_finite(extreme: float) -> None:
    logits = torch.randn(BATCH, HEADS, QUERY, KEY)
    logits[..., 1] = extreme
    logits[0, 0, 0] = extreme
    logits.requires_grad_()
    keep = padding_keep(torch.tensor([KEY, 4]), KEY)
    weights = softmax_over_kept(logits, keep)
    (gradient,) = torch.autograd.grad(weights.square().sum(), logits)
    assert weights.isfinite().all()
    assert gradient.isfinite().all()
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(BATCH, HEADS, QUERY))
    assert weights[1, :, :, 4:].abs().max() == 0
    torch.testing.assert_close(weights[0, 0, 0], torch.full((KEY,), 1 / KEY))


@pytest.mark.parametrize("masked", [False, True])
@representative_and_backend
def test_dropout_keeps_the_mean(mode: Mode, backend: str, masked: bool) -> None:
    rate, copies = 0.3, 400
    q, k = torch.randn(copies, HEADS, QUERY, D_K), torch.randn(copies, HEADS, KEY, D_K)
    v = torch.ones(copies, HEADS, KEY, D_V)
    keep = torch.arange(KEY) < KEY - 1 if masked else None
    scale = new_scale(mode)
    weights = attended_of(q, k, scale, keep).weights()
    whole = total_weight(mode)
    torch.testing.assert_close(
        weights.sum(dim=-1), torch.full(weights.shape[:-1], whole), rtol=0, atol=1e-5
    )
    out = attend(q, k, v, scale=scale, keep=keep, dropout=rate, backend=backend)
    total = out[..., 0]
    # A row's total is Σ w_j b_j / (1 − rate), with variance Σ w_j² · rate / (1 − rate).
    wanted = math.sqrt(float(weights.square().sum(dim=-1).mean().detach()) * rate / (1 - rate))
    tolerance = 5 * wanted / math.sqrt(total.numel())
    mean, spread = float(total.detach().mean()), float(total.detach().std())
    assert abs(mean - whole) < tolerance, f"mean {mean}, allowed ± {tolerance}"
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


@every_mode
def test_fused_is_refused_where_the_scores_are_needed(mode: Mode) -> None:
    q, k, v = draw()
    scale = new_scale(mode)
    assert scale.fusible == (mode not in UNFUSIBLE)
    if mode in UNFUSIBLE:
        with pytest.raises(
            ValueError, match=rf"^attention\.backend=fused: scale mode '{mode}' needs"
        ):
            attend(q, k, v, scale=scale, backend="fused")


# --- a scale by its name ---

KEEPS_NOTHING: tuple[Mode, ...] = (
    *("sqrt", "none", "folded", "none_equiv", "inverse", "mup", "cosine_fixed", "softcap"),
    *("log_n", "log_n_base", 0.37),
)
NEEDS = {
    "sqrt_d_model": "d_model",
    "ngpt": "d_model",
    "qknorm": "the statistic length_p97_5 of the data",
}


@every_mode
def test_a_name_is_taken_where_the_mode_learns_and_keeps_nothing(mode: Mode) -> None:
    q, k, v = draw()
    if mode in KEEPS_NOTHING:
        named = named_scale(mode, n_heads=HEADS, d_k=D_K)
        assert type(named) is type(new_scale(mode))
        assert not named.state_dict()
        assert torch.equal(attend(q, k, v, scale=mode), attend(q, k, v, scale=new_scale(mode)))
        return
    if mode in NEEDS:
        refusal = rf"^attention\.scale={mode}: needs {NEEDS[str(mode)]}$"
    else:
        kind = SCALES[str(mode)].__name__
        refusal = rf"^scale mode '{mode}' learns: make it once, {kind}\(\.\.\.\), and pass it$"
    with pytest.raises(ValueError, match=refusal):
        named_scale(mode, n_heads=HEADS, d_k=D_K)
    with pytest.raises(ValueError, match=refusal):
        attend(q, k, v, scale=mode)


def test_refuses_the_name_of_no_mode() -> None:
    with pytest.raises(ValueError, match=r"^attention\.scale=sqr: no such scale mode"):
        attend(*draw(), scale="sqr")
    with pytest.raises(ValueError, match=r"^attention\.scale=-2: a number must be positive"):
        attend(*draw(), scale=-2)


def test_the_usual_scale_is_the_default() -> None:
    q, k, v = draw()
    wanted = oracle(q, k, v, D_K**-0.5, full_mask(None, causal=False))
    torch.testing.assert_close(attend(q, k, v), wanted, rtol=1e-9, atol=1e-11)


# --- backends ---


@pytest.mark.parametrize(
    ("mode", "n_keys", "device", "chosen"),
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
    mode: str, n_keys: int, device: str, chosen: str
) -> None:
    assert choose_backend("auto", new_scale(mode), n_keys, torch.device(device)) == chosen


@pytest.mark.parametrize("tap", [None, lambda _: None])
@pytest.mark.parametrize(("backend", "calls"), [("explicit", 0), ("fused", 1), ("auto", 0)])
def test_runs_the_backend_that_was_asked_for(
    backend: str,
    calls: int,
    tap: Callable[[Attended], None] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel, counts = functional.scaled_dot_product_attention, []

    def counted(*args: Tensor, **options: object) -> Tensor:
        counts.append(options)
        return kernel(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(functional, "scaled_dot_product_attention", counted)
    attend(*draw(), backend=backend, tap=tap)
    assert len(counts) == calls


# --- half precision ---


def assert_close_in_half(out: Tensor, wide: Tensor, dtype: torch.dtype) -> None:
    """Compare with fp32, in units of the dtype's rounding: 2⁻⁷ for bf16, 2⁻¹⁰ for fp16.

    Both start from the same half-precision inputs. What is left is the rounding of q' (it moves a
    logit of 30 by up to 15 units, and a typical one by far less), of the weights and of the output.
    """
    assert out.dtype == dtype
    assert out.isfinite().all()
    error = (out.float() - wide).detach() / torch.finfo(dtype).eps
    typical, largest = float(error.square().mean().sqrt()), float(error.abs().max())
    assert typical < 1.5, f"root mean square {typical} units"
    assert largest < 16, f"largest error {largest} units"


def draw_with_logits_of_30(scale: Scale, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values with logits up to 30, or √d_k · 30 as scores if they are bounded."""
    q, k, v = (x.detach().float() for x in draw())
    logits = attended_of(q, k, scale).logits()
    if torch.allclose(attended_of(2 * q, k, scale).logits(), 2 * logits, rtol=1e-4):
        q *= 30 / logits.abs().max()
    else:
        q *= 30 * math.sqrt(D_K) / (q @ k.mT).abs().max()
    return q.to(dtype), k.to(dtype), v.to(dtype)


@pytest.mark.parametrize(
    ("mode", "backend", "dtype"),
    [
        *((mode, "explicit", dtype) for mode in MODES for dtype in (torch.bfloat16, torch.float16)),
        # PyTorch's kernel wants q', k' and v of one type, which is up to each mode.
        *((mode, "fused", torch.bfloat16) for mode in FUSIBLE),
        *((mode, "fused", torch.float16) for mode in REPRESENTATIVE if mode in FUSIBLE),
    ],
)
def test_half_precision_is_close_to_fp32(mode: Mode, backend: str, dtype: torch.dtype) -> None:
    scale = new_scale(mode)
    for kind in ("none", "padding+causal", "rows with no key"):
        halves = draw_with_logits_of_30(scale, dtype)
        keep, causal = mask(kind)

        def run(*x: Tensor, keep: Tensor | None = keep, causal: bool = causal) -> Tensor:
            return attend(*x, scale=scale, keep=keep, causal=causal, backend=backend)

        assert_close_in_half(run(*halves), run(*(x.float() for x in halves)), dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_explicit_scores_of_half_precision_are_fp32(dtype: torch.dtype) -> None:
    none = new_scale("none")
    q, k, v = draw_with_logits_of_30(none, dtype)
    for logits in (scores_of(q, k), none(q, k), attended_of(q, k, "none").logits()):
        assert logits.dtype == torch.float32
        assert torch.equal(logits, q.float() @ k.float().transpose(-2, -1))
    out = attend(q, k, v, scale="none", backend="explicit").float()
    wide = attend(q.float(), k.float(), v.float(), scale="none", backend="explicit")
    # Without a factor q' is exact: only the weights, up to 1, and the output, up to 4, are rounded.
    rounding = torch.finfo(dtype).eps / 2 * 2 * float(v.abs().max())
    torch.testing.assert_close(out, wide, rtol=0, atol=rounding)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "name", ["cosine", "qknorm", "cosine_fixed", "qk_layernorm", "qk_rmsnorm", "ngpt"]
)
def test_norms_of_half_precision_are_taken_in_fp32(name: str, dtype: torch.dtype) -> None:
    d_k, n_keys = 1024, 257
    q, k = ((37 * torch.randn(1, HEADS, n, d_k)).to(dtype) for n in (QUERY, n_keys))
    assert float(q.float().square().sum(dim=-1).min()) > 65504  # not a number that fp16 holds
    scale = new_scale(name, d_k=d_k)
    logits, wide = (attended_of(x, y, scale).logits() for x, y in ((q, k), (q.float(), k.float())))
    # A norm in half precision moves a whole row of logits, by half a unit or more. The rounding of
    # q' and k' moves each component by itself, and averages out over components and keys.
    of_rows = (logits * wide).sum(dim=-1) / wide.square().sum(dim=-1)
    assert float((of_rows - 1).abs().max()) < 0.4 * torch.finfo(dtype).eps, of_rows


NORMALISING_Q_AND_K = ("cosine", "qknorm", "cosine_fixed", "qk_layernorm", "qk_rmsnorm", "ngpt")
NORMALISING_ROWS = ("score_layernorm", "nap")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("mode", "over_heads"),
    [*((mode, 0) for mode in MODES), ("qk_layernorm", 1), ("qk_rmsnorm", 1)],
)
def test_vectors_of_zeros_have_finite_gradients_and_none_where_they_are_normalised(
    mode: Mode, over_heads: int, dtype: torch.dtype
) -> None:
    """Padded positions of an input without a mask: unlike others they have no direction."""
    scale = new_scale(mode, over_heads=over_heads)
    q, k, v = (x.detach().to(dtype) for x in draw(n_queries=KEY))
    for x in (q, k, v):
        x[0, :, 4:] = 0.0
        x.requires_grad_()
    output = attend(q, k, v, scale=scale)
    (1000 * output.float().square().mean()).backward()  # type: ignore[no-untyped-call]
    gradients = {
        "q": q.grad,
        "k": k.grad,
        "v": v.grad,
        **{n: p.grad for n, p in scale.named_parameters()},
    }
    assert bool(output.isfinite().all())
    for name, gradient in gradients.items():
        assert gradient is None or bool(gradient.isfinite().all()), name
    assert q.grad is not None
    assert k.grad is not None
    others = float(q.grad[1].abs().max())
    assert others > 0
    if mode in (*NORMALISING_Q_AND_K, *NORMALISING_ROWS):
        assert float(q.grad[0, :, 4:].abs().max()) == 0.0
    else:
        assert float(q.grad[0, :, 4:].abs().max()) < 100 * others
    if mode in NORMALISING_Q_AND_K:
        assert float(k.grad[0, :, 4:].abs().max()) == 0.0


def test_fp16_scores_beyond_its_range_stay_finite() -> None:
    q, k = (40 * torch.randn(BATCH, HEADS, n, 1024) for n in (QUERY, KEY))
    v = torch.randn(BATCH, HEADS, KEY, D_V)
    halves = (q.half(), k.half(), v.half())
    widest = float((halves[0].float() @ halves[1].float().transpose(-2, -1)).abs().max())
    assert widest > 65504
    out = attend(*halves, scale="none", keep=mask("padding")[0], backend="explicit")
    wide = attend(*(x.float() for x in halves), scale="none", keep=mask("padding")[0])
    assert_close_in_half(out, wide, torch.float16)


def assert_autocast_is_close_to_fp32(mode: Mode, backend: str, kind: str) -> None:
    scale = new_scale(mode)
    q, k, v = (x.float() for x in draw_with_logits_of_30(scale, torch.bfloat16))
    keep, causal = mask(kind)

    def run() -> Tensor:
        return attend(q, k, v, scale=scale, keep=keep, causal=causal, backend=backend)

    wide = run()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = run()
    assert_close_in_half(out, wide, torch.bfloat16)


@every_mode_and_backend
def test_autocast_is_close_to_fp32(mode: Mode, backend: str) -> None:
    assert_autocast_is_close_to_fp32(mode, backend, "padding+causal")


@representative_and_backend
def test_autocast_is_close_to_fp32_beside_rows_with_no_key(mode: Mode, backend: str) -> None:
    assert_autocast_is_close_to_fp32(mode, backend, "rows with no key")


def test_autocast_leaves_the_explicit_scores_in_fp32() -> None:
    q, k, _ = (x.float() for x in draw())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = (scores_of(q, k), new_scale("none")(q, k))
    assert torch.equal(logits[0], q @ k.transpose(-2, -1))
    assert torch.equal(logits[1], logits[0])


# --- what is kept ---


def test_a_hidden_key_has_no_weight_beside_keys_without_any() -> None:
    logits = torch.full((1, 1, 2, 3), -torch.inf)
    keep = torch.tensor([[True, True, False], [True, False, False]])
    weights = softmax_over_kept(logits, keep)
    assert torch.equal(weights[..., 2], torch.zeros(1, 1, 2))
    assert torch.equal(weights[0, 0, 1, 1:], torch.zeros(2))


def test_kept_keys_are_counted_row_by_row() -> None:
    assert kept_count(None, KEY) == KEY
    keep = torch.tensor([[True, False, True], [False, False, False]])
    rows = kept_count(keep, 3)
    assert isinstance(rows, Tensor)
    assert rows.tolist() == [[2.0], [0.0]]
    # A mask that is the same for all keys stands for as many as there are.
    broadcast = kept_count(torch.tensor([[True], [False]]), KEY)
    assert isinstance(broadcast, Tensor)
    assert broadcast.tolist() == [[KEY], [0.0]]


# --- the package ---


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
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines() == ["attnscale [] False", "attnscale.attention [] True"]
