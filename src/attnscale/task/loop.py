"""A training step, the same for all tasks.

A step is a forward and a backward pass for each of ``accumulate`` batches, clipping, and a step of
the optimizer. Observers look in at four places::

    for each batch:
        forward             receiver(batch) gets the taps
        backward
    before_clipping()       gradients, accumulated, averaged over processes, unscaled
    clip
    before_step()           gradients as the optimizer sees them, weights as they were
    optimizer.step()
    after_step()            weights as they are now

Those that only read are asked before those that write, so that what is measured is of this step.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from attnscale.attention import Attended, tapped
from attnscale.task.settings import StepSettings

Receiver = Callable[[str, Attended], None]


class StepObserver:
    """Looks at training steps from inside; what it does not override costs next to nothing."""

    writes: ClassVar[bool] = False
    """Whether it changes weights; it then comes after those that do not."""

    def receiver(self, batch: Any) -> Receiver | None:
        """Return who receives the taps of this batch's forward pass; by default nobody."""
        return None

    def before_clipping(self) -> None:
        """Look at the gradients before they are clipped; by default do nothing."""

    def before_step(self) -> None:
        """Look at clipped gradients, and weights before the step; by default do nothing."""

    def after_step(self) -> None:
        """Look at the weights after the step or, if it writes, change them; by default nothing."""


@dataclass(frozen=True)
class Diverged:
    """Where a figure stopped being finite."""

    metric: str
    step: int


class StepLoop:
    """Trains a model batch by batch, and knows how far it is.

    Attributes:
        steps_done: Optimizer steps since training began, those before a resumption included.
        batches_done: Batches of this epoch.
        step_loss: Loss of the step so far, a detached scalar.
        diverged: Where a figure stopped being finite, or None.
        stop_when_diverged: Whether training ends there.
        after_step: Called when a step is whole; may raise to end training.
    """

    def __init__(self, model: nn.Module, settings: StepSettings) -> None:
        """Start at step 0, without observers."""
        self.model, self.settings = model, settings
        self.steps_done = self.batches_done = 0
        self.step_loss = torch.zeros(())
        self.diverged: Diverged | None = None
        self.stop_when_diverged = True
        self.observers: list[StepObserver] = []
        self.after_step: Callable[[], None] = lambda: None

    def run(
        self,
        batches: Sequence[Any],
        *,
        loss: Callable[[Any], Tensor],
        backward: Callable[[Tensor, bool], None],
        optimizer: torch.optim.Optimizer,
        schedule: LRScheduler | None,
        n_batches: int,
    ) -> None:
        """Train on some batches in turn.

        Args:
            batches: The next batches of the epoch.
            loss: Batch to this process's loss, a scalar.
            backward: Adds the gradients of a loss, which may be the last one of a step.
            optimizer: Its step calls :meth:`before_optimizer_step` before it moves the weights.
            schedule: Sets the learning rate after each step, or None.
            n_batches: Batches of the whole epoch; the last step may have fewer than the others.
        """
        accumulate = self.settings.accumulate
        for batch in batches:
            if self.ended:
                return
            position = self.batches_done % accumulate
            group = min(accumulate, n_batches - (self.batches_done - position))
            last = position == group - 1
            if position == 0:
                optimizer.zero_grad()
            with self._watched(batch):
                scalar = loss(batch)
            if group > 1:
                scalar = scalar / group
            backward(scalar, last)
            detached = scalar.detach()
            self.step_loss = detached if position == 0 else self.step_loss + detached
            self.batches_done += 1
            if last:
                optimizer.step()
                self.steps_done += 1
                for observer in self.observers:
                    observer.after_step()
                if schedule is not None:
                    schedule.step()
                self.after_step()

    def before_optimizer_step(self) -> None:
        """Show the gradients, clip them, and show them again."""
        for observer in self.observers:
            observer.before_clipping()
        limit = self.settings.clip_value
        if limit and self.settings.clip_algorithm == "value":
            nn.utils.clip_grad_value_(self.model.parameters(), limit)
        elif limit:
            nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        for observer in self.observers:
            observer.before_step()

    @property
    def stopped(self) -> bool:
        """Whether training ends because it has diverged."""
        return self.diverged is not None and self.stop_when_diverged

    @property
    def ended(self) -> bool:
        """Whether no further batch is trained on."""
        return self.stopped or 0 <= self.settings.max_steps <= self.steps_done

    def mark_diverged(self, metric: str, step: int) -> None:
        """Note where a figure stopped being finite; the first one counts."""
        if self.diverged is None:
            self.diverged = Diverged(metric, step)

    # --- observers ---

    def add(self, observer: StepObserver) -> None:
        """Ask an observer at every step from now on, once; those that write come last."""
        if observer not in self.observers:
            self.observers = sorted([*self.observers, observer], key=lambda one: one.writes)

    def remove(self, observer: StepObserver) -> None:
        """Ask an observer no longer, if it was asked."""
        self.observers = [one for one in self.observers if one is not observer]

    def _watched(self, batch: Any) -> AbstractContextManager[Any]:
        """Return the context in which the forward pass of a batch is to run."""
        each = [observer.receiver(batch) for observer in self.observers]
        receivers = [receiver for receiver in each if receiver is not None]
        if not receivers:
            return nullcontext()

        def receive(path: str, attended: Attended) -> None:
            for receiver in receivers:
                receiver(path, attended)

        return tapped(self.model, receive)
