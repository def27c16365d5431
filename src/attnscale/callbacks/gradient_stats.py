"""Gradients after clipping, and the size of the steps: what ``curves`` does not record each step.

    grad_norm_clipped/<group>   norm after clipping, where clipping is on
    update_ratio/<group>        ‖ΔW‖ / ‖W‖ of a step, ΔW taken across ``optimizer.step``
    grad_norm/skipped           1 at a step that the gradient scaler skipped (fp16), else 0

A group is total, q, k, v, o (over all attentions). Gradients are unscaled, accumulated, averaged
over processes: what the optimizer sees.
"""

from collections.abc import Sequence
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from attnscale.attention import attentions
from attnscale.callbacks.attention_stats import stride
from attnscale.task.observing import Receiver
from attnscale.task.stepping import SteppedModule

PROJECTIONS = ("q", "k", "v", "o")


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    if not tensors:
        return torch.zeros(())
    wide = torch.promote_types(tensors[0].dtype, torch.float32)
    norms = torch._foreach_norm(list(tensors), 2, wide)
    total: Tensor = torch.linalg.vector_norm(torch.stack(list(norms)))
    return total


class GradientStats(pl.Callback):
    """Records clipped norms and update-to-weight ratios every so many steps."""

    def __init__(self, *, every: int | None) -> None:
        """Choose how often.

        Args:
            every: Optimizer steps between samples; None for one per 100 steps, and at least 15.

        Raises:
            ValueError: If ``every`` is below 1.
        """
        if every is not None and every < 1:
            raise ValueError(f"callbacks.gradient_stats.every={every}: must be at least 1, or null")
        self.every, self.steps_between = every, 1
        self.groups: dict[str, list[nn.Parameter]] = {}
        self.before: list[Tensor] = []
        self.figures: dict[str, Tensor] = {}
        self.scaler: Any = None
        self.scale = 1.0
        self.step = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Find the groups, and start looking."""
        assert isinstance(pl_module, SteppedModule)
        total = pl_module.stepping.total_steps(trainer.train_dataloader.n_batches)  # type: ignore[union-attr]
        self.steps_between = stride(self.every, total)
        trained = [p for p in pl_module.model.parameters() if p.requires_grad]
        self.groups = {"total": trained}
        for name in PROJECTIONS:
            found = attentions(pl_module.model).values()
            self.groups[name] = [
                p for attention in found for p in attention.projections()[name] if p.requires_grad
            ]
        self.scaler = getattr(trainer.precision_plugin, "scaler", None)
        pl_module.observers.append(self)

    def receiver(self, module: SteppedModule, batch: Any) -> Receiver | None:
        """Look at no tap."""
        return None

    @torch.no_grad()
    def before_step(self, module: SteppedModule) -> None:
        """Take clipped gradients and a copy of the weights, at a sampled step."""
        self.step = module.steps_done
        scaler = self.scaler
        if scaler is not None:
            self.scale = scaler.get_scale()
        if self.step % self.steps_between:
            return
        if module.stepping.clip_value:
            self.figures = {
                f"grad_norm_clipped/{name}": _norm([p.grad for p in ps if p.grad is not None])
                for name, ps in self.groups.items()
            }
        self.before = [p.detach().clone() for p in self.groups["total"]]

    @torch.no_grad()
    def after_step(self, module: SteppedModule) -> None:
        """Record how far the weights went, and whether the step was skipped."""
        scaler = self.scaler
        if scaler is not None:
            # A scaler that found an overflow leaves the weights alone and lowers its scale.
            module.write({"grad_norm/skipped": float(scaler.get_scale() < self.scale)}, self.step)
        if not self.before:
            return
        moved = dict(
            zip(
                map(id, self.groups["total"]),
                torch._foreach_sub([p.detach() for p in self.groups["total"]], self.before),
                strict=True,
            )
        )
        old = dict(zip(map(id, self.groups["total"]), self.before, strict=True))
        for name, parameters in self.groups.items():
            change = _norm([moved[id(p)] for p in parameters])
            size = _norm([old[id(p)] for p in parameters])
            self.figures[f"update_ratio/{name}"] = change / size.clamp_min(1e-30)
        values = torch.stack(list(self.figures.values())).tolist()
        module.write(dict(zip(self.figures, values, strict=True)), self.step)
        self.before, self.figures = [], {}

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop looking."""
        assert isinstance(pl_module, SteppedModule)
        if self in pl_module.observers:
            pl_module.observers.remove(self)
