"""Runs in this process, with a store (``lab``) or, faster, with nothing but a list of points."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import Logger
from torch import Tensor

from attnscale.config.build import compose
from attnscale.experiment.assemble import Parts, assemble
from attnscale.experiment.surroundings import surroundings
from attnscale.task.module import TaskModule
from tests.experiment.conftest import Lab, lab

__all__ = ["AUTOENCODER", "TRANSFORMER", "Fit", "Fitted", "Lab", "lab"]

AUTOENCODER = (
    "model.d_model=12",
    "model.d_k=5",
    "model.n_heads=3",
    "model.n_layers=2",
    "model.residual=true",
    "data.length=7",
    "data.n_train=100",
    "data.n_val=30",
    "data.n_test=3",
    "trainer.max_epochs=2",
)
TRANSFORMER = (
    "model=transformer",
    "model.d_model=16",
    "model.d_k=5",
    "model.d_v=7",
    "model.n_heads=2",
    "model.n_layers=1",
    "model.feed_forward=16",
    "model.dropout=0.0",
    "data.n_train=150",
    "data.n_val=31",
    "data.n_test=3",
    "trainer.max_epochs=2",
)


class Points(Logger):
    """Keeps every point: metric -> step -> value."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, dict[int, float]] = {}

    @property
    def name(self) -> str:
        return "points"

    @property
    def version(self) -> str:
        return "0"

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        for name, value in metrics.items():
            at = self.found.setdefault(name, {})
            assert step is not None
            assert step not in at, f"{name} has two points at step {step}"
            at[step] = value


@dataclass
class Fitted:
    """What came of a run."""

    points: dict[str, dict[int, float]]
    weights: dict[str, Tensor]
    module: TaskModule
    trainer: pl.Trainer
    folder: Path

    def of(self, *beginnings: str) -> dict[str, dict[int, float]]:
        return {name: at for name, at in self.points.items() if name.startswith(beginnings)}

    def same_training(self, other: "Fitted") -> bool:
        """Whether every loss, gradient norm and final weight has the same bits."""
        kinds = ("train/", "val/", "grad_norm/")
        assert self.points["train/loss"]
        assert all(math.isfinite(v) for v in self.points["train/loss"].values())
        assert self.weights.keys() == other.weights.keys()
        return self.of(*kinds) == other.of(*kinds) and all(
            torch.equal(value, other.weights[name]) for name, value in self.weights.items()
        )


Fit = Callable[..., Fitted]


@pytest.fixture
def fit(tmp_path: Path) -> Fit:
    """Return a function that trains a configuration: no store, no test set."""
    made: list[Path] = []

    def run(*overrides: str, before: Callable[[Parts], None] | None = None) -> Fitted:
        folder = tmp_path / f"fit{len(made)}"
        made.append(folder)
        fixed = ("trainer.enable_progress_bar=false", "callbacks.best=null", "callbacks.last=null")
        config = compose([*fixed, *overrides], folder=folder)
        with surroundings(None):
            parts = assemble(config, None)
        points = Points()
        parts.trainer.loggers = [points]
        if before is not None:
            before(parts)
        with surroundings(None):
            parts.trainer.fit(parts.module, datamodule=parts.data)
        weights = {name: value.clone() for name, value in parts.module.state_dict().items()}
        return Fitted(points.found, weights, parts.module, parts.trainer, folder)

    return run
