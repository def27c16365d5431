import math

import pytest
import torch
from torch import Tensor, nn

from attnscale.attention import (
    Attended,
    MultiHeadAttention,
    attentions,
    causal_keep,
    padding_keep,
    tapped,
)
from attnscale.attention.scale import ScoreBatchNorm
from attnscale.model.autoencoder import AttentionAutoencoder
from tests.support.models import autoencoder
from tests.support.modes import (
    BATCH,
    BUFFERED,
    D_K,
    D_MODEL,
    D_V,
    HEADS,
    KEY,
    Mode,
    after_heads,
    factor_of,
    factory_of,
    representative_and_backend,
    representative_state_and_backend,
    total_weight,
)

PATHS = ["layers.0.attention", "layers.1.attention"]
CAP = 1.5


def build(mode: Mode = "sqrt", backend: str = "auto", dropout: float = 0.0) -> AttentionAutoencoder:
    sizes = {"d_model": D_MODEL, "d_k": D_K, "d_v": D_V, "n_heads": HEADS, "n_layers": 2}
    return autoencoder(
        factory_of(mode, cap=CAP),
        backend=backend,
        dropout=dropout,
        residual=True,
        norm="pre",
        feed_forward=19,
        **sizes,
    )


def first_attention(mode: Mode, backend: str = "auto", dropout: float = 0.0) -> MultiHeadAttention:
    attention = build(mode, backend, dropout).layers[0].attention
    assert isinstance(attention, MultiHeadAttention)
    return attention


@representative_and_backend
@pytest.mark.parametrize(("dropout", "masked"), [(0.0, False), (0.4, True)])
def test_a_tap_changes_no_bit(mode: Mode, backend: str, dropout: float, masked: bool) -> None:
    model = first_attention(mode, backend, dropout)
    x = torch.randn(BATCH, KEY, D_MODEL, requires_grad=True)
    keep = padding_keep(torch.tensor([KEY, 4]), KEY) if masked else None
    received: list[Tensor] = []

    initial = {name: value.clone() for name, value in model.state_dict().items()}

    def receive(path: str, attended: Attended) -> None:
        received.extend((attended.scores(), attended.logits(), attended.weights()))

    def run() -> tuple[Tensor, ...]:
        model.load_state_dict(initial)
        torch.manual_seed(1)
        out = model(x, keep=keep)
        gradients = torch.autograd.grad(out.square().sum(), (x, *model.parameters()))
        kept = (buffer.clone() for buffer in model.buffers())
        return (out, *gradients, torch.rand(1), *kept)

    plain = run()
    with tapped(model, receive):
        watched = run()
    assert len(received) == 3
    for a, b in zip(plain, watched, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("mode", "backend"),
    [
        ("sqrt", "explicit"),
        ("sqrt", "fused"),
        ("learned", "explicit"),
        ("learned", "fused"),
        ("softcap", "explicit"),
    ],
)
def test_a_tap_sees_the_logits_and_weights(mode: Mode, backend: str) -> None:
    attention = first_attention(mode, backend)
    x = torch.randn(BATCH, KEY, D_MODEL)
    keep = padding_keep(torch.tensor([KEY, 0]), KEY)
    received: list[Attended] = []
    attention.tap = received.append
    attention(x, keep=keep, causal=True)

    q, k = (layer(x).reshape(BATCH, KEY, HEADS, D_K) for layer in (attention.q, attention.k))
    scores = torch.einsum("bihd,bjhd->bhij", q, k)
    if mode == "softcap":
        logits = CAP * torch.tanh(scores / (CAP * math.sqrt(D_K)))
    else:
        logits = scores * factor_of(mode)
    kept = keep & causal_keep(KEY, KEY)
    weights = logits.masked_fill(~kept, -math.inf).softmax(dim=-1).nan_to_num(0.0)

    (attended,) = received
    assert attended.scale is attention.scale
    assert (attended.explicit_logits is None) == (backend == "fused")
    assert (attended.explicit_weights is None) == (backend == "fused")
    assert attended.keep is not None
    assert torch.equal(attended.keep, kept)
    torch.testing.assert_close(attended.logits(), logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(attended.weights(), weights, rtol=1e-4, atol=1e-6)
    assert attended.weights()[1].abs().max() == 0


@representative_state_and_backend
def test_a_tap_sees_what_made_the_output(mode: Mode, backend: str, training: bool) -> None:
    attention = first_attention(mode, backend).train(training)
    query, source = torch.randn(BATCH, 5, D_MODEL), torch.randn(BATCH, KEY, D_MODEL)
    keep = padding_keep(torch.tensor([KEY, 4]), KEY)
    received: list[Attended] = []
    attention.tap = received.append
    out = attention(query, source, keep=keep)
    (attended,) = received
    q, k, v = (
        layer(x).unflatten(-1, (HEADS, -1)).transpose(1, 2).detach()
        for layer, x in ((attention.q, query), (attention.k, source), (attention.v, source))
    )
    assert torch.equal(attended.raw_q, q)
    assert torch.equal(attended.raw_k, k)
    assert attended.x is not None
    assert torch.equal(attended.x, source)
    torch.testing.assert_close(attended.scores(), torch.einsum("bhid,bhjd->bhij", q, k))
    rebuilt = after_heads(attention, (attended.weights() @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(rebuilt, out, rtol=1e-4, atol=1e-5)


@representative_and_backend
def test_a_tap_sees_the_weights_before_dropout(mode: Mode, backend: str) -> None:
    attention = first_attention(mode, backend, dropout=0.9)
    received: list[Attended] = []
    attention.tap = received.append
    x = torch.randn(BATCH, KEY, D_MODEL)
    attention.train()
    attention(x)
    attention(x)
    if mode not in BUFFERED:
        attention.eval()
        attention(x)
    first, *others = (attended.weights() for attended in received)
    assert all(torch.equal(first, other) for other in others)
    assert bool((first != 0).all())
    wanted = torch.full((BATCH, HEADS, KEY), total_weight(mode))
    torch.testing.assert_close(first.sum(dim=-1), wanted, rtol=0, atol=1e-5)


@representative_and_backend
def test_what_a_tap_sees_is_detached(mode: Mode, backend: str) -> None:
    model = build(mode, backend)
    received: list[Attended] = []
    with tapped(model, lambda _, attended: received.append(attended)):
        model(torch.randn(BATCH, KEY, D_MODEL, requires_grad=True))
    assert len(received) == 2
    for attended in received:
        assert attended.x is not None
        tensors = [attended.q, attended.k, attended.raw_q, attended.raw_k, attended.x]
        tensors += [attended.scores(), attended.logits(), attended.weights()]
        assert not any(tensor.requires_grad for tensor in tensors)
        explicit = [attended.explicit_logits, attended.explicit_weights]
        assert not any(tensor.requires_grad for tensor in explicit if tensor is not None)


def test_half_precision_is_tapped_in_fp32() -> None:
    model = build().bfloat16()
    received: list[Attended] = []
    with tapped(model, lambda _, attended: received.append(attended)):
        model(torch.randn(BATCH, KEY, D_MODEL, dtype=torch.bfloat16))
    assert {attended.logits().dtype for attended in received} == {torch.float32}
    assert {attended.weights().dtype for attended in received} == {torch.float32}


def test_each_attention_is_seen_once_under_its_path() -> None:
    model = build()
    named = [name for name, m in model.named_modules() if isinstance(m, MultiHeadAttention)]
    assert named == PATHS
    assert list(attentions(model)) == PATHS
    assert all(attentions(model)[path] is model.get_submodule(path) for path in PATHS)
    received: list[tuple[str, Attended]] = []
    with tapped(model, lambda path, attended: received.append((path, attended))):
        model(torch.randn(BATCH, KEY, D_MODEL))
    assert [path for path, _ in received] == PATHS
    assert not torch.equal(received[0][1].q, received[1][1].q)


def test_an_attention_by_itself_has_the_empty_path() -> None:
    attention = build().layers[0].attention
    assert isinstance(attention, MultiHeadAttention)
    paths: list[str] = []
    with tapped(attention, lambda path, _: paths.append(path)):
        attention(torch.randn(BATCH, KEY, D_MODEL))
    assert paths == [""]


def test_refuses_a_model_without_attention() -> None:
    with (
        pytest.raises(ValueError, match="no MultiHeadAttention to tap"),
        tapped(nn.Linear(2, 2), print),
    ):
        pytest.fail("the context was entered")


def test_contexts_may_be_nested_and_each_receives_all() -> None:
    model = build()
    x = torch.randn(BATCH, KEY, D_MODEL)
    outer: list[tuple[str, Attended]] = []
    inner: list[tuple[str, Attended]] = []
    with tapped(model, lambda path, attended: outer.append((path, attended))):
        with tapped(model, lambda path, attended: inner.append((path, attended))):
            model(x)
        assert [path for path, _ in outer] == PATHS
        assert [path for path, _ in inner] == PATHS
        assert all(a is b for (_, a), (_, b) in zip(outer, inner, strict=True))
        model(x)
    model(x)
    assert [path for path, _ in outer] == PATHS * 2
    assert [path for path, _ in inner] == PATHS
    assert all(module.tap is None for module in attentions(model).values())


def test_a_tap_set_by_hand_is_called_too_and_put_back() -> None:
    model = build()
    by_hand: list[Attended] = []
    receive = by_hand.append
    attentions(model)[PATHS[1]].tap = receive
    paths: list[str] = []
    with tapped(model, lambda path, _: paths.append(path)):
        model(torch.randn(BATCH, KEY, D_MODEL))
    assert paths == PATHS
    assert len(by_hand) == 1
    assert attentions(model)[PATHS[0]].tap is None
    assert attentions(model)[PATHS[1]].tap is receive


def test_a_nested_context_that_fails_leaves_the_outer_one() -> None:
    model = build()
    x = torch.randn(BATCH, KEY, D_MODEL)
    paths: list[str] = []

    def fail(path: str, attended: Attended) -> None:
        raise RuntimeError(path)

    with tapped(model, lambda path, _: paths.append(path)):
        with pytest.raises(RuntimeError, match=PATHS[0]), tapped(model, fail):
            model(x)
        assert paths == PATHS[:1]
        model(x)
    assert paths == PATHS[:1] + PATHS
    assert all(module.tap is None for module in attentions(model).values())


def test_what_a_tap_recomputes_updates_no_buffer() -> None:
    attention = first_attention("score_batchnorm")
    scale = attention.scale
    assert isinstance(scale, ScoreBatchNorm)
    x, keep = torch.randn(BATCH, KEY, D_MODEL), padding_keep(torch.tensor([KEY, 4]), KEY)
    attention(x, keep=keep)
    without_tap = [buffer.clone() for buffer in attention.buffers()]
    scale.running_mean.zero_()
    scale.running_variance.fill_(1.0)
    scores: list[Tensor] = []

    def receive(attended: Attended) -> None:
        for _ in range(3):
            scores.append(attended.scores())
            attended.logits()
            attended.weights()

    attention.tap = receive
    attention(x, keep=keep)
    assert all(torch.equal(a, b) for a, b in zip(attention.buffers(), without_tap, strict=True))
    # One update, with the momentum 0.1.
    for head in range(HEADS):
        kept = scores[0][:, head][keep[:, 0].expand(BATCH, KEY, KEY)]
        torch.testing.assert_close(scale.running_mean[head], 0.1 * kept.mean())
        torch.testing.assert_close(scale.running_variance[head], 0.9 + 0.1 * kept.var())


def test_a_tap_that_asks_later_updates_no_buffer() -> None:
    attention = first_attention("score_batchnorm")
    received: list[Attended] = []
    attention.tap = received.append
    attention(torch.randn(BATCH, KEY, D_MODEL))
    after = [buffer.clone() for buffer in attention.buffers()]
    fresh = first_attention("score_batchnorm").buffers()
    assert not any(torch.equal(a, b) for a, b in zip(after, fresh, strict=True))
    for _ in range(3):
        received[0].scores(), received[0].logits(), received[0].weights()
    assert all(torch.equal(a, b) for a, b in zip(after, attention.buffers(), strict=True))


def test_taps_are_gone_after_the_context() -> None:
    model = build()
    paths: list[str] = []
    with tapped(model, lambda path, _: paths.append(path)):
        assert all(module.tap is not None for module in attentions(model).values())
    assert all(module.tap is None for module in attentions(model).values())
    model(torch.randn(BATCH, KEY, D_MODEL))
    assert paths == []


def test_taps_are_gone_after_an_exception() -> None:
    model = build()

    def receive(path: str, attended: Attended) -> None:
        raise RuntimeError(path)

    with pytest.raises(RuntimeError, match=r"^layers\.0\.attention$"), tapped(model, receive):
        model(torch.randn(BATCH, KEY, D_MODEL))
    assert all(module.tap is None for module in attentions(model).values())
    with tapped(model, lambda *_: None):
        model(torch.randn(BATCH, KEY, D_MODEL))
