import pytest
import torch
from torch import Tensor
from torch.nn import functional

from attnscale.attention import KeyValueCache, attend, causal_keep, padding_keep
from tests.support.modes import (
    BATCH,
    BUFFERED,
    D_K,
    D_MODEL,
    D_V,
    HEADS,
    KEY,
    NO_SOFTMAX,
    QUERY,
    REPRESENTATIVE_AND_BACKEND,
    Mode,
    build,
    draw,
    every_mode_and_backend,
    new_scale,
    representative_and_backend,
    total_weight,
)

LENGTH = 4


def draw32() -> tuple[Tensor, Tensor, Tensor]:
    return draw(dtype=torch.float32)


def test_padding_keeps_the_first_keys() -> None:
    keep = padding_keep(torch.tensor([3, 0, 5, 1]), 5)
    assert keep.shape == (4, 1, 1, 5)
    assert keep[:, 0, 0].tolist() == [
        [True, True, True, False, False],
        [False] * 5,
        [True] * 5,
        [True, False, False, False, False],
    ]


@pytest.mark.parametrize(
    ("n_queries", "n_keys", "kept"),
    [
        (3, 3, [[1, 0, 0], [1, 1, 0], [1, 1, 1]]),
        (2, 5, [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]),
        (1, 4, [[1, 1, 1, 1]]),
        (4, 2, [[0, 0], [0, 0], [1, 0], [1, 1]]),
    ],
)
def test_causal_is_anchored_at_the_end(n_queries: int, n_keys: int, kept: list[list[int]]) -> None:
    assert causal_keep(n_queries, n_keys).int().tolist() == kept


@representative_and_backend
def test_one_query_sees_all_keys(mode: Mode, backend: str) -> None:
    q, k, v = draw32()
    scale = new_scale(mode).eval()

    def run(n_queries: int, causal: bool) -> Tensor:
        last = q[:, :, -n_queries:]
        return attend(last, k, v, scale=scale, causal=causal, backend=backend)

    torch.testing.assert_close(run(1, causal=True), run(1, causal=False))
    torch.testing.assert_close(run(2, causal=True)[:, :, 1], run(2, causal=False)[:, :, 1])
    assert not torch.allclose(run(2, causal=True)[:, :, 0], run(2, causal=False)[:, :, 0])


@representative_and_backend
def test_decoding_step_by_step_equals_all_at_once(mode: Mode, backend: str) -> None:
    attention = build(mode, backend=backend).eval()
    x = torch.randn(BATCH, KEY, D_MODEL)
    at_once = attention(x, causal=True)
    cache = KeyValueCache()
    for t in range(KEY):
        step = attention(x[:, t : t + 1], x[:, : t + 1], causal=True)
        torch.testing.assert_close(step[:, 0], at_once[:, t], rtol=1e-4, atol=1e-5)
        cached = attention(x[:, t : t + 1], causal=True, cache=cache)
        torch.testing.assert_close(cached[:, 0], at_once[:, t], rtol=1e-4, atol=1e-5)


@representative_and_backend
def test_nothing_leaks_from_the_future(mode: Mode, backend: str) -> None:
    attention = build(mode, backend=backend).eval()
    # The first row has one key; the normaliser that is no softmax gives it the weight 0.
    blind = int(mode in NO_SOFTMAX)
    x = torch.randn(BATCH, KEY, D_MODEL, requires_grad=True)
    out = attention(x, causal=True)
    for t in range(KEY - 1):
        changed = x.detach().clone()
        changed[:, t + 1] += 10 * torch.randn(BATCH, D_MODEL)
        moved = attention(changed, causal=True)
        assert torch.equal(moved[:, : t + 1], out[:, : t + 1])
        assert bool((moved[:, t + 1 :] != out[:, t + 1 :]).any(dim=-1).all())
        (gradient,) = torch.autograd.grad(out[:, t].square().sum(), x, retain_graph=True)
        assert gradient[:, t + 1 :].abs().max() == 0
        if t >= blind:
            assert bool(gradient[:, : t + 1].abs().amax(dim=-1).gt(0).all())


@representative_and_backend
@pytest.mark.parametrize("causal", [False, True])
def test_nothing_leaks_from_the_padding(mode: Mode, backend: str, causal: bool) -> None:
    attention = build(mode, backend=backend)
    # In training some modes let the sequences of a batch see each other; its padding stays hidden.
    crosses = mode in BUFFERED
    query = torch.randn(BATCH, QUERY, D_MODEL)
    source = torch.randn(BATCH, KEY, D_MODEL, requires_grad=True)
    keep = padding_keep(torch.tensor([KEY, LENGTH]), KEY)
    out = attention(query, source, keep=keep, causal=causal)
    changed = source.detach().clone()
    changed[1, LENGTH:] += 10 * torch.randn(KEY - LENGTH, D_MODEL)
    assert torch.equal(attention(query, changed, keep=keep, causal=causal), out)
    (gradient,) = torch.autograd.grad(out.square().sum(), source)
    assert gradient[1, LENGTH:].abs().max() == 0
    assert bool(gradient[0].abs().amax(dim=-1).gt(0).all())
    assert bool(gradient[1, :LENGTH].abs().amax(dim=-1).gt(0).all())
    for kept in range(LENGTH):
        changed = source.detach().clone()
        changed[1, kept] += torch.randn(D_MODEL)
        moved = attention(query, changed, keep=keep, causal=causal)
        assert torch.equal(moved[0], out[0]) or crosses
        # The last query sees every kept key, whatever else is hidden from the others.
        assert not torch.equal(moved[1, -1], out[1, -1])


def in_states(*arguments: tuple[float | bool, ...]) -> list[tuple[float | bool | str, ...]]:
    """Return each representative case in training with these, and those with buffers without."""
    in_training = [
        (*case, True, *more) for case in REPRESENTATIVE_AND_BACKEND for more in arguments
    ]
    return in_training + [
        (mode, "explicit", False, *more) for mode in BUFFERED for more in arguments
    ]


@pytest.mark.parametrize(("mode", "backend", "training", "dropout"), in_states((0.0,), (0.4,)))
def test_a_row_with_no_key_is_zero(
    mode: Mode, backend: str, training: bool, dropout: float
) -> None:
    scale = new_scale(mode).train(training)
    keep = torch.rand(BATCH, HEADS, QUERY, KEY) < 0.7
    keep[..., 3] = True
    dead = torch.zeros(BATCH, HEADS, QUERY, dtype=torch.bool)
    dead[0, 1, 2] = dead[1, :, 4] = dead[1, 0, :] = True
    q, k, v = draw32()

    def run(mask: Tensor) -> tuple[Tensor, ...]:
        torch.manual_seed(1)
        out = attend(q, k, v, scale=scale, keep=mask, dropout=dropout, backend=backend)
        gradients = torch.autograd.grad(out.square().sum(), (q, k, v))
        return (out, *gradients)

    alive_out, alive_q, alive_k, alive_v = run(keep)
    out, for_q, for_k, for_v = run(keep & ~dead[..., None])
    for tensor in (out, for_q, for_k, for_v):
        assert tensor.isfinite().all()
    assert out[dead].abs().max() == 0
    assert for_q[dead].abs().max() == 0
    assert for_k[1, 0].abs().max() == 0
    assert for_v[1, 0].abs().max() == 0
    if mode in BUFFERED and training:
        return  # statistics of a batch: fewer rows move all others
    assert torch.equal(out[~dead], alive_out[~dead])
    assert torch.equal(for_q[~dead], alive_q[~dead])
    # Head 0 of sequence 1 has no key left at all; heads 0 and 2 of sequence 0 are as they were.
    assert torch.equal(for_k[0, ::2], alive_k[0, ::2])
    assert torch.equal(for_v[0, ::2], alive_v[0, ::2])
    assert not torch.equal(for_v[0, 1], alive_v[0, 1])


@every_mode_and_backend
def test_a_row_with_no_key_makes_no_nan_on_the_way(mode: Mode, backend: str) -> None:
    q, k, v = draw32()
    keep = padding_keep(torch.tensor([KEY, 0]), KEY)
    scale = new_scale(mode)
    # Anomaly detection refuses a NaN in any step backward, also in one that is cut off later.
    with torch.autograd.set_detect_anomaly(True):
        out = attend(q, k, v, scale=scale, keep=keep, backend=backend)
        gradients = torch.autograd.grad(out.square().sum(), (q, k, v, *scale.parameters()))
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("causal", [False, True])
def test_the_kernel_gets_no_row_without_a_key(
    causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, masks = functional.scaled_dot_product_attention, []

    def watched(q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Tensor, **options: float) -> Tensor:
        masks.append(attn_mask)
        return kernel(q, k, v, attn_mask=attn_mask, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(functional, "scaled_dot_product_attention", watched)
    q, k, v = draw32()
    keep = padding_keep(torch.tensor([KEY, 0]), KEY)
    attend(q, k, v, keep=keep, causal=causal, backend="fused")
    (mask,) = masks
    assert bool(mask.any(dim=-1).all())
    assert mask.shape[-2:] == (QUERY, KEY)


@pytest.mark.parametrize(
    ("mode", "backend", "training", "dropout", "causal"),
    [*in_states((0.0, False), (0.4, True)), ("sqrt", "explicit", False, 0.4, True)],
)
def test_a_sequence_of_padding_only_is_zero(
    mode: Mode, backend: str, training: bool, dropout: float, causal: bool
) -> None:
    attention = build(mode, backend=backend, dropout=dropout).double().train(training)
    crosses = mode in BUFFERED and training
    x = torch.randn(BATCH, KEY, D_MODEL, dtype=torch.float64, requires_grad=True)
    leaves = (x, *attention.parameters())

    def run(lengths: list[int], counted: slice) -> tuple[Tensor, ...]:
        torch.manual_seed(1)
        out = attention(x, keep=padding_keep(torch.tensor(lengths), KEY), causal=causal)
        return (out, *torch.autograd.grad(out[counted].square().sum(), leaves))

    out, for_x, *for_parameters = run([LENGTH, 0], slice(None))
    alive_out, alive_x, *alive_parameters = run([LENGTH, KEY], slice(0, 1))
    assert out[1].abs().max() == 0
    assert for_x[1].abs().max() == 0
    if crosses:  # as if the sequence of padding were not in the batch
        x = x[:1].detach().requires_grad_()
        leaves = (x, *attention.parameters())
        alive_out, alive_x, *alive_parameters = run([LENGTH], slice(None))
    assert torch.equal(out[0], alive_out[0]) or (crosses and torch.allclose(out[0], alive_out[0]))
    torch.testing.assert_close(for_x[0], alive_x[0])
    for gradient, alive in zip(for_parameters, alive_parameters, strict=True):
        assert gradient.isfinite().all()
        torch.testing.assert_close(gradient, alive)


@representative_and_backend
def test_a_sequence_of_padding_only_gets_the_output_bias(mode: Mode, backend: str) -> None:
    attention = build(mode, backend=backend, bias=True)
    x = torch.randn(BATCH, KEY, D_MODEL)
    out = attention(x, keep=padding_keep(torch.tensor([KEY, 0]), KEY))
    assert torch.equal(out[1], attention.o.bias.expand(KEY, D_MODEL))


@representative_and_backend
def test_more_causal_queries_than_keys(mode: Mode, backend: str) -> None:
    q = torch.randn(BATCH, HEADS, KEY, D_K, requires_grad=True)
    k = torch.randn(BATCH, HEADS, QUERY, D_K)
    v = torch.randn(BATCH, HEADS, QUERY, D_V)
    out = attend(q, k, v, scale=new_scale(mode), causal=True, backend=backend)
    blind = KEY - QUERY
    assert out[:, :, :blind].abs().max() == 0
    torch.testing.assert_close(out[:, :, blind], total_weight(mode) * v[:, :, 0])
    (gradient,) = torch.autograd.grad(out.square().sum(), q)
    assert gradient.isfinite().all()
    assert gradient[:, :, :blind].abs().max() == 0
