"""Who looks at training steps from inside: taps of a forward pass, weights around a step."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

from attnscale.attention import Attended, tapped

if TYPE_CHECKING:
    from attnscale.task.stepping import SteppedModule

Receiver = Callable[[str, Attended], None]


class StepObserver(Protocol):
    """Is asked at every step; what it does not want costs next to nothing."""

    def receiver(self, module: "SteppedModule", batch: Any) -> Receiver | None:
        """Return who receives the taps of this batch's forward pass, or None for nobody."""

    def before_step(self, module: "SteppedModule") -> None:
        """Look at gradients after clipping, and at weights before the step."""

    def after_step(self, module: "SteppedModule") -> None:
        """Look at, or change, the weights after the step."""


def watched(
    module: "SteppedModule", model: nn.Module, observers: Sequence[StepObserver], batch: Any
) -> AbstractContextManager[Any]:
    """Return the context in which the forward pass of a batch is to run."""
    found = [observer.receiver(module, batch) for observer in observers]
    receivers = [receiver for receiver in found if receiver is not None]
    if not receivers:
        return nullcontext()

    def receive(path: str, attended: Attended) -> None:
        for receiver in receivers:
            receiver(path, attended)

    return tapped(model, receive)
