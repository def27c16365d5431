"""Gradients after clipping, and the size of the steps: what ``curves`` does not record each step.

    grad_norm_clipped/<group>   norm after clipping, where clipping is on
    update_ratio/<group>        ‖ΔW‖ / ‖W‖ of a step, ΔW taken across ``optimizer.step``,
                                before anything else (QK-Clip) changes weights
    grad_norm/skipped           1 at a step that the gradient scaler skipped (fp16), else 0

A group is total, q, k, v, o (over all attentions). Gradients are unscaled, accumulated, averaged
over processes: what the optimizer sees.
"""

from collections.abc import Sequence
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from attnscale.callbacks.attention_stats import stride
from attnscale.checks import check_min
from attnscale.task.callback import StepCallback
from attnscale.task.groups import named_groups


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    if not tensors:
        return torch.zeros(())
    wide = torch.promote_types(tensors[0].dtype, torch.float32)
    norms = torch._foreach_norm(list(tensors), 2, wide)
    total: Tensor = torch.linalg.vector_norm(torch.stack(list(norms)))
    return total


class GradientStats(StepCallback):
    """Records clipped norms and update-to-weight ratios every so many steps."""

    def __init__(self, *, every: int | None) -> None:
        """Choose how often.

        Args:
            every: Optimizer steps between samples; None for one per 100 steps, and at least 15.

        Raises:
            ValueError: If ``every`` is below 1.
        """
        check_min("callbacks.gradient_stats.every", every, or_else=", or null")
        self.every, self.steps_between = every, 1
        self.groups: dict[str, list[nn.Parameter]] = {}
        self.before: list[Tensor] = []
        self.figures: dict[str, Tensor] = {}
        self.scaler: Any = None
        self.scale = 1.0
        self.step = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Find the groups."""
        self.steps_between = stride(self.every, self.module.total_steps)
        self.groups = named_groups(self.module.model, per_attention=False)
        self.scaler = getattr(trainer.precision_plugin, "scaler", None)

    @torch.no_grad()
    def before_step(self) -> None:
        """Take clipped gradients and a copy of the weights, at a sampled step."""
        self.step = self.module.loop.steps_done
        scaler = self.scaler
        if scaler is not None:
            self.scale = scaler.get_scale()
        if self.step % self.steps_between:
            return
        if self.module.loop.settings.clip_value:
            self.figures = {
                f"grad_norm_clipped/{name}": _norm([p.grad for p in ps if p.grad is not None])
                for name, ps in self.groups.items()
            }
        self.before = [p.detach().clone() for p in self.groups["total"]]

    @torch.no_grad()
    def after_step(self) -> None:
        """Record how far the weights went, and whether the step was skipped."""
        scaler = self.scaler
        if scaler is not None:
            # A scaler that found an overflow leaves the weights alone and lowers its scale.
            skipped = float(scaler.get_scale() < self.scale)
            self.module.write({"grad_norm/skipped": skipped}, self.step)
        if not self.before:
            return
        ids = [id(p) for p in self.groups["total"]]
        changes = torch._foreach_sub([p.detach() for p in self.groups["total"]], self.before)
        moved, old = (dict(zip(ids, tensors, strict=True)) for tensors in (changes, self.before))
        for name, parameters in self.groups.items():
            change = _norm([moved[id(p)] for p in parameters])
            size = _norm([old[id(p)] for p in parameters])
            self.figures[f"update_ratio/{name}"] = change / size.clamp_min(1e-30)
        values = torch.stack(list(self.figures.values())).tolist()
        self.module.write(dict(zip(self.figures, values, strict=True)), self.step)
        self.before, self.figures = [], {}
