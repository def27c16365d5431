import math
from typing import Any

import pytest
import torch
from jaxtyping import TypeCheckError
from torch import Tensor
from torch.nn import functional

from attnscale.attention import (
    Dropout,
    MultiHeadAttention,
    attentions,
    choose_scale,
)
from attnscale.attention.scale import SoftCap
from attnscale.model.autoencoder import AttentionAutoencoder
from tests.support.models import AnyScale, autoencoder

BATCH, HEADS, POSITION, D_K, D_V, D_MODEL, D_HIDDEN = 2, 3, 7, 11, 13, 17, 19


def build(scale: AnyScale = "sqrt", **changed: Any) -> AttentionAutoencoder:
    return autoencoder(scale, **{"d_model": D_MODEL, "d_k": D_K} | changed)


def inputs(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(BATCH, POSITION, D_MODEL, dtype=dtype)


@pytest.mark.parametrize(("scale", "factor"), [("sqrt", D_K**-0.5), ("none", 1.0), (0.37, 0.37)])
def test_the_default_is_the_textbook_formula(scale: str | float, factor: float) -> None:
    model = build(scale).double()
    x = inputs()
    weights = model.state_dict()
    w_q, w_k, w_v, w_o = (weights[f"layers.0.attention.{name}.weight"].T for name in "qkvo")
    logits = (x @ w_q) @ (x @ w_k).transpose(1, 2) * factor
    wanted = logits.softmax(dim=-1) @ (x @ w_v) @ w_o
    torch.testing.assert_close(model(x), wanted, rtol=1e-9, atol=1e-11)
    assert set(weights) == {f"layers.0.attention.{name}.weight" for name in "qkvo"}


@pytest.mark.parametrize("d_v", [None, D_V])
@pytest.mark.parametrize("n_heads", [1, 3])
@pytest.mark.parametrize("n_layers", [1, 2])
def test_number_of_parameters(n_layers: int, n_heads: int, d_v: int | None) -> None:
    model = build(n_layers=n_layers, n_heads=n_heads, d_v=d_v)
    wanted = n_layers * 2 * D_MODEL * n_heads * (D_K + (D_K if d_v is None else d_v))
    assert sum(p.numel() for p in model.parameters()) == wanted


def test_number_of_parameters_with_everything() -> None:
    model = build(
        "learned",
        n_heads=HEADS,
        d_v=D_V,
        bias=True,
        norm="pre",
        feed_forward=D_HIDDEN,
        residual=True,
    )
    attention = HEADS * (2 * (D_MODEL + 1) * D_K + (D_MODEL + 1) * D_V + D_MODEL * D_V) + D_MODEL
    feed_forward = (D_MODEL + 1) * D_HIDDEN + (D_HIDDEN + 1) * D_MODEL
    wanted = attention + HEADS + feed_forward + 2 * 2 * D_MODEL
    assert sum(p.numel() for p in model.parameters()) == wanted


def test_d_v_of_none_means_d_k() -> None:
    assert [module.d_v for module in attentions(build(d_v=None)).values()] == [D_K]
    assert [module.d_v for module in attentions(build(d_v=D_V)).values()] == [D_V]


@pytest.mark.parametrize(
    ("d_model", "d_k", "d_v", "n_heads", "n_layers"),
    [(1, 1, 1, 1, 1), (17, 11, 13, 3, 2), (3, 64, 1, 5, 1), (7, 1, 9, 8, 3)],
)
def test_any_size_gives_a_reconstruction(
    d_model: int, d_k: int, d_v: int, n_heads: int, n_layers: int
) -> None:
    model = build(d_model=d_model, d_k=d_k, d_v=d_v, n_heads=n_heads, n_layers=n_layers)
    x = torch.randn(BATCH, POSITION, d_model)
    assert model(x).shape == x.shape
    assert len(attentions(model)) == n_layers


@pytest.mark.parametrize("feed_forward", [None, D_HIDDEN])
@pytest.mark.parametrize("norm", ["none", "pre", "post"])
@pytest.mark.parametrize("residual", [False, True])
def test_residual_norm_and_feed_forward(
    residual: bool, norm: str, feed_forward: int | None
) -> None:
    model = build(
        n_layers=2, n_heads=HEADS, residual=residual, norm=norm, feed_forward=feed_forward
    ).double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) / 2)
    weights = model.state_dict()
    x = inputs()
    wanted = x

    def normed(values: Tensor, name: str) -> Tensor:
        weight: Tensor = weights[f"{name}.weight"]
        bias: Tensor = weights[f"{name}.bias"]
        mean = values.mean(dim=-1, keepdim=True)
        variance = (values - mean).square().mean(dim=-1, keepdim=True)
        return (values - mean) / torch.sqrt(variance + 1e-5) * weight + bias

    for i in range(2):
        sublayers = ["attention"] if feed_forward is None else ["attention", "feed_forward"]
        for name in sublayers:
            path = f"layers.{i}.{name}"
            before = normed(wanted, f"{path}_residual.norm") if norm == "pre" else wanted
            if name == "attention":
                update = model.get_submodule(path)(before)
            else:
                inner = before @ weights[f"{path}.inner.weight"].T + weights[f"{path}.inner.bias"]
                outer = functional.relu(inner) @ weights[f"{path}.outer.weight"].T
                update = outer + weights[f"{path}.outer.bias"]
            wanted = wanted + update if residual else update
            if norm == "post":
                wanted = normed(wanted, f"{path}_residual.norm")
    torch.testing.assert_close(model(x), wanted, rtol=1e-9, atol=1e-11)


def test_dropout_acts_in_training_only() -> None:
    model = build(dropout=0.5, feed_forward=D_HIDDEN)
    x = inputs(torch.float32)
    assert [module.dropout for module in attentions(model).values()] == [0.5]
    assert [m.p for m in model.modules() if isinstance(m, Dropout) and m.p] == [0.5]
    assert not torch.allclose(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


def test_biases_and_backend_reach_the_attention() -> None:
    assert build(bias=True).state_dict().keys() > build(bias=False).state_dict().keys()
    model = build(choose_scale("softcap", {"cap": 2.5}), backend="explicit")
    attention = model.get_submodule("layers.0.attention")
    assert isinstance(attention, MultiHeadAttention)
    assert isinstance(attention.scale, SoftCap)
    assert (attention.scale.cap, attention.backend) == (2.5, "explicit")


def test_initialisation_is_the_chosen_one() -> None:
    model = build(d_model=200, d_k=100, d_v=150, n_heads=2, init="unit", bias=True)
    attention = model.get_submodule("layers.0.attention")
    assert isinstance(attention, MultiHeadAttention)
    for layer, fan_in in ((attention.q, 200), (attention.o, 300)):
        found = float(layer.weight.detach().square().mean()) * fan_in
        allowed = 5 * math.sqrt(2 / layer.weight.numel())
        assert abs(found - 1) < allowed, f"{found} of the variance, allowed 1 ± {allowed}"
        assert layer.bias.abs().max() == 0


@pytest.mark.parametrize("scale", ["none", "inverse", "learned", 0.37])
def test_a_seed_gives_the_same_weights_for_every_scale(scale: str | float) -> None:
    torch.manual_seed(3)
    wanted = build("sqrt", n_layers=2, init="kaiming").state_dict()
    torch.manual_seed(3)
    made = build(scale, n_layers=2, init="kaiming").state_dict()
    assert all(torch.equal(made[name], weight) for name, weight in wanted.items())


@pytest.mark.parametrize(
    ("key", "wrong", "allowed"),
    [
        ("norm", "layer", "none, pre, post"),
        ("init", "he", "torch, xavier, kaiming, unit"),
        ("n_layers", 0, "at least 1"),
        ("feed_forward", 0, "at least 1, or null"),
        ("d_model", 0, "at least 1"),
        ("d_k", 0, "at least 1"),
        ("d_v", 0, "at least 1"),
        ("n_heads", -2, "at least 1"),
        ("dropout", 1.0, "below 1"),
    ],
)
def test_refuses_what_is_not_allowed(key: str, wrong: str | float, allowed: str) -> None:
    with pytest.raises(ValueError, match=rf"^model\.{key}={wrong}: .*{allowed}"):
        build(**{key: wrong})


def test_shapes_are_checked() -> None:
    with pytest.raises(TypeCheckError):
        build()(torch.randn(POSITION, D_MODEL))
