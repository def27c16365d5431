import math

import pytest
import torch
from torch import nn

from attnscale.checks import check_choice
from attnscale.model.layers import (
    INITS,
    NORMS,
    FeedForward,
    initialise,
)

FAN_IN, FAN_OUT = 211, 307
VARIANCES = {
    "torch": 1 / (3 * FAN_IN),
    "xavier": 2 / (FAN_IN + FAN_OUT),
    "kaiming": 2 / FAN_IN,
    "unit": 1 / FAN_IN,
}
KURTOSES = {"torch": 1.8, "xavier": 1.8, "kaiming": 3.0, "unit": 3.0}


def test_every_initialisation_has_its_variance_here() -> None:
    assert set(VARIANCES) == set(INITS)


@pytest.mark.parametrize("init", INITS)
def test_the_variance_of_weights(init: str) -> None:
    layer = nn.Linear(FAN_IN, FAN_OUT)
    initialise(layer, init)
    weight = layer.weight.detach().double()
    found = float(weight.square().mean()) / VARIANCES[init]
    # The mean of n squares of relative variance κ − 1, with κ the kurtosis: 3 normal, 9/5 uniform.
    allowed = 5 * math.sqrt((KURTOSES[init] - 1) / weight.numel())
    assert abs(found - 1) < allowed, f"{found} of the variance, allowed 1 ± {allowed}"
    mean, spread = float(weight.mean()), math.sqrt(VARIANCES[init] / weight.numel())
    assert abs(mean) < 5 * spread, f"mean {mean}, allowed ± {5 * spread}"


@pytest.mark.parametrize("init", INITS)
def test_the_distribution_of_weights(init: str) -> None:
    layer = nn.Linear(FAN_IN, FAN_OUT)
    initialise(layer, init)
    weight = layer.weight.detach().double() / math.sqrt(VARIANCES[init])
    found, wanted = float(weight.pow(4).mean()), KURTOSES[init]
    # x⁴ has variance 96 for the normal distribution, 81/9 − 1.8² for the uniform one.
    allowed = 5 * math.sqrt((96 if wanted == 3 else 5.76) / weight.numel())
    assert abs(found - wanted) < allowed, f"kurtosis {found}, allowed {wanted} ± {allowed}"


@pytest.mark.parametrize("init", INITS)
def test_biases_are_zero_unless_torch(init: str) -> None:
    model = nn.Sequential(nn.Linear(FAN_IN, FAN_OUT), nn.Linear(FAN_OUT, 5, bias=False))
    initialise(model, init)
    bias = model[0].bias
    assert isinstance(bias, torch.Tensor)
    assert bool(bias.abs().max() > 0) == (init == "torch")


def test_torch_leaves_the_weights_alone() -> None:
    layer = nn.Linear(FAN_IN, FAN_OUT)
    before = layer.weight.detach().clone()
    state = torch.get_rng_state()
    initialise(layer, "torch")
    assert torch.equal(layer.weight, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_only_linear_layers_are_touched() -> None:
    model = nn.Sequential(nn.LayerNorm(7), nn.Embedding(5, 7), nn.Sequential(nn.Linear(7, 3)))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    initialise(model, "unit")
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {"2.0.weight", "2.0.bias"}


def test_unit_keeps_the_variance() -> None:
    layer = nn.Linear(FAN_IN, FAN_OUT, bias=False)
    initialise(layer, "unit")
    n = 2000
    out = layer(torch.randn(n, FAN_IN)).detach()
    found = float(out.square().mean())
    # 2/N from N outputs, and 2/fan_in from the length of each input and of each row of weights.
    allowed = 5 * math.sqrt(2 / out.numel() + 2 / FAN_IN * (1 / n + 1 / FAN_OUT))
    assert abs(found - 1) < allowed, f"variance {found}, allowed 1 ± {allowed}"


def test_refuses_an_unknown_initialisation() -> None:
    layer = nn.Linear(3, 5)
    with pytest.raises(
        ValueError, match=r"^model\.init=he: allowed are torch, xavier, kaiming, unit$"
    ):
        initialise(layer, "he")


@pytest.mark.parametrize("choice", NORMS)
def test_an_allowed_choice_passes(choice: str) -> None:
    check_choice("model.norm", choice, NORMS)


def test_refuses_an_unknown_choice() -> None:
    with pytest.raises(ValueError, match=r"^some\.key=Pre: allowed are none, pre, post$"):
        check_choice("some.key", "Pre", NORMS)


def test_the_feed_forward_network_is_two_layers_with_relu() -> None:
    network = FeedForward(d_model=17, d_hidden=19).double()
    x = torch.randn(2, 7, 17, dtype=torch.float64)
    weights = network.state_dict()
    hidden = x @ weights["inner.weight"].T + weights["inner.bias"]
    assert weights["inner.weight"].shape == (19, 17)
    wanted = hidden.clamp(min=0) @ weights["outer.weight"].T + weights["outer.bias"]
    torch.testing.assert_close(network(x), wanted, rtol=1e-9, atol=1e-11)


def test_the_feed_forward_network_drops_its_hidden_layer() -> None:
    network = FeedForward(d_model=3, d_hidden=4001, dropout=0.25)
    with torch.no_grad():
        network.inner.weight.zero_()
        network.inner.bias.fill_(1.0)
        network.outer.weight.fill_(1 / 4001)
        network.outer.bias.zero_()
    x = torch.randn(1, 1, 3)
    found = float(network(x)[0, 0, 0].detach())
    allowed = 5 * math.sqrt(0.25 / 0.75 / 4001)
    assert found != 1
    assert abs(found - 1) < allowed, f"mean {found}, allowed 1 ± {allowed}"
    assert float(network.eval()(x)[0, 0, 0].detach()) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("wrong", [0, -1])
def test_refuses_a_hidden_layer_below_one(wrong: int) -> None:
    with pytest.raises(ValueError, match=rf"^model\.feed_forward={wrong}: must be at least 1"):
        FeedForward(d_model=3, d_hidden=wrong)
