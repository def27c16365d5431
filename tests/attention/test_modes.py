"""What holds for every scale mode: a new record is covered by being in the registry."""

import math

import pytest
import torch
from torch import Tensor

from attnscale.attention import (
    SCALE_MODES,
    Moments,
    attend,
    causal_keep,
    padding_keep,
    resolve_scale,
)
from attnscale.attention.core import normalise
from tests.attention.conftest import (
    BATCH,
    D_K,
    D_V,
    FUSIBLE,
    HEADS,
    KEY,
    MASKS,
    QUERY,
    SCALES,
    SOFTMAX,
    Numbers,
    assert_same,
    draw,
    every_mode,
    mask,
    moved_values,
    parameters_of,
    seen_by_tap,
    values_of,
)

every = pytest.mark.parametrize("scale", SCALES)
both = pytest.mark.parametrize("training", [True, False])


def total_weight(scale: str | float) -> float:
    """Return what the weights of a row sum to before training."""
    return 1.0 if scale in SOFTMAX else 0.0


# --- finite ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@every_mode
def test_finite_whatever_the_scores(scale: str | float, backend: str, dtype: torch.dtype) -> None:
    # (d_k, largest score): around ±30, and unscaled scores of 1024 components.
    for d_k, largest, training in ((D_K, 30.0, True), (1024, 130.0, True), (D_K, 30.0, False)):
        if not (training or resolve_scale(scale).buffers):
            continue
        values = values_of(scale, d_k=d_k, training=training)
        learned = parameters_of(scale, values, d_k).values()
        for kind in ("none", "padding+causal", "rows with no key"):
            q, k, v = (x.detach() for x in draw(d_k, torch.float32))
            q *= largest / (q @ k.mT).abs().max()
            leaves = (*(x.to(dtype).requires_grad_() for x in (q, k, v)), *learned)
            keep, causal = mask(kind)
            out = attend(
                *leaves[:3], scale=scale, values=values, keep=keep, causal=causal, backend=backend
            )
            assert out.dtype == dtype
            gradients = torch.autograd.grad(out.float().square().sum(), leaves)
            for made in (out, *gradients):
                assert made.isfinite().all(), (kind, d_k, made)


@every
def test_finite_where_fp16_cannot_hold_the_scores(scale: str | float) -> None:
    q, k, v = draw(1024, torch.float32)
    halves = [(x * factor).detach().half() for x, factor in ((q, 40), (k, 40), (v, 1))]
    assert float((halves[0].float() @ halves[1].float().mT).abs().max()) > 65504
    leaves = [x.requires_grad_() for x in halves]
    values = values_of(scale, d_k=1024)
    out = attend(*leaves, scale=scale, values=values, keep=mask("padding")[0], backend="explicit")
    for made in (out, *torch.autograd.grad(out.float().square().sum(), leaves)):
        assert made.isfinite().all()


@every
def test_vectors_of_zeros_are_finite(scale: str | float) -> None:
    q, k, v = draw(dtype=torch.float32)
    with torch.no_grad():
        q[0, 0], k[0, 0], k[1, :, 2] = 0.0, 0.0, 0.0
    values = values_of(scale)
    leaves = (q, k, v, *parameters_of(scale, values).values())
    with torch.autograd.set_detect_anomaly(True):
        out = attend(q, k, v, scale=scale, values=values)
        gradients = torch.autograd.grad(out.square().sum(), leaves)
    assert all(made.isfinite().all() for made in (out, *gradients))
    # Where all scores are equal, so are the weights.
    uniform = v[0, 0].mean(dim=0) if scale in SOFTMAX else torch.zeros(D_V)
    torch.testing.assert_close(out[0, 0], uniform.expand(QUERY, D_V))


# --- gradients ---


@both
@every_mode
def test_gradients_reach_everything(scale: str | float, backend: str, training: bool) -> None:
    q, k, v = draw()
    values = moved_values(scale, training=training)
    leaves = {"q": q, "k": k, "v": v, **parameters_of(scale, values)}
    out = attend(q, k, v, scale=scale, values=values, backend=backend)
    cotangent = torch.randn_like(out)
    gradients = torch.autograd.grad(out, list(leaves.values()), cotangent)
    for name, gradient in zip(leaves, gradients, strict=True):
        assert bool((gradient.abs() > 1e-9).all()), name


@both
@every
def test_gradients_are_those_of_finite_differences(scale: str | float, training: bool) -> None:
    q, k, v = draw(3, n_queries=2, n_keys=3)
    values = values_of(scale, d_k=3, training=training, dtype=torch.float64)
    learned = parameters_of(scale, values, 3)
    keep = torch.rand(BATCH, HEADS, 2, 3) < 0.7
    keep[..., 0] = True

    def run(*leaves: Tensor) -> Tensor:
        named: Numbers = {**values, **dict(zip(learned, leaves[3:], strict=True))}
        return attend(*leaves[:3], scale=scale, values=named, keep=keep, backend="explicit")

    # Rows of two nearly equal scores turn quickly where a row is divided by its deviation.
    inputs = (q, k, v, *learned.values())
    assert torch.autograd.gradcheck(run, inputs, atol=1e-4, rtol=1e-3, fast_mode=True)


# --- what must not matter ---


@every
def test_a_constant_of_a_row_changes_no_weight(scale: str | float) -> None:
    q, k, _ = draw()
    values = moved_values(scale)
    for kind in ("none", "padding", "random", "rows with no key"):
        keep, _ = mask(kind)
        attended = seen_by_tap(q, k, scale, values, keep)
        logits, mode = attended.logits(), attended.mode
        constant = 50 * torch.randn(BATCH, HEADS, QUERY, 1, dtype=logits.dtype)
        weights = normalise(logits, keep, mode, attended.values)
        torch.testing.assert_close(weights, attended.weights())
        torch.testing.assert_close(
            normalise(logits + constant, keep, mode, attended.values),
            weights,
            rtol=1e-9,
            atol=1e-12,
        )
        sloped = logits + torch.arange(KEY)
        assert not torch.allclose(normalise(sloped, keep, mode, attended.values), weights)


@both
@every_mode
def test_permuted_keys_permute_the_weights(
    scale: str | float, backend: str, training: bool
) -> None:
    q, k, v = draw()
    values = moved_values(scale, training=training)
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
        weights = seen_by_tap(q, k, scale, values, keep).weights()
        torch.testing.assert_close(
            seen_by_tap(q, k[:, :, order], scale, values, moved).weights(),
            weights[..., order],
            rtol=1e-9,
            atol=1e-11,
        )
        torch.testing.assert_close(
            attend(
                q,
                k[:, :, order],
                v[:, :, order],
                scale=scale,
                values=frozen(values),
                keep=moved,
                backend=backend,
            ),
            attend(q, k, v, scale=scale, values=frozen(values), keep=keep, backend=backend),
            rtol=1e-9,
            atol=1e-11,
        )


def frozen(values: Numbers) -> Numbers:
    """Return values whose buffers may be updated without a trace."""
    return {
        n: x.clone() if isinstance(x, Tensor) and not x.requires_grad else x
        for n, x in values.items()
    }


@both
@every_mode
def test_masked_equals_cut(scale: str | float, backend: str, training: bool) -> None:
    q, k, v = draw()
    values = moved_values(scale, training=training)
    hidden = torch.tensor([1, 4, 5])
    kept = torch.tensor([0, 2, 3, 6])
    with torch.no_grad():
        k[:, :, hidden] *= 1e3
        v[:, :, hidden] *= 1e3
    padding = torch.ones(1, 1, 1, KEY, dtype=torch.bool)
    padding[..., hidden] = False
    leaves = (q, k, v, *parameters_of(scale, values).values())
    for keep in (padding, padding & causal_keep(QUERY, KEY)):
        made, cut = frozen(values), frozen(values)
        assert_same(
            attend(q, k, v, scale=scale, values=made, keep=keep, backend=backend),
            attend(
                q,
                k[:, :, kept],
                v[:, :, kept],
                scale=scale,
                values=cut,
                keep=keep[..., kept],
                backend=backend,
            ),
            leaves,
        )
        for name, value in made.items():  # the running statistics too
            torch.testing.assert_close(value, cut[name], rtol=1e-9, atol=1e-11)
        (for_k,) = torch.autograd.grad(
            attend(q, k, v, scale=scale, values=made, keep=keep, backend=backend).sum(), k
        )
        assert for_k[:, :, hidden].abs().max() == 0


@every_mode
def test_a_step_of_decoding_equals_its_causal_row(scale: str | float, backend: str) -> None:
    q, k, v = draw(n_queries=KEY)
    values = moved_values(scale, training=False)
    at_once = attend(q, k, v, scale=scale, values=values, causal=True, backend=backend)
    for i in range(KEY):
        for causal in (False, True):
            step = attend(
                q[:, :, i : i + 1],
                k[:, :, : i + 1],
                v[:, :, : i + 1],
                scale=scale,
                values=values,
                causal=causal,
                backend=backend,
            )
            torch.testing.assert_close(step[:, :, 0], at_once[:, :, i], rtol=1e-9, atol=1e-11)


# --- rows of one key, and of none ---


@both
@every_mode
def test_a_row_of_one_key_gets_its_value(scale: str | float, backend: str, training: bool) -> None:
    values = values_of(scale, training=training, dtype=torch.float64)
    learned = parameters_of(scale, values)
    one = torch.zeros(KEY, dtype=torch.bool)
    one[4] = True
    for n_keys, keep in ((1, None), (KEY, one)):
        q, k, v = draw(n_keys=n_keys)
        position = 0 if keep is None else 4
        with torch.autograd.set_detect_anomaly(True):
            out = attend(q, k, v, scale=scale, values=values, keep=keep, backend=backend)
            gradients = torch.autograd.grad(out.square().sum(), (q, k, v, *learned.values()))
        wanted = total_weight(scale) * v[:, :, position : position + 1]
        torch.testing.assert_close(out, wanted.expand_as(out), rtol=1e-12, atol=1e-12)
        assert all(gradient.isfinite().all() for gradient in gradients)
        torch.testing.assert_close(gradients[0], torch.zeros_like(q), rtol=0, atol=1e-12)


@both
@every_mode
def test_without_any_key_all_is_zero(scale: str | float, backend: str, training: bool) -> None:
    q, k, v = draw()
    values = values_of(scale, training=training, dtype=torch.float64)
    learned = parameters_of(scale, values)
    keep = torch.zeros(KEY, dtype=torch.bool)
    with torch.autograd.set_detect_anomaly(True):
        out = attend(q, k, v, scale=scale, values=values, keep=keep, backend=backend)
        gradients = torch.autograd.grad(out.sum(), (q, k, v, *learned.values()), allow_unused=True)
    assert out.abs().max() == 0
    assert all(made is None or made.abs().max() == 0 for made in gradients)
    assert seen_by_tap(q, k, scale, values, keep).weights().abs().max() == 0
    for value in values.values():
        assert not isinstance(value, Tensor) or value.isfinite().all()


# --- backends ---


@pytest.mark.parametrize("scale", FUSIBLE)
def test_fused_equals_explicit(scale: str | float) -> None:
    values = moved_values(scale)
    learned = parameters_of(scale, values).values()
    for kind in MASKS:
        q, k, v = draw()
        keep, causal = mask(kind)
        fused, explicit = (
            attend(q, k, v, scale=scale, values=values, keep=keep, causal=causal, backend=backend)
            for backend in ("fused", "explicit")
        )
        assert_same(fused, explicit, (q, k, v, *learned))


# --- the prediction that a record makes ---


@pytest.mark.parametrize(("q_rms", "k_rms"), [(1.0, 1.0), (0.6, 1.7)])
@every
def test_the_deviation_of_untrained_logits(scale: str | float, q_rms: float, k_rms: float) -> None:
    batch, queries, n, d_k = 11, 31, 29, 67
    q, k = (
        q_rms * torch.randn(batch, HEADS, queries, d_k),
        k_rms * torch.randn(batch, HEADS, n, d_k),
    )
    values = values_of(scale, d_k=d_k)
    attended = seen_by_tap(q, k, scale, values)
    moments = Moments(
        d_k=d_k, q_rms=q_rms, k_rms=k_rms, log_n=math.log(n), shrink=math.sqrt(n / (n - 1))
    )
    found = float(attended.logits().var(dim=-1).mean().sqrt())
    wanted = attended.mode.deviation(moments, attended.values)
    # Of each of the batch × heads groups of scores, those with a key (or query) in common covary.
    groups = batch * HEADS
    relative = 0.5 * math.sqrt((2 + 2 * (n + queries) * 2 / d_k) / (groups * n * queries))
    assert abs(found / wanted - 1) < 5 * relative, f"{found}, predicted {wanted}, ± {5 * relative}"


def test_the_registry_names_its_records() -> None:
    assert len(SCALE_MODES) == len({id(mode) for mode in SCALE_MODES.values()})
    assert all(mode.name == name for name, mode in SCALE_MODES.items())
    assert D_K not in {D_V, KEY, QUERY, HEADS, BATCH}
