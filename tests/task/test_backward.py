"""The short backward pass leaves out nothing that somebody has a hook for.

The hooks are read from Lightning's own classes, so that one that a later version adds is compared
as well.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping
from pytorch_lightning.plugins.precision import MixedPrecision, Precision
from pytorch_lightning.strategies import Strategy
from torch import nn

from attnscale.task import backward
from attnscale.task.backward import DETOURS, has_detour
from tests.task.toy import N_BATCHES, Toy, data, task, trainer

Hook = tuple[type, str]
OBSOLETE = ("configure_sharded_model",)
"""Lightning refuses a module that has this one beside the hook that replaced it."""


def hooks_of(base: type) -> list[str]:
    """Return the methods that Lightning gives a class, public ones; torch's are not asked for."""
    return [
        name
        for name in dir(base)
        if not name.startswith("_")
        and inspect.isfunction(inspect.getattr_static(base, name))
        and not hasattr(nn.Module, name)
        and name not in OBSOLETE
    ]


HOOKS: list[Hook] = [(base, name) for base in DETOURS for name in hooks_of(base)]
SKIPPED: list[Hook] = [(base, name) for base, names in DETOURS.items() for name in names]


class Watched:
    """A run of which every call of the chosen hooks is written down."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.callback, self.module = pl.Callback(), task()
        self.trainer = trainer(folder, self.callback, **options)
        self.owners: dict[type, Any] = {
            pl.Callback: self.callback,
            pl.LightningModule: self.module,
            Precision: self.trainer.precision_plugin,
            Strategy: self.trainer.strategy,
        }
        self.calls: list[str] = []

    def _listened(self, name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
        def listen(*given: Any, **named: Any) -> Any:
            self.calls.append(name)
            return hook(*given, **named)

        return listen

    def on_instance(self, base: type, name: str) -> None:
        owner = self.owners[base]
        setattr(owner, name, self._listened(f"{base.__name__}.{name}", getattr(owner, name)))

    def on_class(self, base: type, name: str) -> None:
        owner = self.owners[base]
        old = getattr(type(owner), name)
        new = {name: self._listened(f"{base.__name__}.{name}", old)}
        owner.__class__ = type(type(owner).__name__, (type(owner),), new)

    def fit(self) -> "Watched":
        self.trainer.fit(self.module, datamodule=data())
        return self

    def weights(self) -> torch.Tensor:
        return next(self.module.model.parameters()).detach()


@pytest.fixture
def _lightnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backward, "has_detour", lambda *_: True)


@pytest.fixture
def _unlike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the short way known by its effect: Lightning's way is not to be called."""

    def refuse(*_: object) -> None:
        raise AssertionError("went Lightning's way")

    monkeypatch.setattr(Toy, "manual_backward", refuse)
    names = tuple(name for name in DETOURS[pl.LightningModule] if name != "manual_backward")
    monkeypatch.setitem(DETOURS, pl.LightningModule, names)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "64-true", "bf16-true"])
@pytest.mark.usefixtures("_unlike")
def test_the_short_way_is_taken(tmp_path: Path, precision: str) -> None:
    run = Watched(tmp_path, precision=precision).fit()
    assert run.trainer.global_step == N_BATCHES


@pytest.mark.usefixtures("_unlike")
def test_a_callback_that_looks_elsewhere_leaves_it(tmp_path: Path) -> None:
    class Elsewhere(pl.Callback):
        def on_before_optimizer_step(self, *_: Any) -> None:
            called.append(1)

    called: list[int] = []
    trainer(tmp_path, Elsewhere(), EarlyStopping("x", strict=False)).fit(task(), datamodule=data())
    assert len(called) == N_BATCHES


@pytest.mark.filterwarnings("ignore:You have overridden")
def test_every_hook_that_is_not_skipped_is_called_as_by_lightning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(HOOKS) > 100
    assert set(SKIPPED) < set(HOOKS), "Lightning has moved a hook that is skipped"
    runs = []
    for lightnings in (False, True):
        run = Watched(tmp_path)
        for base, name in HOOKS:
            if (base, name) not in SKIPPED:
                run.on_instance(base, name)
        assert not has_detour(run.trainer, run.module), "none of these is a detour"
        if lightnings:
            monkeypatch.setattr(backward, "has_detour", lambda *_: True)
        runs.append(run.fit())
    short, long = runs
    assert short.calls == long.calls
    assert torch.equal(short.weights(), long.weights())
    for name in ("Strategy.pre_backward", "Strategy.post_backward", "Strategy.optimizer_step"):
        assert short.calls.count(name) == N_BATCHES
    for name in ("Callback", "LightningModule"):
        assert short.calls.count(f"{name}.on_before_optimizer_step") == N_BATCHES


@pytest.mark.parametrize("where", ["instance", "class"])
@pytest.mark.parametrize("hook", SKIPPED, ids=lambda hook: f"{hook[0].__name__}.{hook[1]}")
def test_a_hook_that_would_be_skipped_is_honoured(tmp_path: Path, hook: Hook, where: str) -> None:
    run = Watched(tmp_path)
    assert not has_detour(run.trainer, run.module)
    {"instance": run.on_instance, "class": run.on_class}[where](*hook)
    assert run.fit().calls == [f"{hook[0].__name__}.{hook[1]}"] * N_BATCHES


@pytest.mark.usefixtures("_lightnings")
@pytest.mark.parametrize("hook", SKIPPED, ids=lambda hook: f"{hook[0].__name__}.{hook[1]}")
def test_what_is_skipped_is_what_lightning_calls(tmp_path: Path, hook: Hook) -> None:
    run = Watched(tmp_path)
    run.on_instance(*hook)
    assert len(run.fit().calls) == N_BATCHES


def test_a_hook_that_comes_while_it_trains_is_honoured(tmp_path: Path) -> None:
    class Late(pl.Callback):
        def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
            if trainer.global_step == 4:
                run.on_instance(pl.LightningModule, "on_after_backward")

    run = Watched(tmp_path)
    getattr(run.trainer, "callbacks").append(Late())  # noqa: B009
    assert len(run.fit().calls) == N_BATCHES - 4


def test_scaled_gradients_go_lightnings_way(tmp_path: Path) -> None:
    run = Watched(tmp_path, precision="bf16-mixed")
    assert not has_detour(run.trainer, run.module)
    plugin = run.trainer.precision_plugin
    assert isinstance(plugin, MixedPrecision)
    plugin.scaler = torch.amp.GradScaler("cpu")
    assert has_detour(run.trainer, run.module)


def test_a_profiled_run_goes_lightnings_way(tmp_path: Path) -> None:
    run = Watched(tmp_path, profiler="simple")
    assert has_detour(run.trainer, run.module)
