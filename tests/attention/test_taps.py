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
from attnscale.model.autoencoder import AttentionAutoencoder
from attnscale.model.layers import AttentionSettings

BATCH, HEADS, KEY, D_K, D_V, D_MODEL = 2, 3, 7, 11, 13, 17
PATHS = ["layers.0.attention", "layers.1.attention"]
MODE_AND_BACKEND: list[tuple[str | float, str]] = [
    *(
        (scale, backend)
        for scale in ("sqrt", "none", "inverse", "learned", 0.37)
        for backend in ("explicit", "fused")
    ),
    ("softcap", "explicit"),
]
every_mode = pytest.mark.parametrize(("scale", "backend"), MODE_AND_BACKEND)


def build(
    scale: str | float = "sqrt", backend: str = "auto", dropout: float = 0.0
) -> AttentionAutoencoder:
    options = {"cap": 1.5} if scale == "softcap" else {}
    return AttentionAutoencoder(
        attention=AttentionSettings(scale=scale, backend=backend, options=options),
        d_model=D_MODEL,
        d_k=D_K,
        d_v=D_V,
        n_heads=HEADS,
        n_layers=2,
        residual=True,
        norm="pre",
        feed_forward=19,
        bias=False,
        dropout=dropout,
        init="torch",
    )


@every_mode
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("masked", [False, True])
def test_a_tap_changes_no_bit(
    scale: str | float, backend: str, dropout: float, masked: bool
) -> None:
    model = build(scale, backend, dropout)
    x = torch.randn(BATCH, KEY, D_MODEL, requires_grad=True)
    keep = padding_keep(torch.tensor([KEY, 4]), KEY) if masked else None
    seen: list[Tensor] = []

    def receive(path: str, attended: Attended) -> None:
        seen.extend((attended.logits(), attended.weights()))

    def run() -> tuple[Tensor, ...]:
        torch.manual_seed(1)
        out = model(x, keep)
        gradients = torch.autograd.grad(out.square().sum(), (x, *model.parameters()))
        return (out, *gradients, torch.rand(1))

    plain = run()
    with tapped(model, receive):
        watched = run()
    assert len(seen) == 4
    for a, b in zip(plain, watched, strict=True):
        assert torch.equal(a, b)


@every_mode
def test_a_tap_sees_the_logits_and_weights(scale: str | float, backend: str) -> None:
    attention = build(scale, backend).layers[0].attention
    assert isinstance(attention, MultiHeadAttention)
    x = torch.randn(BATCH, KEY, D_MODEL)
    keep = padding_keep(torch.tensor([KEY, 0]), KEY)
    seen: list[Attended] = []
    attention.tap = seen.append
    attention(x, keep=keep, causal=True)

    q, k = (layer(x).reshape(BATCH, KEY, HEADS, D_K) for layer in (attention.q, attention.k))
    scores = torch.einsum("bihd,bjhd->bhij", q, k)
    if scale == "softcap":
        logits = 1.5 * torch.tanh(scores / (1.5 * math.sqrt(D_K)))
    elif isinstance(scale, str):
        powers = {"sqrt": -0.5, "none": 0.0, "inverse": -1.0, "learned": -0.5}
        logits = scores * D_K ** powers[scale]
    else:
        logits = scores * scale
    kept = keep & causal_keep(KEY, KEY)
    weights = logits.masked_fill(~kept, -math.inf).softmax(dim=-1).nan_to_num(0.0)

    (attended,) = seen
    assert attended.mode is attention.mode
    assert attended.keep is not None
    assert torch.equal(attended.keep, kept)
    torch.testing.assert_close(attended.logits(), logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(attended.weights(), weights, rtol=1e-4, atol=1e-6)
    assert attended.weights()[1].abs().max() == 0


@every_mode
def test_a_tap_sees_the_weights_before_dropout(scale: str | float, backend: str) -> None:
    attention = build(scale, backend, dropout=0.9).layers[0].attention
    assert isinstance(attention, MultiHeadAttention)
    seen: list[Attended] = []
    attention.tap = seen.append
    x = torch.randn(BATCH, KEY, D_MODEL)
    attention.train()
    attention(x)
    attention.eval()
    attention(x)
    training, evaluation = (attended.weights() for attended in seen)
    assert torch.equal(training, evaluation)
    assert training.min() > 0
    torch.testing.assert_close(training.sum(dim=-1), torch.ones(BATCH, HEADS, KEY))


@every_mode
def test_what_a_tap_sees_is_detached(scale: str | float, backend: str) -> None:
    model = build(scale, backend)
    seen: list[Attended] = []
    with tapped(model, lambda _, attended: seen.append(attended)):
        model(torch.randn(BATCH, KEY, D_MODEL, requires_grad=True))
    for attended in seen:
        tensors = [attended.q, attended.k, attended.logits(), attended.weights()]
        tensors += [value for value in attended.values.values() if isinstance(value, Tensor)]
        assert not any(tensor.requires_grad for tensor in tensors)
        assert set(attended.values) == {"learned": {"log_scale"}, "softcap": {"cap"}}.get(
            str(scale), set()
        )


def test_half_precision_is_tapped_in_fp32() -> None:
    model = build().bfloat16()
    seen: list[Attended] = []
    with tapped(model, lambda _, attended: seen.append(attended)):
        model(torch.randn(BATCH, KEY, D_MODEL, dtype=torch.bfloat16))
    assert {attended.logits().dtype for attended in seen} == {torch.float32}
    assert {attended.weights().dtype for attended in seen} == {torch.float32}


def test_each_attention_is_seen_once_under_its_path() -> None:
    model = build()
    named = [name for name, m in model.named_modules() if isinstance(m, MultiHeadAttention)]
    assert named == PATHS
    assert list(attentions(model)) == PATHS
    assert all(attentions(model)[path] is model.get_submodule(path) for path in PATHS)
    seen: list[tuple[str, Attended]] = []
    with tapped(model, lambda path, attended: seen.append((path, attended))):
        model(torch.randn(BATCH, KEY, D_MODEL))
    assert [path for path, _ in seen] == PATHS
    assert not torch.equal(seen[0][1].q, seen[1][1].q)


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


def test_refuses_to_tap_twice_and_keeps_the_first() -> None:
    model = build()
    paths: list[str] = []
    with tapped(model, lambda path, _: paths.append(path)):
        with (
            pytest.raises(
                ValueError, match=r"^already tapped: layers\.0\.attention, layers\.1\.attention$"
            ),
            tapped(model, lambda path, _: paths.append("second")),
        ):
            pytest.fail("the context was entered")
        model(torch.randn(BATCH, KEY, D_MODEL))
    assert paths == PATHS


def test_refuses_where_one_attention_is_tapped_and_touches_none() -> None:
    model = build()
    attentions(model)[PATHS[1]].tap = print
    with (
        pytest.raises(ValueError, match=r"^already tapped: layers\.1\.attention$"),
        tapped(model, lambda *_: None),
    ):
        pytest.fail("the context was entered")
    assert attentions(model)[PATHS[0]].tap is None
    assert attentions(model)[PATHS[1]].tap is print


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
