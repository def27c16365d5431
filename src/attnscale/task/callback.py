"""Callbacks that know the task they watch, and those among them that look inside a step."""

import pytorch_lightning as pl

from attnscale.task.loop import StepObserver
from attnscale.task.module import TaskModule


class TaskCallback(pl.Callback):
    """A callback of runs of this project: its task is ``self.module``, from setup on."""

    _module: TaskModule | None = None

    @property
    def module(self) -> TaskModule:
        """Return the task.

        Raises:
            RuntimeError: If no run has set the callback up.
        """
        if self._module is None:
            raise RuntimeError(f"{type(self).__name__} has no task before a run has set it up")
        return self._module

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Take the task.

        Raises:
            TypeError: If the module is none of this project's.
        """
        if not isinstance(pl_module, TaskModule):
            raise TypeError(
                f"callbacks: {type(self).__name__} watches a TaskModule, not a "
                f"{type(pl_module).__name__}"
            )
        self._module = pl_module


class StepCallback(TaskCallback, StepObserver):
    """A callback that looks inside steps.

    The loop asks it from setup to teardown of a fit, those that write weights after the others,
    whatever the order of the callbacks.
    """

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Take the task, and look at its steps if it trains."""
        super().setup(trainer, pl_module, stage)
        if stage == "fit":
            self.module.loop.add(self)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Stop looking."""
        self.module.loop.remove(self)
