"""What a run comes to, in plain values."""

import dataclasses
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnscale.config.schema import TrainConfig
from attnscale.files import write_text
from attnscale.tracking.names import rounded

RUN_FILE = "run.json"
"""In a run's folder: its id, name and store."""

WORST = sys.float_info.max
"""Objective of a run that diverged or failed: the worst finite number."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run comes to.

    Attributes:
        objective: Best validation loss (the last training loss without validation), or
            :data:`WORST` if the run diverged.
        metrics: Last value of each figure, by metric name; ``val/best_loss`` too.
        diverged: ``{"metric": …, "step": …}`` where a figure stopped being finite, or None.
        steps: Optimizer steps done in all, those before a resumed checkpoint included.
        steps_per_second: Optimizer steps per second of this run's training, validation included.
        seconds: Duration of training.
        peak_memory_mib: Largest memory of the process (on a GPU: allocated on it), in MiB;
            None where the system does not tell.
        best_checkpoint: Path, or None if no finite validation loss was seen.
        last_checkpoint: Path, or None.
        folder: Where the run wrote.
        run_id: MLflow's id, or None.
        name: The run's readable name.
    """

    objective: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    diverged: Mapping[str, Any] | None = None
    steps: int = 0
    steps_per_second: float = 0.0
    seconds: float = 0.0
    peak_memory_mib: float | None = None
    best_checkpoint: str | None = None
    last_checkpoint: str | None = None
    folder: str = ""
    run_id: str | None = None
    name: str = ""

    def save(self, path: Path) -> None:
        """Write as JSON."""
        write_json(path, dataclasses.asdict(self))

    @classmethod
    def load(cls, path: Path) -> "Result":
        """Read what :meth:`save` wrote."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))


def write_json(path: Path, content: object) -> None:
    """Write JSON, whole or not at all; the folder is made if it is not there."""
    write_text(path, json.dumps(content, indent=1))


def default_name(config: TrainConfig) -> str:
    """Return a readable name for a run of which nothing was swept."""
    model = config.model._target_.rpartition(".")[0].rpartition(".")[2]
    return f"{model} scale={rounded(str(config.attention.scale))} d_k={config.model.d_k}"
