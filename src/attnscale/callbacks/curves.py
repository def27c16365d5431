"""Loss and gradient norms of every training step.

    grad_norm/total = √ Σ_p ‖∂L/∂p‖²  over all parameters; grad_norm/q over the q projections of all
    attentions, and so on for k, v and o; grad_norm/<path>/q for one attention of several.
    train/lr: the learning rate, at each step where it changed.
    grad_norm/clipped_share: share of the steps so far whose total was above the clipping norm.

Taken before clipping and after unscaling. The figures stay tensors until a block of steps is read
back at once: reading one back each step costs more than a small model's step.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from attnscale.task.callback import StepCallback
from attnscale.task.groups import named_groups

READ_BACK_STEPS = 128

Listener = Callable[[int, float, dict[str, float]], None]
"""(step, loss, name of a gradient norm -> norm)."""


class Curves(StepCallback):
    """Records ``train/loss`` and ``grad_norm/…`` against optimizer steps."""

    def __init__(self, *, per_attention: bool) -> None:
        """Start empty.

        Args:
            per_attention: Whether models with several attentions get the norms of each too; four
                points a step for each attention.
        """
        self.per_attention = per_attention
        self.readings: list[tuple[int, float, Tensor]] = []
        self.parameters: list[torch.nn.Parameter] = []
        self.names: list[str] = []
        self.members = torch.empty(0)
        self.every = 1
        self.measured = self.clipped = 0
        self.rate = math.nan
        self.listeners: list[Listener] = []

    def state_dict(self) -> dict[str, Any]:
        """Return what the next steps' points depend on."""
        return {"rate": self.rate, "measured": self.measured, "clipped": self.clipped}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it, if the same run goes on."""
        if self._module is not None and self.module.goes_on:
            self.rate, self.measured, self.clipped = (
                state_dict[name] for name in ("rate", "measured", "clipped")
            )

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Find out which parameter counts for which norm."""
        self.every = max(1, getattr(trainer, "log_every_n_steps", 1))
        groups = named_groups(self.module.model, per_attention=self.per_attention)
        self.parameters = groups["total"]
        position = {id(p): i for i, p in enumerate(self.parameters)}
        self.names = [f"grad_norm/{name}" for name in groups]
        self.members = torch.zeros(len(self.parameters), len(groups), dtype=torch.float64)
        for column, parameters in enumerate(groups.values()):
            self.members[[position[id(p)] for p in parameters], column] = 1.0

    def before_clipping(self) -> None:
        """Keep this step's loss and the norm of each parameter's gradient, as one tensor."""
        loop = self.module.loop
        step, loss = loop.steps_done, loop.step_loss
        if step % self.every:
            return
        # The loss may be in fp32 where the weights are not.
        wide = torch.promote_types(self.parameters[0].dtype, torch.float32)
        gradients = [loss.to(wide) if p.grad is None else p.grad for p in self.parameters]
        norms = list(torch._foreach_norm(gradients, 2, wide))
        for i, p in enumerate(self.parameters):
            if p.grad is None:
                norms[i] = torch.zeros_like(norms[i])
        rate = float(self.module.trainer.optimizers[0].param_groups[0]["lr"])
        if rate != self.rate:
            self.rate = rate
            self.module.write({"train/lr": rate}, step)
        self.readings.append((step, time.time(), torch.stack([loss.to(wide), *norms])))
        if len(self.readings) >= READ_BACK_STEPS:
            self.read_back()

    @torch.no_grad()
    def read_back(self, *, together: bool = True) -> None:
        """Turn the kept tensors into points.

        Args:
            together: Whether all processes read back now, so that losses can be averaged over them.
        """
        if not self.readings:
            return
        module = self.module
        steps, times, rows = zip(*self.readings, strict=True)
        table = torch.stack(rows)
        if together and module.trainer.world_size > 1:
            table[:, 0] = module.all_gather(table[:, 0].contiguous()).mean(dim=0)  # type: ignore[union-attr]
        wide = table.double().cpu()
        squares = wide[:, 1:].square()
        summed = squares @ self.members
        if not bool(squares.isfinite().all()):
            # 0 · ∞ is NaN: a group would look broken by a parameter that is not its own.
            own = [squares[:, member > 0].sum(dim=1) for member in self.members.T]
            summed = torch.stack(own, dim=1)
        norms = summed.sqrt().tolist()
        losses = wide[:, 0].tolist()
        limit = module.loop.settings.clip_value
        clips = bool(limit) and module.loop.settings.clip_algorithm != "value"
        for step, at, loss, row in zip(steps, times, losses, norms, strict=True):
            figures = dict(zip(self.names, row, strict=True))
            if clips:
                self.measured += 1
                self.clipped += figures["grad_norm/total"] > limit
            module.write({"train/loss": loss, **figures}, step, int(at * 1000))
            if together:
                self._check(loss, figures, step)
                for listener in self.listeners:
                    listener(step, loss, figures)
        if clips:
            module.write({"grad_norm/clipped_share": self.clipped / self.measured}, steps[-1])
        module.results["train/loss"] = losses[-1]
        self.readings = []

    def _check(self, loss: float, figures: dict[str, float], step: int) -> None:
        """Note the first figure that is not finite: the loss, else the gradient nearest to it."""
        if not math.isfinite(loss):
            self.module.mark_diverged("train/loss", step)
        elif not math.isfinite(figures["grad_norm/total"]):
            if getattr(self.module.trainer.precision_plugin, "scaler", None) is not None:
                return  # The gradient scaler skips such a step and goes on.
            broken = [name for name in self.names if not math.isfinite(figures[name])]
            self.module.mark_diverged(max(broken, key=lambda name: name.count("/")), step)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Read back, so that the first figure that is not finite is the one named."""
        self.read_back()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Read back, so that a loss that is not finite ends training here at the latest."""
        self.read_back()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Keep what was measured, without waiting for other processes."""
        self.read_back(together=False)
