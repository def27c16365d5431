"""Learning-rate schedules: the factor on the learning rate after a number of optimizer steps.

With warm-up steps w, total steps T and step t (from 0):

    constant      min(1, (t+1)/w)
    cosine        min(1, (t+1)/w) during warm-up, then ½(1 + cos(π (t−w)/(T−w)))
    inverse_sqrt  min((t+1)/w, √(w/(t+1))), w at least 1; Vaswani et al. 2017, equation 3, as a
                  factor that peaks at 1 instead of an absolute rate
"""

import math
from collections.abc import Callable

Schedule = Callable[[int], float]


def _warmup(step: int, warmup: int) -> float:
    return min(1.0, (step + 1) / warmup) if warmup else 1.0


def _constant(warmup: int, total: int) -> Schedule:
    return lambda step: _warmup(step, warmup)


def _cosine(warmup: int, total: int) -> Schedule:
    def factor(step: int) -> float:
        if step < warmup:
            return _warmup(step, warmup)
        done = min(1.0, (step - warmup) / max(1, total - warmup))
        return 0.5 * (1.0 + math.cos(math.pi * done))

    return factor


def _inverse_sqrt(warmup: int, total: int) -> Schedule:
    peak = max(1, warmup)
    return lambda step: min((step + 1) / peak, math.sqrt(peak / (step + 1)))


SCHEDULES: dict[str, Callable[[int, int], Schedule]] = {
    "constant": _constant,
    "cosine": _cosine,
    "inverse_sqrt": _inverse_sqrt,
}


def make_schedule(name: str, *, warmup: int, total: int | None) -> Schedule | None:
    """Return the factor as a function of the step, or None where it is always 1.

    Args:
        name: A name in :data:`SCHEDULES`.
        warmup: Optimizer steps of linear warm-up, from 0.
        total: Optimizer steps of the whole run, or None if it has no end.

    Raises:
        ValueError: For an unknown name, a negative warm-up, or a cosine without an end.
    """
    if name not in SCHEDULES:
        raise ValueError(f"optimizer.schedule={name}: allowed are {', '.join(SCHEDULES)}")
    if warmup < 0:
        raise ValueError(f"optimizer.warmup_steps={warmup}: must be at least 0")
    if name == "cosine" and total is None:
        raise ValueError(
            "optimizer.schedule=cosine: needs an end; set trainer.max_epochs or trainer.max_steps"
        )
    if name == "constant" and warmup == 0:
        return None
    return SCHEDULES[name](warmup, total or 0)
