"""Reading checkpoints: with torch's safe default, and what they carry beside the weights."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnscale.callbacks.checkpoint import FOLDER, LAST, PREVIOUS
from attnscale.config.schema import TrainConfig
from attnscale.config.section import typed
from attnscale.config.targets import NO_ALLOWANCE, Targets
from attnscale.renames import update_checkpoint

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """What a run reads of a checkpoint; the optimizer's state is Lightning's affair.

    Attributes:
        path: The file.
        config: The configuration that it was trained with.
        data: What the data module must know again, such as vocabularies.
        statistics: What the scale mode wanted to know of the data, or None if that was not kept.
        tensors: The state dict.
        epochs: Epochs done.
        steps: Optimizer steps done.
        stopped: Whether training had ended, before a limit too.
    """

    path: str
    config: TrainConfig
    data: Mapping[str, Any]
    statistics: Mapping[str, float] | None
    tensors: Mapping[str, Tensor]
    epochs: int
    steps: int
    stopped: bool


def load_checkpoint(path: str, targets: Targets = NO_ALLOWANCE) -> Checkpoint:
    """Load a checkpoint with torch's safe default, and check what its configuration names.

    Raises:
        ValueError: If it is missing, unreadable, not one of this project, or names a target that is
            not allowed.
    """
    if not Path(path).is_file():
        raise ValueError(f"checkpoint={path}: no such file")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        update_checkpoint(state)
        carried = state["attnscale"]
        values = dict(carried["config"])
        epochs = int(state.get("epoch", -1)) + (carried.get("batches_done") is None)
        progress = epochs, int(state.get("global_step", 0)), bool(carried.get("stopped"))
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"checkpoint={path}: not a checkpoint of this project: {first}") from error
    try:
        targets.check(values)
        config = typed(TrainConfig, values)
    except ValueError as error:
        raise ValueError(f"checkpoint={path}: {error}") from error
    data, statistics = carried.get("data") or {}, carried.get("statistics")
    return Checkpoint(path, config, data, statistics, state["state_dict"], *progress)


def newest_checkpoint(folder: Path, targets: Targets = NO_ALLOWANCE) -> str | None:
    """Return the newest checkpoint of a run's folder that is whole, or None.

    A file that cannot be read is told, and the one before it is taken.
    """
    for name in (LAST, PREVIOUS):
        path = folder / FOLDER / name
        if not path.is_file():
            continue
        try:
            load_checkpoint(str(path), targets)
        except ValueError as error:
            log.warning("Not going on from a damaged checkpoint: %s", error)
        else:
            return str(path)
    return None
