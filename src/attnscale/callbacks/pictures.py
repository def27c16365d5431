"""Arrays of attention at the start, at chosen epochs and at the end; drawn once, at the end.

    pictures/step_<n>.npz      weights/<path> (example, head, query, key), fp16
                               counts/<path>, edges/<path>: logits less their row's mean
                               predicted/<path>: standard deviation that theory gives them
                               queries/<path>, keys/<path>: tokens, as JSON

A snapshot is a forward pass of a few fixed validation examples in evaluation mode; it draws no
random number and changes no state. The PNG files are drawn by the main process from these arrays.
"""

import io
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
from attnscale.checks import check_min
from attnscale.files import write_bytes
from attnscale.task.callback import TaskCallback

FOLDER = "pictures"
BINS = 61
ARTIFACTS = "attention"


class Pictures(TaskCallback):
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
        check_min("callbacks.pictures.examples", examples)
        check_min("callbacks.pictures.histogram_examples", histogram_examples)
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

    def hear(self, step: int, path: str, values: dict[str, list[float]]) -> None:
        """Keep the entropies of the attentions."""
        if "entropy_norm" in values:
            self.entropies.setdefault(path, []).append((step, values["entropy_norm"]))

    def state_dict(self) -> dict[str, Any]:
        """Return which steps were saved, and the entropies so far."""
        return {"saved": self.saved, "entropies": self.entropies}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take them, if the same run goes on: its files are there."""
        if self.module.goes_on:
            self.saved = list(state_dict["saved"])
            self.entropies = {
                path: [(step, list(values)) for step, values in each]
                for path, each in state_dict["entropies"].items()
            }

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the start; a run that goes on has saved it."""
        if not self.saved:
            self.save()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save after a chosen epoch."""
        if trainer.current_epoch + 1 in self.epochs:
            self.save()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the end, and draw."""
        self.save()
        if trainer.is_global_zero and self.saved:
            self.draw()

    @torch.no_grad()
    def save(self) -> None:
        """Look at the fixed examples, and write the arrays of this step; main process only."""
        module, trainer = self.module, self.module.trainer
        step = trainer.global_step
        if not trainer.is_global_zero or step in self.saved:
            return
        if self.batch is None:
            examples = module.data.examples(self.count)
            if examples is None:
                return
            examples = module.transfer_batch_to_device(examples, module.device, 0)
            # In the number format of the weights, as Lightning does for the batches that train.
            self.batch = trainer.precision_plugin.convert_input(examples)
        arrays: dict[str, Any] = {}

        def receive(path: str, attended: Attended) -> None:
            arrays.update(self._arrays(path, attended))

        training = module.training
        module.eval()
        try:
            with tapped(module.model, receive), trainer.precision_plugin.forward_context():
                module.loss(self.batch)
        finally:
            module.train(training)
        content = io.BytesIO()
        np.savez_compressed(content, **arrays)
        write_bytes(self.folder / f"step_{step:07d}.npz", content.getvalue())
        self.saved.append(step)

    def _arrays(self, path: str, attended: Attended) -> dict[str, Any]:
        real = self.module.real_queries(attended.queries, self.batch)
        keep, rows = counted_rows(attended, real)
        logits, pairs = attended.logits(), keep & rows[..., None]
        n = keep.sum(dim=-1, keepdim=True).clamp_min(1)
        mean = logits.masked_fill(~keep, 0.0).sum(dim=-1, keepdim=True) / n
        centred = (logits - mean)[pairs].float().cpu().numpy()
        centred = centred[np.isfinite(centred)]
        bound = max(float(np.abs(centred).max()) if centred.size else 1.0, 1e-6)
        counts, edges = np.histogram(centred, BINS, range=(-bound, bound))
        predicted = predicted_std(attended, real) if bool(rows.any()) else 0.0
        queries, keys = (
            self.module.data.labels(side, self.batch, self.examples)
            for side in (attended.queries, attended.keys)
        )
        return {
            f"weights/{path}": attended.weights()[: self.examples].half().cpu().numpy(),
            f"counts/{path}": counts,
            f"edges/{path}": edges.astype(np.float32),
            f"predicted/{path}": np.float32(predicted),
            f"queries/{path}": np.array(json.dumps(queries, ensure_ascii=False)),
            f"keys/{path}": np.array(json.dumps(keys, ensure_ascii=False)),
        }

    def draw(self) -> None:
        """Draw the pictures from the saved arrays, and hand them to the record."""
        from attnscale.figures.attention import drawings
        from attnscale.figures.page import to_png

        files = {step: self.folder / f"step_{step:07d}.npz" for step in self.saved}
        for name, spec in drawings(files, self.entropies).items():
            write_bytes(self.folder / f"{name}.png", to_png(spec))
        self.module.artifacts(self.folder, ARTIFACTS)
