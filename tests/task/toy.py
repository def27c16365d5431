"""The smallest run: a matrix that learns the identity."""

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from attnscale.data.gaussian import GaussianData, SequenceBatch
from attnscale.model.transformer import Transformer
from attnscale.task.module import TaskModule
from attnscale.task.settings import StepSettings
from attnscale.task.translation import Translation

D_MODEL, N_TRAIN, BATCH = 5, 22, 4
N_BATCHES = 6
RATE = 0.5


class Toy(TaskModule):
    """Mean squared error of a linear map."""

    def loss(self, batch: SequenceBatch) -> Tensor:
        return nn.functional.mse_loss(self.model(batch.x), batch.x)

    def validation_step(self, *_: Any) -> None:
        """Validate nothing; Lightning asks for the method."""


def settings(**changed: Any) -> StepSettings:
    fixed: dict[str, Any] = {
        "accumulate": 1,
        "clip_value": None,
        "clip_algorithm": None,
        "max_steps": -1,
        "max_epochs": 1,
        "schedule": "constant",
        "warmup": 0,
    }
    return StepSettings(**{**fixed, **changed})


def task(**changed: Any) -> Toy:
    torch.manual_seed(0)
    return Toy(
        model=nn.Linear(D_MODEL, D_MODEL, bias=False),
        make_optimizer=lambda groups: torch.optim.SGD(groups, lr=RATE),
        settings=settings(**changed),
        checkpoint_values={},
    )


def translation(model: Transformer) -> Translation:
    return Translation(
        label_smoothing=0.0,
        model=model,
        make_optimizer=lambda groups: torch.optim.SGD(groups, lr=RATE),
        settings=settings(),
        checkpoint_values={},
    )


def data(block: int = 4) -> GaussianData:
    made = GaussianData(
        n_train=N_TRAIN,
        n_val=3,
        n_test=3,
        length=2,
        d_model=D_MODEL,
        batch_size=BATCH,
        eval_batch_size=3,
        shuffle=True,
        seed=0,
    )
    made.count_batches(block=block)
    return made


def trainer(folder: Path, *callbacks: pl.Callback, **options: Any) -> pl.Trainer:
    fixed: dict[str, Any] = {
        "max_epochs": 1,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "limit_val_batches": 0,
        "log_every_n_steps": 1,
    }
    return pl.Trainer(
        default_root_dir=str(folder), callbacks=list(callbacks), **{**fixed, **options}
    )
