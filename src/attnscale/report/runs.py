"""The runs that a report is about: found through ``tracking``, each with the state it is in.

A run is *finished*, *diverged* (a figure stopped being finite; it never counts as a result),
*failed*, *killed* or *running*. MLflow stores an infinity as 1.8e308; such a value is not finite
here.
"""

import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attnscale.tracking.history import History, RecordedRun
from attnscale.tracking.store import Store

HUGE = 1e300
OBJECTIVE = "val/best_loss"
STATES = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "killed", "RUNNING": "running"}


@dataclass(frozen=True)
class Asked:
    """What a person asked for; one of the four, or several sweeps.

    Attributes:
        sweep: "latest", a sweep's name or folder, or several of them with commas between.
        runs: Run ids.
        filter: A filter of MLflow.
        experiment: MLflow's experiment.
    """

    sweep: str
    runs: Sequence[str]
    filter: str | None
    experiment: str


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run as a report sees it.

    Attributes:
        run_id: MLflow's id.
        name: Readable name.
        state: "finished", "diverged", "failed", "killed" or "running".
        reason: Why it is not finished, in words; empty if it is.
        seed: ``seed``, or -1 if it was not recorded.
        parameters: Configuration, dotted key to text.
        metrics: Last values, finite ones only.
        recorded: Names of all metrics, also of those whose last value is not finite.
        tags: Tag name to text.
    """

    run_id: str
    name: str
    state: str
    reason: str
    seed: int
    parameters: dict[str, str]
    metrics: dict[str, float]
    recorded: frozenset[str] = field(repr=False)
    tags: dict[str, str] = field(repr=False)

    def value(self, metric: str) -> float | None:
        """Return a metric of a run that counts as a result, or None."""
        return self.metrics.get(metric) if self.state == "finished" else None

    @property
    def sweep(self) -> str:
        """The sweep's name, or an empty text."""
        return self.tags.get("sweep", "")


def finite(value: float) -> bool:
    """Whether a stored value is a number that may be drawn and compared."""
    return math.isfinite(value) and abs(value) < HUGE


def plain_text(value: str) -> str:
    """Return a parameter as a person wrote it; MLflow may hold texts in quotes."""
    with contextlib.suppress(ValueError):
        loaded = json.loads(value)
        if isinstance(loaded, str):
            return loaded
    return value


def as_run(recorded: RecordedRun) -> Run:
    """Return a recorded run with its state."""
    tags, state, reason = recorded.tags, STATES.get(recorded.status, "failed"), ""
    objective = recorded.metrics.get(OBJECTIVE)
    if tags.get("diverged") == "true":
        state = "diverged"
        reason = f"{tags.get('diverged.metric', '?')} at step {tags.get('diverged.step', '?')}"
    elif state == "finished" and objective is not None and not finite(objective):
        state, reason = "diverged", f"{OBJECTIVE} is not finite"
    elif state == "finished" and objective is None:
        state, reason = "failed", f"has no {OBJECTIVE}"
    elif state != "finished":
        reason = tags.get("error", {"running": "still running"}.get(state, "no reason recorded"))
    seed = recorded.parameters.get("seed", "-1")
    return Run(
        run_id=recorded.run_id,
        name=recorded.name,
        state=state,
        reason=reason.splitlines()[0] if reason else "",
        seed=int(seed) if seed.lstrip("-").isdigit() else -1,
        parameters={key: plain_text(value) for key, value in recorded.parameters.items()},
        metrics={key: value for key, value in recorded.metrics.items() if finite(value)},
        recorded=frozenset(recorded.metrics),
        tags=tags,
    )


def find_runs(store: Store, asked: Asked) -> list[Run]:
    """Return the runs that were asked for.

    Raises:
        ValueError: If there is nothing of that name in the store.
    """
    history = History(store, asked.experiment)
    if asked.runs:
        found = [history.by_id(run_id) for run_id in asked.runs]
    elif asked.filter is not None:
        found = history.matching(asked.filter)
    else:
        found = []
        for name in (part.strip() for part in asked.sweep.split(",")):
            # A sweep's folder has the sweep's name.
            found += history.sweep_runs(Path(name).name if "/" in name else name)
    unique = {run.run_id: run for run in found}
    return [as_run(run) for run in unique.values()]
