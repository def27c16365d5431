import pytest
import torch
from torch import Tensor
from torch.nn import functional

from attnscale.model.cross_entropy import linear_cross_entropy

TOKENS, D_MODEL, VOCABULARY = 37, 13, 101
SMOOTHINGS = pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
BIASES = pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])


def draw(*, bias: bool = True, spread: float = 1.0) -> tuple[list[Tensor], Tensor]:
    """Return hidden states, weight and bias, and targets of which some occur twice."""
    leaves = [torch.randn(TOKENS, D_MODEL) * spread, torch.randn(VOCABULARY, D_MODEL)]
    leaves += [torch.randn(VOCABULARY)] if bias else []
    target = torch.randint(0, VOCABULARY, (TOKENS,))
    target[3:6] = target[0]
    return [leaf.requires_grad_() for leaf in leaves], target


def made(leaves: list[Tensor], target: Tensor, smoothing: float) -> Tensor:
    hidden, weight, bias = [*leaves, None][:3]
    assert hidden is not None
    assert weight is not None
    return linear_cross_entropy(hidden, weight, bias, target, smoothing=smoothing)


def wanted(leaves: list[Tensor], target: Tensor, smoothing: float) -> Tensor:
    logits = functional.linear(*leaves)
    return functional.cross_entropy(logits, target, reduction="sum", label_smoothing=smoothing)


@SMOOTHINGS
@BIASES
@pytest.mark.parametrize("factor", [1.0, 1 / 37, -2.5])
def test_value_and_gradients(smoothing: float, bias: bool, factor: float) -> None:
    leaves, target = draw(bias=bias)
    loss, right = made(leaves, target, smoothing), wanted(leaves, target, smoothing)
    assert loss.shape == ()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, right, rtol=1e-5, atol=0.0)
    for found, true in zip(
        torch.autograd.grad(loss * factor, leaves),
        torch.autograd.grad(right * factor, leaves),
        strict=True,
    ):
        assert found.dtype == true.dtype
        torch.testing.assert_close(found, true, rtol=1e-5, atol=2e-5)


def test_double_precision_stays_double() -> None:
    leaves, target = draw()
    doubles = [leaf.detach().double().requires_grad_() for leaf in leaves]
    loss = made(doubles, target, 0.1)
    torch.testing.assert_close(loss, wanted(doubles, target, 0.1), rtol=1e-13, atol=0.0)
    with torch.no_grad():
        torch.testing.assert_close(made(doubles, target, 0.1), loss, rtol=1e-13, atol=0.0)


@SMOOTHINGS
@BIASES
def test_gradients_add_up(smoothing: float, bias: bool) -> None:
    leaves, target = draw(bias=bias)
    loss = made(leaves, target, smoothing) + 2 * made(leaves, target.flip(0), smoothing)
    found = torch.autograd.grad(loss, leaves)
    right = wanted(leaves, target, smoothing) + 2 * wanted(leaves, target.flip(0), smoothing)
    for grad, true in zip(found, torch.autograd.grad(right, leaves), strict=True):
        torch.testing.assert_close(grad, true, rtol=1e-5, atol=5e-5)


@SMOOTHINGS
@BIASES
def test_without_gradients_it_is_the_same(smoothing: float, bias: bool) -> None:
    leaves, target = draw(bias=bias)
    with torch.no_grad():
        found = made(leaves, target, smoothing)
    assert not found.requires_grad
    torch.testing.assert_close(found, made(leaves, target, smoothing), rtol=1e-5, atol=0.0)


@SMOOTHINGS
def test_inputs_stay_as_they_are(smoothing: float) -> None:
    leaves, target = draw()
    before = [leaf.detach().clone() for leaf in leaves]
    torch.autograd.grad(made(leaves, target, smoothing), leaves)
    for leaf, kept in zip(leaves, before, strict=True):
        assert torch.equal(leaf, kept)


@SMOOTHINGS
def test_under_autocast_it_is_roughly_the_same(smoothing: float) -> None:
    leaves, target = draw()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = made(leaves, target, smoothing)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        evaluated = made(leaves, target, smoothing)
    right = wanted(leaves, target, smoothing)
    assert loss.dtype == evaluated.dtype == torch.float32
    torch.testing.assert_close(loss, right, rtol=1e-2, atol=0.0)
    torch.testing.assert_close(evaluated, loss.detach(), rtol=1e-4, atol=0.0)
    for found, true in zip(
        torch.autograd.grad(loss, leaves), torch.autograd.grad(right, leaves), strict=True
    ):
        assert found.dtype == true.dtype
        apart = float((found - true).norm() / true.norm())
        assert apart < 0.02, apart


@SMOOTHINGS
@pytest.mark.parametrize("spread", [1e4, 1e30])
def test_extreme_logits_stay_finite(smoothing: float, spread: float) -> None:
    leaves, target = draw(spread=spread)
    loss = made(leaves, target, smoothing)
    torch.testing.assert_close(loss, wanted(leaves, target, smoothing), rtol=1e-5, atol=0.0)
    assert bool(loss.isfinite())
    # The gradients of logits are differences of probabilities, whatever the logits are.
    hidden, _, bias = torch.autograd.grad(loss, leaves)
    assert bool(hidden.isfinite().all())
    assert float(bias.abs().max()) <= TOKENS


def test_the_loss_of_equal_logits_is_the_logarithm_of_their_number() -> None:
    hidden, weight = torch.randn(5, D_MODEL), torch.zeros(VOCABULARY, D_MODEL)
    target = torch.arange(5)
    for smoothing in (0.0, 0.3):
        hidden.requires_grad_()
        loss = linear_cross_entropy(hidden, weight, None, target, smoothing=smoothing)
        assert float(loss.detach()) == pytest.approx(5 * float(torch.tensor(101.0).log()), rel=1e-6)
