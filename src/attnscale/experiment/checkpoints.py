"""Reading checkpoints: with torch's safe default, and what they carry beside the weights."""

import logging
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnscale.callbacks.names import FOLDER, LAST, PREVIOUS
from attnscale.config.schema import TrainConfig
from attnscale.config.section import typed
from attnscale.config.targets import NO_ALLOWANCE, Targets
from attnscale.renames import update_checkpoint

log = logging.getLogger(__name__)

ZIP_START = b"PK\x03\x04"
"""First bytes of what torch.save writes, a zip file."""


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


def _state(path: str) -> Any:
    """Load a file of torch's; one that is none is refused in words."""
    file = Path(path)
    if file.is_dir():
        raise ValueError(f"checkpoint={path}: is a folder; name the file in it, such as last.ckpt")
    if not file.is_file():
        raise ValueError(f"checkpoint={path}: no such file")
    try:
        with file.open("rb") as opened:
            start = opened.read(len(ZIP_START))
        with zipfile.ZipFile(file) as archive:
            # torch would load damaged numbers as they are.
            damaged = archive.testzip()
        if damaged is None:
            return torch.load(path, map_location="cpu", weights_only=True)
        words = f"damaged: {damaged} is not what was saved"
    except OSError as error:
        words = f"cannot be read: {error.strerror}"
    except zipfile.BadZipFile:
        words = {
            b"": "no checkpoint: it is empty",
            ZIP_START: "not a whole checkpoint: its end is missing",
        }.get(start, "no checkpoint: it does not begin as a file of torch.save does")
    except pickle.UnpicklingError:
        words = "not loaded: it holds more than tensors and plain values"
    except RuntimeError:
        words = "no checkpoint: a zip file, but not one of torch.save"
    raise ValueError(f"checkpoint={path}: {words}")


def load_checkpoint(path: str, targets: Targets = NO_ALLOWANCE) -> Checkpoint:
    """Load a checkpoint with torch's safe default, and check what its configuration names.

    Raises:
        ValueError: If it is missing, unreadable, not one of this project, or names a target that is
            not allowed.
    """
    state = _state(path)
    try:
        update_checkpoint(state)
        carried = state["attnscale"]
        values, tensors = dict(carried["config"]), state["state_dict"]
        epochs = int(state.get("epoch", -1)) + (carried.get("batches_done") is None)
        progress = epochs, int(state.get("global_step", 0)), bool(carried.get("stopped"))
    except Exception as error:
        raise ValueError(
            f"checkpoint={path}: no checkpoint of this project: it has not what attnscale keeps "
            "beside the weights"
        ) from error
    try:
        targets.check(values)
        config = typed(TrainConfig, values)
    except ValueError as error:
        raise ValueError(f"checkpoint={path}: {error}") from error
    data, statistics = carried.get("data") or {}, carried.get("statistics")
    return Checkpoint(path, config, data, statistics, tensors, *progress)


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
