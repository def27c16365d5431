"""How gradients become steps, how the learning rate changes, and when training ends.

The factor on the learning rate, with warm-up steps w, total steps T and step t (from 0):

    constant      min(1, (t+1)/w)
    cosine        min(1, (t+1)/w) during warm-up, then ½(1 + cos(π (t−w)/(T−w)))
    inverse_sqrt  min((t+1)/w, √(w/(t+1))), w at least 1; Vaswani et al. 2017, equation 3, as a
                  factor that peaks at 1 instead of an absolute rate
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from attnscale.checks import check_choice, check_min

CLIP_ALGORITHMS = ("norm", "value")
SCHEDULES = ("constant", "cosine", "inverse_sqrt")

Schedule = Callable[[int], float]


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
        check_min("trainer.accumulate_grad_batches", self.accumulate)
        check_min("trainer.gradient_clip_val", self.clip_value, 0)
        if self.clip_algorithm is not None:
            check_choice("trainer.gradient_clip_algorithm", self.clip_algorithm, CLIP_ALGORITHMS)

    def steps_per_epoch(self, n_batches: int) -> int:
        """Return the optimizer steps of an epoch of so many batches."""
        return math.ceil(n_batches / self.accumulate)

    def total_steps(self, n_batches: int) -> int | None:
        """Return the optimizer steps of the whole run, or None if it has no end."""
        ends = [self.max_steps] if self.max_steps >= 0 else []
        if self.max_epochs is not None and self.max_epochs >= 0:
            ends.append(self.max_epochs * self.steps_per_epoch(n_batches))
        return min(ends) if ends else None


def make_schedule(name: str, *, warmup: int, total: int | None) -> Schedule | None:
    """Return the factor as a function of the step, or None where it is always 1.

    Args:
        name: One of :data:`SCHEDULES`.
        warmup: Optimizer steps of linear warm-up, from 0.
        total: Optimizer steps of the whole run, or None if it has no end.

    Raises:
        ValueError: For an unknown name, a negative warm-up, or a cosine without an end.
    """
    check_choice("optimizer.schedule", name, SCHEDULES)
    check_min("optimizer.warmup_steps", warmup, 0)
    if name == "cosine" and total is None:
        raise ValueError(
            "optimizer.schedule=cosine: needs an end; set trainer.max_epochs or trainer.max_steps"
        )
    if name == "constant" and warmup == 0:
        return None
    peak, falling = max(1, warmup), max(1, (total or 0) - warmup)

    def factor(step: int) -> float:
        if step < warmup or name == "constant":
            return min(1.0, (step + 1) / peak)
        if name == "inverse_sqrt":
            return math.sqrt(peak / (step + 1))
        return 0.5 * (1.0 + math.cos(math.pi * min(1.0, (step - warmup) / falling)))

    return factor
