"""A run as the store has it, and what it came to; the one record of a run.

A run is *finished*, *diverged* (a figure stopped being finite; it never counts as a result),
*failed*, *killed* or *running*. MLflow stores an infinity as 1.8e308; such a value is not finite
here.
"""

import contextlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from attnscale.tracking.names import rounded

HUGE = 1e300
OBJECTIVE = "val/best_loss"
OUTCOMES = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "killed", "RUNNING": "running"}


class Point(NamedTuple):
    """A point of one run's curve; seconds since the curve's first point."""

    step: int
    value: float
    seconds: float


Curve = Sequence[Point]


def finite(value: float) -> bool:
    """Whether a stored value is a number that may be drawn and compared."""
    return math.isfinite(value) and abs(value) < HUGE


def plain_text(value: str) -> str:
    """Return a parameter as a person wrote it; MLflow may hold texts in quotes, and all digits."""
    with contextlib.suppress(ValueError):
        loaded = json.loads(value)
        return loaded if isinstance(loaded, str) else rounded(value)
    return value


def curve_of(points: Sequence[tuple[int, float, int]]) -> Curve:
    """Return (step, value, milliseconds since 1970) as a curve, without what is not finite."""
    start = points[0][2] if points else 0
    return [Point(step, value, (at - start) / 1000) for step, value, at in points if finite(value)]


class StoredCurves(dict[str, Curve]):
    """Curves by metric, each read when it is first asked for."""

    def __init__(self, read: Callable[[str], Sequence[tuple[int, float, int]]]) -> None:
        """Read with a function from a metric to its points, as `History.points` gives them."""
        super().__init__()
        self._read = read

    def __missing__(self, metric: str) -> Curve:
        self[metric] = curve_of(self._read(metric))
        return self[metric]


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """A recorded run.

    Attributes:
        run_id: MLflow's id.
        name: Readable name.
        status: FINISHED, FAILED, KILLED or RUNNING.
        tags: Tag name to text.
        parameters: Configuration, dotted key to text.
        metrics: Last values, finite ones only.
        recorded: Names of all metrics, also of those whose last value is not finite.
        curves: Metric name to its curve.
    """

    run_id: str
    name: str = ""
    status: str = "FINISHED"
    tags: Mapping[str, str] = field(default_factory=dict, repr=False)
    parameters: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    recorded: frozenset[str] = field(default=frozenset(), repr=False)
    curves: Mapping[str, Curve] = field(default_factory=dict, repr=False)

    @classmethod
    def stored(
        cls, *, parameters: Mapping[str, str], metrics: Mapping[str, float], **facts: Any
    ) -> "Run":
        """Return a run from what MLflow has: texts in quotes, figures that are not finite."""
        return cls(
            parameters={key: plain_text(value) for key, value in parameters.items()},
            metrics={name: value for name, value in metrics.items() if finite(value)},
            recorded=frozenset(metrics),
            **facts,
        )

    @cached_property
    def _end(self) -> tuple[str, str]:
        """The outcome and its reason."""
        tags, outcome = self.tags, OUTCOMES.get(self.status, "failed")
        if tags.get("diverged") == "true":
            place = f"{tags.get('diverged.metric', '?')} at step {tags.get('diverged.step', '?')}"
            return "diverged", place
        if outcome != "finished":
            unknown = "still running" if outcome == "running" else "no reason recorded"
            return outcome, tags.get("error", unknown)
        if OBJECTIVE in self.metrics:
            return outcome, ""
        if OBJECTIVE in self.recorded:
            return "diverged", f"{OBJECTIVE} is not finite"
        return "failed", f"has no {OBJECTIVE}"

    @property
    def outcome(self) -> str:
        """What it came to: "finished", "diverged", "failed", "killed" or "running"."""
        return self._end[0]

    @property
    def ended(self) -> bool:
        """Whether it came to an end of its own: not killed, not running."""
        return self.outcome in ("finished", "diverged", "failed")

    @property
    def reason(self) -> str:
        """Why it is not finished, in a line; empty if it is."""
        return next(iter(self._end[1].splitlines()), "")

    @property
    def seed(self) -> int:
        """``seed``, or -1 if it was not recorded."""
        return self._whole("seed")

    @property
    def replicate(self) -> tuple[int, int]:
        """``seed`` and ``data.seed``: what tells runs of one setting apart; -1 if not recorded."""
        return self.seed, self._whole("data.seed")

    def _whole(self, key: str) -> int:
        text = self.parameters.get(key, "-1")
        return int(text) if text.lstrip("-").isdigit() else -1

    @property
    def scale(self) -> str:
        """``attention.scale``, or an empty text."""
        return self.parameters.get("attention.scale", "")

    @property
    def d_k(self) -> int:
        """``model.d_k``, or 0."""
        return int(self.parameters.get("model.d_k", "0"))

    @property
    def lr(self) -> float:
        """``optimizer.lr``."""
        return float(self.parameters["optimizer.lr"])

    @property
    def sweep(self) -> str:
        """The sweep's name, or an empty text."""
        return self.tags.get("sweep", "")

    @property
    def loss(self) -> float | None:
        """Best validation loss, or None if the run is no result."""
        return self.value(OBJECTIVE)

    @property
    def start_loss(self) -> float:
        """Training loss before the first step, infinite if it was not recorded."""
        return next((point.value for point in self.curve("train/loss")), math.inf)

    def value(self, metric: str) -> float | None:
        """Return a metric of a run that counts as a result, or None."""
        return self.metrics.get(metric) if self.outcome == "finished" else None

    def curve(self, metric: str) -> Curve:
        """Return the whole curve of a metric; empty if there is none."""
        return self.curves[metric] if metric in self.recorded else []
