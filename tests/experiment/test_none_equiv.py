"""The factor 1/√d_k is a reparametrisation: ``none_equiv`` trains exactly as ``sqrt`` does."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from attnscale.attention import Scale
from attnscale.attention.scale import NoneEquivalent, OptimizerFactors
from attnscale.experiment import run
from attnscale.model.transformer import Transformer
from attnscale.task.groups import adjust, parameter_groups
from tests.support import models

STEPS, BATCHES = 50, 3
SAME, DIFFERENT = 1e-9, 1e-4
VOCABULARY, PADDING = 19, 1

Groups = list[dict[str, Any]]


# ε is of the size of the gradients, so that its factor matters.
OPTIMIZERS: dict[str, Callable[[Groups], torch.optim.Optimizer]] = {
    "adam": lambda groups: torch.optim.Adam(groups, lr=3e-3, eps=1e-3),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=3e-3, eps=1e-3, weight_decay=0.1),
    "adam_coupled": lambda groups: torch.optim.Adam(groups, lr=3e-3, eps=1e-3, weight_decay=0.01),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.01),
}


@pytest.fixture(autouse=True)
def _double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Thousands of small steps: checking shapes, as other tests do, would take half of the time.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    # Weights are drawn in float64: rounding c · W_q to float32 would cost seven digits.
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


Loss = Callable[[nn.Module], Tensor]


def autoencoder(scale: str | Scale, d_k: int) -> tuple[nn.Module, list[Loss]]:
    model = models.autoencoder(
        scale,
        d_model=11,
        d_k=d_k,
        d_v=13,
        n_heads=2,
        n_layers=2,
        residual=True,
        norm="pre",
        bias=True,
    )
    drawn = [torch.randn(5, 7, 11) for _ in range(BATCHES)]

    def loss(x: Tensor, m: nn.Module) -> Tensor:
        return functional.mse_loss(m(x), x.roll(1, 1))

    return model, [partial(loss, x) for x in drawn]


def transformer(scale: str | Scale, d_k: int) -> tuple[nn.Module, list[Loss]]:
    model = models.transformer(
        scale,
        source_size=VOCABULARY,
        target_size=VOCABULARY,
        d_model=12,
        d_k=d_k,
        d_v=5,
        n_heads=2,
        n_layers=1,
        feed_forward=17,
    )

    def loss(source: Tensor, target: Tensor, m: nn.Module) -> Tensor:
        assert isinstance(m, Transformer)
        logits = m.output(m(source, target[:, :-1], PADDING))
        return functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())

    losses: list[Loss] = []
    for _ in range(BATCHES):
        source = torch.randint(4, VOCABULARY, (5, 7))
        target = torch.cat([torch.full((5, 1), 2), source], dim=1)
        source[1, 4:] = PADDING
        losses.append(partial(loss, source, target))
    return model, losses


MODELS = {"autoencoder": autoencoder, "transformer": transformer}


class Incomplete(NoneEquivalent):
    """The control with some of its optimizer's factors left out."""

    def __init__(self, *missing: str) -> None:
        super().__init__()
        self.missing = missing

    def optimizer_factors(self, d_k: int, kind: str) -> OptimizerFactors:
        factors = super().optimizer_factors(d_k, kind)
        return replace(factors, **dict.fromkeys(self.missing, 1.0))


@cache
def curve(name: str, scale: str | Scale, d_k: int, optimizer: str) -> Tensor:
    """Train, and return the losses of all steps."""
    torch.manual_seed(0)
    model, losses = MODELS[name](scale, d_k)
    stepper = OPTIMIZERS[optimizer](parameter_groups(model))
    assert adjust(stepper) == (scale == "none_equiv" or isinstance(scale, Incomplete))
    found = []
    for step in range(STEPS):
        stepper.zero_grad()
        loss = losses[step % BATCHES](model)
        loss.backward()  # type: ignore[no-untyped-call]
        stepper.step()
        found.append(loss.detach())
    return torch.stack(found)


def apart(first: Tensor, second: Tensor) -> float:
    return float((first - second).abs().max())


@pytest.mark.parametrize("d_k", [37, 64])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_the_control_trains_as_the_factor_does(name: str, optimizer: str, d_k: int) -> None:
    wanted = curve(name, "sqrt", d_k, optimizer)
    made = curve(name, "none_equiv", d_k, optimizer)
    assert apart(wanted[:BATCHES].mean(), wanted[-BATCHES:].mean()) > 0.01, "nothing was learned"
    assert apart(made, wanted) < SAME


@pytest.mark.parametrize("scale", ["none", "folded"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_leaving_out_the_factor_alone_is_another_training(
    name: str, optimizer: str, scale: str
) -> None:
    wanted, made = (curve(name, s, 64, optimizer) for s in ("sqrt", scale))
    # At the start the folded model is the same function; it is the steps that differ.
    assert (apart(made[:1], wanted[:1]) < SAME) == (scale == "folded")
    assert apart(made, wanted) > DIFFERENT


@pytest.mark.parametrize(
    ("optimizer", "missing"),
    [
        ("adam", "lr"),
        ("adam", "eps"),
        ("adamw", "lr"),
        ("adamw", "eps"),
        ("adamw", "weight_decay"),
        ("adam_coupled", "lr"),
        ("adam_coupled", "eps"),
        ("adam_coupled", "weight_decay"),
        ("sgd", "lr"),
        ("sgd", "weight_decay"),
    ],
)
@pytest.mark.parametrize(
    "name",
    [n if n == "autoencoder" else pytest.param(n, marks=pytest.mark.slow) for n in MODELS],
)
def test_each_number_of_the_optimizer_matters(name: str, optimizer: str, missing: str) -> None:
    wanted = curve(name, "sqrt", 64, optimizer)
    # With all of them it is the control, whatever its class.
    assert apart(curve(name, Incomplete(), 64, optimizer), wanted) < SAME
    assert apart(curve(name, Incomplete(missing), 64, optimizer), wanted) > DIFFERENT


# --- through a run's configuration ---

SHORT = (
    "trainer.max_epochs=3",
    "data.n_train=100",
    "data.n_val=30",
    "data.n_test=30",
    "model.d_model=16",
    "model.d_k=64",  # 1/√d_k is a power of two: weights are drawn in float32 and then widened
    "model.n_heads=2",
    "model.bias=true",
    "optimizer.lr=1e-2",
    "trainer.precision=64-true",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer",
    [
        ("optimizer=adamw", "optimizer.weight_decay=0.1", "optimizer.schedule=cosine"),
        ("optimizer=sgd", "optimizer.lr=0.3", "optimizer.momentum=0.9"),
    ],
)
def test_runs_of_both_record_the_same_losses(lab: Any, optimizer: tuple[str, ...]) -> None:
    curves = []
    for scale in ("sqrt", "none_equiv", "folded"):
        result = lab.run(*SHORT, *optimizer, f"attention.scale={scale}")
        curves.append([v for _, v in lab.curve(result.run_id, "train/loss")])
    wanted, made, folded = curves
    assert len(wanted) == 12
    assert made == pytest.approx(wanted, abs=SAME)
    assert folded != pytest.approx(wanted, abs=DIFFERENT)


@pytest.mark.parametrize(
    ("scale", "limit", "warned"),
    [("none_equiv", "1.0", True), ("none_equiv", "null", False), ("sqrt", "1.0", False)],
)
def test_clipping_breaks_the_identity_and_says_so(
    lab: Any, caplog: pytest.LogCaptureFixture, scale: str, limit: str, warned: bool
) -> None:
    with caplog.at_level(logging.WARNING):
        lab.run(
            *SHORT,
            "trainer.max_epochs=1",
            f"attention.scale={scale}",
            f"trainer.gradient_clip_val={limit}",
        )
    text = "trainer.gradient_clip_val=1: the control's identity with sqrt no longer holds"
    assert (text in caplog.text) == warned


def test_a_run_refuses_other_optimizers(lab: Any) -> None:
    config = lab.config(*SHORT, "attention.scale=none_equiv")
    config.optimizer._target_ = "torch.optim.Adagrad"
    del config.optimizer["betas"]
    with pytest.raises(ValueError, match="'Adagrad'; allowed are adam, adamw and sgd"):
        run(config)
