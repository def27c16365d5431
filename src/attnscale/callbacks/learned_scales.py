"""What the scale modes have learned to multiply logits by, at each validation.

    attention/<path>/learned_scale              mean over heads
    attention/<path>/head<i>/learned_scale      of one head, where heads differ

Nothing is recorded for modes that learn no scale.
"""

import pytorch_lightning as pl

from attnscale.attention import attentions
from attnscale.callbacks.attention_stats import head_figures
from attnscale.task.callback import TaskCallback


class LearnedScales(TaskCallback):
    """Records the learned scales before the first step and at each validation."""

    def __init__(self, *, per_head: bool) -> None:
        """Choose whether each head gets points of its own."""
        self.per_head = per_head

    def write(self, step: int) -> None:
        """Write the learned scales as they are now."""
        figures: dict[str, float] = {}
        for path, attention in attentions(self.module.model).items():
            learned = attention.learned_scale()
            if learned is not None:
                values = {"learned_scale": learned.float().tolist()}
                figures |= head_figures(path, values, per_head=self.per_head)
        if figures:
            self.module.write(figures, step)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the start; a run that goes on has that of the same run."""
        if not self.module.goes_on:
            self.write(trainer.global_step)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record at each validation."""
        if trainer.state.fn == "fit":
            self.write(trainer.global_step)
