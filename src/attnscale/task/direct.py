"""Backward pass and optimizer step without Lightning's detour, where nothing needs it.

Lightning calls every callback around each backward pass and step, overridden or not, which takes
about a tenth of a small model's step. Without a gradient scaler, on one device or under DDP, what
is left of the detour is: prepare the reducer, ``loss.backward()``, the ``on_before_optimizer_step``
of those callbacks that have one, ``optimizer.step()``, and the count of steps. The curves are
bit-identical; a test says so.
"""

import pytorch_lightning as pl
import torch
from pytorch_lightning.core.optimizer import LightningOptimizer
from pytorch_lightning.plugins.precision import MixedPrecision, Precision
from pytorch_lightning.profilers import PassThroughProfiler
from pytorch_lightning.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor

DETOURS = (
    "on_before_backward",
    "on_after_backward",
    "on_before_zero_grad",
    "optimizer_step",
    "backward",
)
"""Hooks that the direct path leaves out; whoever has one gets Lightning's way."""


def _has(owner: object, base: type, hook: str) -> bool:
    return getattr(type(owner), hook, None) is not getattr(base, hook, None)


class DirectPath:
    """Steps one optimizer of one module."""

    def __init__(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Collect the callbacks that look at gradients."""
        self.trainer, self.module = trainer, module
        self.prepare = trainer.world_size > 1
        self.watchers = [
            callback
            for callback in trainer.callbacks  # type: ignore[attr-defined]
            if _has(callback, pl.Callback, "on_before_optimizer_step")
        ]

    @staticmethod
    def possible(trainer: pl.Trainer, module: pl.LightningModule) -> bool:
        """Whether Lightning's way would do nothing more than this one."""
        precision, strategy = trainer.precision_plugin, trainer.strategy
        plain = not _has(precision, Precision, "backward") and (
            not _has(precision, Precision, "optimizer_step")
            or (type(precision) is MixedPrecision and precision.scaler is None)
        )
        hooked = any(
            _has(callback, pl.Callback, hook)
            for callback in trainer.callbacks  # type: ignore[attr-defined]
            for hook in DETOURS
        ) or any(_has(module, pl.LightningModule, hook) for hook in DETOURS)
        return (
            plain
            and not hooked
            and type(strategy) in (SingleDeviceStrategy, DDPStrategy)
            and isinstance(getattr(trainer, "profiler"), PassThroughProfiler)  # noqa: B009
        )

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss."""
        if self.prepare:
            self.trainer.strategy.pre_backward(loss)
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self, optimizer: LightningOptimizer) -> None:
        """Show the gradients to who looks at them, and step."""
        raw: torch.optim.Optimizer = optimizer.optimizer
        optimizer._on_before_step()
        for callback in self.watchers:
            callback.on_before_optimizer_step(self.trainer, self.module, raw)
        self.module.on_before_optimizer_step(raw)
        raw.step()
        optimizer._on_after_step()
