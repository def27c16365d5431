"""The backward pass: Lightning's way or, where nothing is lost by it, the same without its detour.

Lightning asks every callback before and after each backward pass, whether it has something to do
there or not. What is left where nobody has: the strategy's own ``pre_backward`` and
``post_backward``, and ``loss.backward()``. Only public methods are called, and the gradients are
the same to the bit.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.precision import MixedPrecision, Precision
from pytorch_lightning.profilers import PassThroughProfiler
from pytorch_lightning.strategies import ParallelStrategy, Strategy
from torch import Tensor

Backward = Callable[[Tensor, bool], None]
"""Adds the gradients of a loss; the flag says whether it is the last one of a step."""

DETOURS: dict[type, tuple[str, ...]] = {
    pl.Callback: ("on_before_backward", "on_after_backward"),
    pl.LightningModule: ("on_before_backward", "on_after_backward", "backward", "manual_backward"),
    Precision: ("pre_backward", "backward", "post_backward"),
    Strategy: ("backward",),
}
"""What the short way leaves out; whoever has one of these of its own gets Lightning's way."""


def _own(owner: object, base: type, hook: str) -> bool:
    """Whether a hook is not the base's: overridden in a class, or set on the instance."""
    return getattr(getattr(owner, hook), "__func__", None) is not getattr(base, hook)


def has_detour(trainer: pl.Trainer, module: pl.LightningModule) -> bool:
    """Whether Lightning's way to make gradients does anything that the short one does not."""
    precision = trainer.precision_plugin
    callbacks: list[pl.Callback] = getattr(trainer, "callbacks")  # noqa: B009
    owners: list[tuple[object, type]] = [(callback, pl.Callback) for callback in callbacks]
    owners += [(module, pl.LightningModule), (precision, Precision), (trainer.strategy, Strategy)]
    detours = {
        getattr(owner, hook)
        for owner, base in owners
        for hook in DETOURS[base]
        if _own(owner, base, hook)
    }
    if isinstance(precision, MixedPrecision) and precision.scaler is None:
        # Without a scaler it scales nothing, and does what the base does.
        detours -= {MixedPrecision.pre_backward.__get__(precision)}
    profiled = not isinstance(getattr(trainer, "profiler"), PassThroughProfiler)  # noqa: B009
    return profiled or bool(detours)


def make_backward(trainer: pl.Trainer, module: pl.LightningModule) -> Backward:
    """Return what adds gradients while the trainer's callbacks and plug-ins stay as they are."""
    strategy, lightnings = trainer.strategy, has_detour(trainer, module)
    kind = module.device.type
    narrowed = torch.is_autocast_enabled(kind)

    def synchronised(last: bool) -> AbstractContextManager[Any]:
        if last or not isinstance(strategy, ParallelStrategy):
            return nullcontext()
        return cast(AbstractContextManager[Any], strategy.block_backward_sync())

    def wide() -> AbstractContextManager[Any]:
        # A backward pass uses the types of its forward pass, and must not be narrowed again.
        return torch.autocast(kind, enabled=False) if narrowed else nullcontext()

    def backward(loss: Tensor, last: bool) -> None:
        with synchronised(last), wide():
            if lightnings:
                module.manual_backward(loss)
                return
            strategy.pre_backward(loss)
            loss.backward()  # type: ignore[no-untyped-call]
            strategy.post_backward(loss)

    return backward
