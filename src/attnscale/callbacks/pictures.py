"""Arrays of attention at the start, at chosen epochs and at the end; drawn once, at the end.

    pictures/step_<n>.npz      weights/<path> (example, head, query, key), fp16
                               counts/<path>, edges/<path>: logits less their row's mean
                               predicted/<path>: standard deviation that theory gives them
                               queries/<path>, keys/<path>: tokens, as JSON

A snapshot is a forward pass of a few fixed validation examples in evaluation mode; it draws no
random number and changes no state. The PNG files are drawn by the main process from these arrays.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch

from attnscale.attention import Attended, tapped
from attnscale.attention.stats import counted_rows, predicted_std
from attnscale.callbacks.attention_stats import AttentionStats
from attnscale.task.stepping import SteppedModule
from attnscale.tracking.logger import MLflowLogger

FOLDER = "pictures"
BINS = 61
ARTIFACTS = "attention"


class Pictures(pl.Callback):
    """Saves arrays of attention while it trains, and draws them when training ends."""

    def __init__(self, *, examples: int, histogram_examples: int, epochs: Sequence[int]) -> None:
        """Choose what is saved.

        Args:
            examples: Validation examples whose maps are saved.
            histogram_examples: Validation examples whose logits are counted.
            epochs: Numbers of finished epochs after which to save, beside start and end.

        Raises:
            ValueError: If a number is below 1.
        """
        for name, value in (("examples", examples), ("histogram_examples", histogram_examples)):
            if value < 1:
                raise ValueError(f"callbacks.pictures.{name}={value}: must be at least 1")
        self.examples, self.count, self.epochs = examples, histogram_examples, set(epochs)
        self.folder = Path(FOLDER)
        self.batch: Any = None
        self.saved: list[int] = []
        self.entropies: dict[str, list[tuple[int, list[float]]]] = {}

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Find the folder, and listen for entropies."""
        self.folder = Path(trainer.default_root_dir) / FOLDER
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, AttentionStats) and self.hear not in callback.listeners:
                callback.listeners.append(self.hear)

    def hear(
        self, module: SteppedModule, step: int, path: str, values: dict[str, list[float]]
    ) -> None:
        """Keep the entropies of the attentions."""
        if "entropy_norm" in values:
            self.entropies.setdefault(path, []).append((step, values["entropy_norm"]))

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the start."""
        self.save(trainer, pl_module)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save after a chosen epoch."""
        if trainer.current_epoch + 1 in self.epochs:
            self.save(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the end, and draw."""
        self.save(trainer, pl_module)
        assert isinstance(pl_module, SteppedModule)
        if trainer.is_global_zero and self.saved:
            self.draw(pl_module)

    @torch.no_grad()
    def save(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Look at the fixed examples, and write the arrays of this step; main process only."""
        assert isinstance(module, SteppedModule)
        step = trainer.global_step
        if not trainer.is_global_zero or step in self.saved:
            return
        if self.batch is None:
            found = module.picture_batch(self.count)
            # In the number format of the weights, as Lightning does for the batches that train.
            self.batch = trainer.precision_plugin.convert_input(found)
        if self.batch is None:
            return
        arrays: dict[str, Any] = {}

        def receive(path: str, attended: Attended) -> None:
            arrays.update(self._arrays(module, path, attended))

        training = module.training
        module.eval()
        try:
            with tapped(module.model, receive), module.picture_context():
                module.loss(self.batch)
        finally:
            module.train(training)
        self.folder.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(self.folder / f"step_{step:07d}.npz", **arrays)
        self.saved.append(step)

    def _arrays(self, module: SteppedModule, path: str, attended: Attended) -> dict[str, Any]:
        real = module.real_queries(path, self.batch)
        keep, rows = counted_rows(attended, real)
        logits, kept = attended.logits(), keep & rows[..., None]
        n = keep.sum(dim=-1, keepdim=True).clamp_min(1)
        mean = logits.masked_fill(~keep, 0.0).sum(dim=-1, keepdim=True) / n
        centred = (logits - mean)[kept].float().cpu().numpy()
        centred = centred[np.isfinite(centred)]
        bound = max(float(np.abs(centred).max()) if centred.size else 1.0, 1e-6)
        counts, edges = np.histogram(centred, BINS, range=(-bound, bound))
        predicted = predicted_std(attended, real) if bool(rows.any()) else 0.0
        queries, keys = module.labels(path, self.batch, self.examples)
        return {
            f"weights/{path}": attended.weights()[: self.examples].half().cpu().numpy(),
            f"counts/{path}": counts,
            f"edges/{path}": edges.astype(np.float32),
            f"predicted/{path}": np.float32(predicted),
            f"queries/{path}": np.array(json.dumps(queries, ensure_ascii=False)),
            f"keys/{path}": np.array(json.dumps(keys, ensure_ascii=False)),
        }

    def draw(self, module: SteppedModule) -> None:
        """Draw the pictures from the saved arrays, and hand them to the record."""
        from attnscale.figures.page import to_png
        from attnscale.figures.saved import drawings

        files = {step: self.folder / f"step_{step:07d}.npz" for step in self.saved}
        for name, spec in drawings(files, self.entropies).items():
            path = self.folder / f"{name}.png"
            path.write_bytes(to_png(spec))
        for logger in module.trainer.loggers:
            if isinstance(logger, MLflowLogger):
                for path in sorted(self.folder.iterdir()):
                    logger.record.file(path, ARTIFACTS)
