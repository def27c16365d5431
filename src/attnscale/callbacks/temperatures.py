"""What the scale modes have learned to multiply logits by, at each validation.

    attention/<path>/temperature              mean over heads
    attention/<path>/head<i>/temperature      of one head, where heads differ

Nothing is recorded for modes that learn no temperature.
"""

import pytorch_lightning as pl

from attnscale.attention import attentions
from attnscale.task.callback import TaskCallback


class Temperatures(TaskCallback):
    """Records the temperatures before the first step and at each validation."""

    def __init__(self, *, per_head: bool) -> None:
        """Choose the detail.

        Args:
            per_head: Whether each head gets points of its own.
        """
        self.per_head = per_head

    def record(self, step: int) -> None:
        """Write the temperatures as they are now."""
        figures: dict[str, float] = {}
        for path, attention in attentions(self.module.model).items():
            found = attention.temperature()
            if found is None:
                continue
            values = found.float().tolist()
            figures[f"attention/{path}/temperature"] = sum(values) / len(values)
            if self.per_head and len(values) > 1:
                figures |= {
                    f"attention/{path}/head{head}/temperature": value
                    for head, value in enumerate(values)
                }
        if figures:
            self.module.write(figures, step)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the start."""
        self.record(trainer.global_step)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record at each validation."""
        if trainer.state.fn == "fit":
            self.record(trainer.global_step)
