"""How gradients become steps, and when training ends."""

import math
from dataclasses import dataclass

CLIP_ALGORITHMS = ("norm", "value")


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """How gradients become steps.

    Attributes:
        accumulate: Batches per optimizer step.
        clip_value: Largest gradient norm or value, or None.
        clip_algorithm: "norm" (of all parameters together) or "value" (of each component).
        max_steps: Optimizer steps after which training ends, −1 for no such end.
        max_epochs: Epochs after which training ends, or None or −1 for no such end.
        schedule: Name of the learning-rate schedule.
        warmup: Optimizer steps of warm-up.
    """

    accumulate: int
    clip_value: float | None
    clip_algorithm: str | None
    max_steps: int
    max_epochs: int | None
    schedule: str
    warmup: int

    def __post_init__(self) -> None:
        """Check the values against what is allowed."""
        if self.accumulate < 1:
            raise ValueError(
                f"trainer.accumulate_grad_batches={self.accumulate}: must be at least 1"
            )
        if self.clip_value is not None and self.clip_value < 0:
            raise ValueError(f"trainer.gradient_clip_val={self.clip_value}: must be at least 0")
        if self.clip_algorithm not in (None, *CLIP_ALGORITHMS):
            raise ValueError(
                f"trainer.gradient_clip_algorithm={self.clip_algorithm}: "
                f"allowed are {', '.join(CLIP_ALGORITHMS)}"
            )

    def steps_per_epoch(self, n_batches: int) -> int:
        """Return the optimizer steps of an epoch of so many batches."""
        return math.ceil(n_batches / self.accumulate)

    def total_steps(self, n_batches: int) -> int | None:
        """Return the optimizer steps of the whole run, or None if it has no end."""
        ends = [self.max_steps] if self.max_steps >= 0 else []
        if self.max_epochs is not None and self.max_epochs >= 0:
            ends.append(self.max_epochs * self.steps_per_epoch(n_batches))
        return min(ends) if ends else None
