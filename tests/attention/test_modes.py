"""What holds for every scale mode: a new one is covered by being in the registry."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attnscale.attention import SCALES, Moments, Scale, attend, causal_keep, padding_keep
from tests.support.modes import (
    BATCH,
    BUFFERED,
    D_K,
    D_MODEL,
    D_V,
    FUSIBLE,
    HEADS,
    KEY,
    MASKS,
    QUERY,
    Mode,
    assert_same,
    attended_of,
    buffers_put_back,
    draw,
    every_mode,
    every_mode_and_backend,
    every_state,
    every_state_and_backend,
    mask,
    moved_scale,
    new_scale,
    total_weight,
)

# --- finite ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@every_mode_and_backend
def test_finite_whatever_the_scores(mode: Mode, backend: str, dtype: torch.dtype) -> None:
    # (d_k, largest score): around ±30, and unscaled scores of 1024 components.
    for d_k, largest, training in ((D_K, 30.0, True), (1024, 130.0, True), (D_K, 30.0, False)):
        if not (training or mode in BUFFERED):
            continue
        scale = new_scale(mode, d_k=d_k).train(training)
        for kind in ("none", "padding+causal", "rows with no key"):
            q, k, v = (x.detach() for x in draw(d_k, torch.float32))
            q *= largest / (q @ k.mT).abs().max()
            vectors = [x.to(dtype).requires_grad_() for x in (q, k, v)]
            keep, causal = mask(kind)
            out = attend(*vectors, scale=scale, keep=keep, causal=causal, backend=backend)
            assert out.dtype == dtype
            leaves = (*vectors, *scale.parameters())
            gradients = torch.autograd.grad(out.float().square().sum(), leaves)
            for tensor in (out, *gradients):
                assert tensor.isfinite().all(), (kind, d_k, tensor)


@every_mode
def test_finite_where_fp16_cannot_hold_the_scores(mode: Mode) -> None:
    q, k, v = draw(1024, torch.float32)
    halves = [(x * factor).detach().half() for x, factor in ((q, 40), (k, 40), (v, 1))]
    assert float((halves[0].float() @ halves[1].float().mT).abs().max()) > 65504
    leaves = [x.requires_grad_() for x in halves]
    scale = new_scale(mode, d_k=1024)
    out = attend(*leaves, scale=scale, keep=mask("padding")[0], backend="explicit")
    for tensor in (out, *torch.autograd.grad(out.float().square().sum(), leaves)):
        assert tensor.isfinite().all()


@every_mode
def test_vectors_of_zeros_are_finite(mode: Mode) -> None:
    q, k, v = draw(dtype=torch.float32)
    with torch.no_grad():
        q[0, 0], k[0, 0], k[1, :, 2] = 0.0, 0.0, 0.0
    scale = new_scale(mode)
    with torch.autograd.set_detect_anomaly(True):
        out = attend(q, k, v, scale=scale)
        gradients = torch.autograd.grad(out.square().sum(), (q, k, v, *scale.parameters()))
    assert all(tensor.isfinite().all() for tensor in (out, *gradients))
    # Where all scores are equal, so are the weights.
    uniform = total_weight(mode) * v[0, 0].mean(dim=0)
    torch.testing.assert_close(out[0, 0], uniform.expand(QUERY, D_V))


# --- gradients ---


@every_state_and_backend
def test_gradients_reach_everything(mode: Mode, backend: str, training: bool) -> None:
    q, k, v = draw()
    scale = moved_scale(mode, training=training)
    leaves = {"q": q, "k": k, "v": v, **dict(scale.named_parameters())}
    out = attend(q, k, v, scale=scale, backend=backend)
    cotangent = torch.randn_like(out)
    gradients = torch.autograd.grad(out, list(leaves.values()), cotangent)
    for name, gradient in zip(leaves, gradients, strict=True):
        assert bool((gradient.abs() > 1e-9).all()), name


class Attending(nn.Module):
    """A call of ``attend`` as a function of what its scale has learned, too."""

    def __init__(self, scale: Scale, keep: Tensor) -> None:
        super().__init__()
        self.scale, self.keep = scale, keep

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, scale=self.scale, keep=self.keep, backend="explicit")


@every_state
def test_gradients_are_those_of_finite_differences(mode: Mode, training: bool) -> None:
    vectors = draw(3, n_queries=2, n_keys=3)
    keep = torch.rand(BATCH, HEADS, 2, 3) < 0.7
    keep[..., 0] = True
    attending = Attending(new_scale(mode, d_k=3, dtype=torch.float64), keep).train(training)
    learned = dict(attending.named_parameters())

    def run(*leaves: Tensor) -> Tensor:
        named = dict(zip(learned, leaves[3:], strict=True))
        out: Tensor = torch.func.functional_call(attending, named, leaves[:3])
        return out

    # Rows of two nearly equal scores turn quickly where a row is divided by its deviation.
    inputs = (*vectors, *learned.values())
    assert torch.autograd.gradcheck(run, inputs, atol=1e-4, rtol=1e-3, fast_mode=True)


# --- what must not matter ---


@every_mode
def test_a_constant_of_a_row_changes_no_weight(mode: Mode) -> None:
    q, k, _ = draw()
    scale = moved_scale(mode)
    for kind in ("none", "padding", "random", "rows with no key"):
        keep, _ = mask(kind)
        attended = attended_of(q, k, scale, keep)
        logits = attended.logits()
        constant = 50 * torch.randn(BATCH, HEADS, QUERY, 1, dtype=logits.dtype)
        weights = scale.weights(logits, keep)
        torch.testing.assert_close(weights.detach(), attended.weights())
        torch.testing.assert_close(
            scale.weights(logits + constant, keep), weights, rtol=1e-9, atol=1e-12
        )
        sloped = logits + torch.arange(KEY)
        assert not torch.allclose(scale.weights(sloped, keep), weights)


@every_state_and_backend
def test_permuted_keys_permute_the_weights(mode: Mode, backend: str, training: bool) -> None:
    q, k, v = draw()
    scale = moved_scale(mode, training=training)
    among_kept = torch.tensor([2, 0, 3, 1, 4, 5, 6])
    for kind, order in (
        ("none", torch.randperm(KEY)),
        ("random", torch.randperm(KEY)),
        ("sequence with no key", torch.randperm(KEY)),
        ("kept keys only", among_kept),
    ):
        kept_only = kind == "kept keys only"
        keep = padding_keep(torch.tensor([4, 4]), KEY) if kept_only else mask(kind)[0]
        moved = keep[..., order] if keep is not None else None
        assert not kept_only or torch.equal(torch.as_tensor(moved), torch.as_tensor(keep))
        weights = attended_of(q, k, scale, keep).weights()
        torch.testing.assert_close(
            attended_of(q, k[:, :, order], scale, moved).weights(),
            weights[..., order],
            rtol=1e-9,
            atol=1e-11,
        )
        permuted = (k[:, :, order], v[:, :, order])
        torch.testing.assert_close(
            attend(q, *permuted, scale=scale, keep=moved, backend=backend),
            attend(q, k, v, scale=scale, keep=keep, backend=backend),
            rtol=1e-9,
            atol=1e-11,
        )


@every_state_and_backend
def test_masked_equals_cut(mode: Mode, backend: str, training: bool) -> None:
    q, k, v = draw()
    scale = moved_scale(mode, training=training)
    hidden = torch.tensor([1, 4, 5])
    kept = torch.tensor([0, 2, 3, 6])
    with torch.no_grad():
        k[:, :, hidden] *= 1e3
        v[:, :, hidden] *= 1e3
    padding = torch.ones(1, 1, 1, KEY, dtype=torch.bool)
    padding[..., hidden] = False
    for keep in (padding, padding & causal_keep(QUERY, KEY)):
        with buffers_put_back(scale):
            out = attend(q, k, v, scale=scale, keep=keep, backend=backend)
            after = [buffer.clone() for buffer in scale.buffers()]
        cut = (k[:, :, kept], v[:, :, kept])
        with buffers_put_back(scale):
            wanted = attend(q, *cut, scale=scale, keep=keep[..., kept], backend=backend)
            for buffer, other in zip(scale.buffers(), after, strict=True):  # the statistics too
                torch.testing.assert_close(buffer, other, rtol=1e-9, atol=1e-11)
        assert_same(out, wanted, (q, k, v, *scale.parameters()))
        (for_k,) = torch.autograd.grad(
            attend(q, k, v, scale=scale, keep=keep, backend=backend).sum(), k
        )
        assert for_k[:, :, hidden].abs().max() == 0


@every_mode_and_backend
def test_a_step_of_decoding_equals_its_causal_row(mode: Mode, backend: str) -> None:
    q, k, v = draw(n_queries=KEY)
    scale = moved_scale(mode, training=False)
    at_once = attend(q, k, v, scale=scale, causal=True, backend=backend)
    for i in range(KEY):
        now = (q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1])
        for causal in (False, True):
            step = attend(*now, scale=scale, causal=causal, backend=backend)
            torch.testing.assert_close(step[:, :, 0], at_once[:, :, i], rtol=1e-9, atol=1e-11)


# --- rows of one key, and of none ---


@every_state_and_backend
def test_a_row_of_one_key_gets_its_value(mode: Mode, backend: str, training: bool) -> None:
    scale = new_scale(mode, dtype=torch.float64).train(training)
    one = torch.zeros(KEY, dtype=torch.bool)
    one[4] = True
    for n_keys, keep in ((1, None), (KEY, one)):
        q, k, v = draw(n_keys=n_keys)
        position = 0 if keep is None else 4
        with torch.autograd.set_detect_anomaly(True):
            out = attend(q, k, v, scale=scale, keep=keep, backend=backend)
            gradients = torch.autograd.grad(out.square().sum(), (q, k, v, *scale.parameters()))
        wanted = total_weight(mode) * v[:, :, position : position + 1]
        torch.testing.assert_close(out, wanted.expand_as(out), rtol=1e-12, atol=1e-12)
        assert all(gradient.isfinite().all() for gradient in gradients)
        torch.testing.assert_close(gradients[0], torch.zeros_like(q), rtol=0, atol=1e-12)


@every_state_and_backend
def test_without_any_key_all_is_zero(mode: Mode, backend: str, training: bool) -> None:
    q, k, v = draw()
    scale = new_scale(mode, dtype=torch.float64).train(training)
    keep = torch.zeros(KEY, dtype=torch.bool)
    leaves = (q, k, v, *scale.parameters())
    with torch.autograd.set_detect_anomaly(True):
        out = attend(q, k, v, scale=scale, keep=keep, backend=backend)
        gradients = torch.autograd.grad(out.sum(), leaves, allow_unused=True)
    assert out.abs().max() == 0
    assert all(gradient is None or gradient.abs().max() == 0 for gradient in gradients)
    assert attended_of(q, k, scale, keep).weights().abs().max() == 0
    assert all(tensor.isfinite().all() for tensor in scale.state_dict().values())


# --- backends ---


@pytest.mark.parametrize("mode", FUSIBLE)
def test_fused_equals_explicit(mode: Mode) -> None:
    scale = moved_scale(mode)
    for kind in MASKS:
        q, k, v = draw()
        keep, causal = mask(kind)
        fused, explicit = (
            attend(q, k, v, scale=scale, keep=keep, causal=causal, backend=backend)
            for backend in ("fused", "explicit")
        )
        assert_same(fused, explicit, (q, k, v, *scale.parameters()))


# --- the prediction of a mode ---


@pytest.mark.parametrize(("q_rms", "k_rms"), [(1.0, 1.0), (0.6, 1.7)])
@every_mode
def test_the_deviation_of_untrained_logits(mode: Mode, q_rms: float, k_rms: float) -> None:
    batch, queries, n, d_k = 11, 31, 29, 67
    q, k = (
        q_rms * torch.randn(batch, HEADS, queries, d_k),
        k_rms * torch.randn(batch, HEADS, n, d_k),
    )
    scale = new_scale(mode, d_k=d_k)
    moments = Moments(
        d_k=d_k, q_rms=q_rms, k_rms=k_rms, log_n=math.log(n), shrink=math.sqrt(n / (n - 1))
    )
    measured = float(attended_of(q, k, scale).logits().var(dim=-1).mean().sqrt())
    predicted = scale.predicted_std(moments)
    # Of each of the batch × heads groups of scores, those with a key (or query) in common covary.
    groups = batch * HEADS
    relative = 0.5 * math.sqrt((2 + 2 * (n + queries) * 2 / d_k) / (groups * n * queries))
    message = f"{measured}, predicted {predicted}, ± {5 * relative}"
    assert abs(measured / predicted - 1) < 5 * relative, message


MOMENTS = Moments(d_k=D_K, q_rms=0.6, k_rms=1.7, x_cos=0.19, log_n=2.3, row_share=0.83, shrink=1.07)
# 0.9 = √(1 − 0.19): independent directions, less what a row's inputs have in common.
SCORE = math.sqrt(D_K) * 0.6 * 1.7 * 0.9
COSINE = 0.9 / math.sqrt(D_K)


def rms_of(*tensors: Tensor) -> float:
    """Return the mean over heads of the root mean square of a product, component by component."""
    product = torch.stack(tensors).prod(dim=0)
    return float(product.square().mean(dim=-1).sqrt().mean())


def capped(size: float, cap: float) -> float:
    """Return √E[C² tanh²(βz/C)], by Gauss and Hermite's nodes."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(99)
    squares = (cap * np.tanh(size * nodes / cap)) ** 2
    return math.sqrt(float(weights @ squares) / math.sqrt(2 * math.pi))


PREDICTED: dict[str, Callable[[dict[str, Tensor]], float]] = {
    "sqrt": lambda p: SCORE / math.sqrt(D_K),
    "none": lambda p: SCORE,
    "folded": lambda p: SCORE,
    "none_equiv": lambda p: SCORE,
    "inverse": lambda p: SCORE / D_K,
    "mup": lambda p: SCORE * 8 / D_K,
    "sqrt_d_model": lambda p: SCORE / math.sqrt(D_MODEL),
    "learned": lambda p: SCORE * float(p["log_scale"].exp().mean()),
    "learned_shared": lambda p: SCORE * float(p["log_scale"].exp().mean()),
    "cosine": lambda p: COSINE * float(p["log_scale"].exp().clamp_max(100).mean()),
    "qknorm": lambda p: COSINE * float(p["gain"].mean()),
    "cosine_fixed": lambda p: COSINE * 10,
    "qk_layernorm": lambda p: COSINE * D_K / math.sqrt(D_K - 1) * rms_of(p["q_gain"], p["k_gain"]),
    "qk_rmsnorm": lambda p: COSINE * math.sqrt(D_K) * rms_of(p["q_gain"], p["k_gain"]),
    "ngpt": lambda p: COSINE * math.sqrt(D_K) * D_MODEL * rms_of(p["scale"], p["scale"]),
    "softcap": lambda p: capped(SCORE / math.sqrt(D_K), 1.5),
    "score_layernorm": lambda p: 1.07 * float(p["gain"].mean()),
    "score_batchnorm": lambda p: 0.83 * float(p["gain"].mean()),
    "nap": lambda p: SCORE,
    "log_n": lambda p: 2.3 * SCORE / math.sqrt(D_K),
    "log_n_base": lambda p: 2.3 / math.log(14) * SCORE / math.sqrt(D_K),
    "ssmax": lambda p: 2.3 * float(p["gain"].mean()) * SCORE / math.sqrt(D_K),
}


@pytest.mark.parametrize("name", SCALES)
def test_the_prediction_is_its_formula(name: str) -> None:
    scale = moved_scale(name, cap=1.5)
    wanted = PREDICTED[name]({n: p.detach() for n, p in scale.named_parameters()})
    assert scale.predicted_std(MOMENTS) == pytest.approx(wanted, rel=1e-9)


def test_a_number_predicts_as_what_it_multiplies() -> None:
    assert new_scale(0.37).predicted_std(MOMENTS) == pytest.approx(0.37 * SCORE, rel=1e-12)


def test_the_registry_names_its_modes() -> None:
    assert set(PREDICTED) == set(SCALES)
    assert len(SCALES) == len(set(SCALES.values()))
    assert len({D_K, D_V, KEY, QUERY, HEADS, BATCH, D_MODEL}) == 7
