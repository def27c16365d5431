"""Two checkpoints: the best by validation loss, and the last. Their names need no quoting."""

import io
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.plugins import TorchCheckpointIO
from torch import Tensor

from attnscale.callbacks.names import FOLDER, LAST, PREVIOUS
from attnscale.files import write_bytes
from attnscale.signals import Stopped


class WholeCheckpoints(TorchCheckpointIO):
    """Writes a checkpoint whole or not at all.

    Lightning writes into the folder for temporary files and moves; onto another file system that is
    a copy, which a full disk cuts short under the checkpoint's own name.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Save to a path; an address such as ``s3://`` is Lightning's affair."""
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        content = io.BytesIO()
        torch.save(checkpoint, content)
        write_bytes(path, content.getbuffer())


class _NamedCheckpoint(ModelCheckpoint):
    """A ModelCheckpoint that overwrites one file in the run's folder."""

    def __init__(self, **options: Any) -> None:
        super().__init__(enable_version_counter=False, auto_insert_metric_name=False, **options)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Write below the run's folder, whatever logger there is."""
        if self.dirpath is None:
            self.dirpath = f"{trainer.default_root_dir}/{FOLDER}"
        super().setup(trainer, pl_module, stage)


class BestCheckpoint(_NamedCheckpoint):
    """Keeps ``best.ckpt``, the lowest validation loss. A loss that is not finite is never best."""

    def __init__(self) -> None:
        """Watch ``val/loss``."""
        super().__init__(filename="best", monitor="val/loss", mode="min", save_top_k=1)

    def check_monitor_top_k(self, trainer: pl.Trainer, current: Tensor | None = None) -> bool:
        """Refuse a loss that is not finite."""
        if current is not None and not torch.isfinite(current):
            return False
        return super().check_monitor_top_k(trainer, current)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the best loss so far, though a resumed run writes into a folder of its own.

        The old file stays where it is: only files in this run's folder are ever removed.
        """
        super().load_state_dict({**state_dict, "dirpath": self.dirpath})


class LastCheckpoint(_NamedCheckpoint):
    """Keeps ``last.ckpt``, what training goes on from, and the one before it, ``previous.ckpt``.

    It is the state after the last epoch or, of a run that a signal ended, after the last step.
    """

    def __init__(self) -> None:
        """Save at the end of each epoch."""
        super().__init__(filename="last", save_on_train_epoch_end=True, save_top_k=1)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up nothing: the file that training resumes from may be another run's."""

    def _save_checkpoint(self, trainer: pl.Trainer, filepath: str) -> None:
        last = Path(filepath)
        if trainer.is_global_zero and last.is_file():
            last.replace(last.with_name(PREVIOUS))
        super()._save_checkpoint(trainer, filepath)

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Save what a signal interrupted, where the state is whole."""
        if isinstance(exception, Stopped) and exception.between_steps:
            self._save_checkpoint(trainer, f"{self.dirpath}/{LAST}")
