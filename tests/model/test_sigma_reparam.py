"""σReparam: what it leaves as it is, and what it holds."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from attnscale.attention import attentions
from attnscale.model.autoencoder import AttentionAutoencoder
from attnscale.model.sigma_reparam import SigmaReparam, reparametrise
from attnscale.model.transformer import Transformer
from tests.support import models

D_MODEL, D_K, D_V, HEADS, HIDDEN, VOCABULARY, PADDING = 14, 5, 3, 2, 11, 17, 1


SIZES: dict[str, Any] = {
    "d_model": D_MODEL,
    "d_k": D_K,
    "d_v": D_V,
    "n_heads": HEADS,
    "n_layers": 2,
    "feed_forward": HIDDEN,
}


def autoencoder(scale: str = "sqrt") -> AttentionAutoencoder:
    return models.autoencoder(scale, **SIZES, residual=True, norm="pre", bias=True)


def transformer(scale: str = "sqrt", *, tied: bool = False) -> Transformer:
    return models.transformer(
        scale,
        **SIZES,
        source_size=VOCABULARY,
        target_size=VOCABULARY + 2,
        positions="learned",
        max_length=23,
        tied=tied,
    )


def answer(model: nn.Module) -> Tensor:
    """Return a model's output for an input that is always the same."""
    generator = torch.Generator().manual_seed(7)
    if isinstance(model, AttentionAutoencoder):
        x = torch.randn(2, 7, D_MODEL, generator=generator, dtype=torch.float64)
        made: Tensor = model(x.to(next(model.parameters()).dtype))
        return made
    assert isinstance(model, Transformer)
    source, target = (torch.randint(4, VOCABULARY, (2, n), generator=generator) for n in (7, 11))
    source[1, 4:] = PADDING
    logits: Tensor = model.output(model(source, target, PADDING))
    return logits


def reparametrised(model: nn.Module) -> set[str]:
    return {path for path, m in model.named_modules() if parametrize.is_parametrized(m)}


BUILDS = pytest.mark.parametrize("build", [autoencoder, transformer])
CHOICES = pytest.mark.parametrize("which", ["qk", "all"])
Build = Callable[..., nn.Module]


@BUILDS
@CHOICES
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", ["sqrt", "folded"])
def test_at_first_nothing_changes(
    build: Build, which: str, training: bool, dtype: torch.dtype, scale: str
) -> None:
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    model = build(scale).to(dtype).train(training)
    wanted = answer(model)
    reparametrise(model, which)
    for _ in range(3):
        torch.testing.assert_close(answer(model), wanted, rtol=tolerance, atol=tolerance)


@BUILDS
def test_which_layers_it_is_put_on(build: Build) -> None:
    model = build()
    linear = {path for path, m in model.named_modules() if isinstance(m, nn.Linear)}
    reparametrise(model, "none")
    assert reparametrised(model) == set()
    reparametrise(model, "qk")
    queries = {f"{path}.{name}" for path in attentions(model) for name in ("q", "k")}
    assert reparametrised(model) == queries
    model = build()
    reparametrise(model, "all")
    assert reparametrised(model) == linear
    assert any(path.endswith("inner") for path in linear)


def test_a_shared_weight_stays_plain_and_shared() -> None:
    model = transformer(tied=True)
    linear = {path for path, m in model.named_modules() if isinstance(m, nn.Linear)}
    reparametrise(model, "all")
    assert reparametrised(model) == linear - {"output"}
    assert model.output.weight is model.target_embedding.token.weight


@BUILDS
@CHOICES
def test_the_weight_in_use_has_the_learned_norm(build: Build, which: str) -> None:
    model = build().double()
    reparametrise(model, which)
    layers = [model.get_submodule(path) for path in sorted(reparametrised(model))]
    with torch.no_grad():
        for i, layer in enumerate(layers):
            made: Any = layer.parametrizations
            made.weight.original.normal_()
            made.weight[0].gamma.fill_(0.5 + i)
        for _ in range(400):
            for layer in layers:
                _ = layer.weight  # a training pass reads each weight once
    for i, layer in enumerate(layers):
        weight = layer.eval().weight
        assert isinstance(weight, Tensor)
        norm = float(torch.linalg.svdvals(weight.detach())[0])
        assert norm == pytest.approx(0.5 + i, rel=1e-3)


def test_a_training_pass_is_one_step_of_power_iteration() -> None:
    model = autoencoder().double()
    reparametrise(model, "qk")
    layer: Any = attentions(model)["layers.0.attention"].q
    part = layer.parametrizations.weight[0]
    layer.parametrizations.weight.original.data.normal_()
    weight, u = layer.parametrizations.weight.original.detach(), part.u.clone()
    answer(model)
    v = weight.T @ u
    v = v / v.norm()
    wanted = weight @ v
    torch.testing.assert_close(part.v, v)
    torch.testing.assert_close(part.u, wanted / wanted.norm())


@BUILDS
@CHOICES
def test_evaluation_leaves_everything_as_it_is(build: Build, which: str) -> None:
    model = build().double()
    reparametrise(model, which)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.eval()
    before = copy.deepcopy(model.state_dict())
    first = answer(model)
    assert torch.equal(answer(model), first)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    answer(model.train())
    moved = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert {k.rpartition(".")[2] for k in moved} == {"u", "v"}
    assert len(moved) == 2 * len(reparametrised(model))


@pytest.mark.parametrize("training", [True, False])
def test_the_gradient_is_that_of_the_formula_with_fixed_vectors(training: bool) -> None:
    part = SigmaReparam(torch.randn(7, 5, dtype=torch.float64)).train(training)
    with torch.no_grad():
        part.gamma.fill_(1.7)
    weight = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    direction = torch.randn(7, 5, dtype=torch.float64)
    made = part(weight)
    found = torch.autograd.grad((made * direction).sum(), [weight, part.gamma])

    u, v = part.u, part.v
    sigma = torch.einsum("i,ij,j->", u, weight, v)
    torch.testing.assert_close(made, 1.7 * weight / sigma)
    inner = (direction * weight).sum()
    by_weight = 1.7 * (direction / sigma - inner / sigma**2 * torch.outer(u, v))
    torch.testing.assert_close(found[0], by_weight.detach())
    torch.testing.assert_close(found[1], (inner / sigma).detach())
    # The size of W has no effect, so the gradient has no part along W.
    assert float((found[0] * weight).sum().detach()) == pytest.approx(0.0, abs=1e-12)


def test_two_passes_before_one_backward_pass() -> None:
    model = autoencoder().double()
    reparametrise(model, "all")
    first, second = answer(model), answer(model)
    (first + second).sum().backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None for p in model.parameters())


@BUILDS
@CHOICES
def test_a_state_loads_again(build: Build, which: str) -> None:
    model = build().double()
    reparametrise(model, which)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    answer(model)
    other = build().double()
    reparametrise(other, which)
    assert not torch.equal(answer(other.eval()), answer(model.eval()))
    other.load_state_dict(model.state_dict())
    assert torch.equal(answer(other), answer(model))
    assert torch.equal(answer(other.train()), answer(model.train()))


@BUILDS
@CHOICES
def test_the_control_is_refused(build: Build, which: str) -> None:
    with pytest.raises(
        ValueError, match=rf"attention\.sigma_reparam={which}: the control none_equiv"
    ):
        reparametrise(build("none_equiv"), which)
    reparametrise(build("none_equiv"), "none")


@BUILDS
def test_an_unknown_word_is_refused(build: Build) -> None:
    with pytest.raises(ValueError, match=r"attention\.sigma_reparam=q: allowed are none, qk, all"):
        reparametrise(build(), "q")
