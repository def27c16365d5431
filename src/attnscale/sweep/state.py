"""What the launched process knows of its sweep; Hydra's hooks have no other way to tell."""

from dataclasses import dataclass
from pathlib import Path

from attnscale.tracking.record import Record


@dataclass
class Sweep:
    """The sweep that this process launched.

    Attributes:
        folder: Where its jobs write.
        record: Its parent run.
        described: What is swept, in words.
        experiment: MLflow's experiment.
        report: Whether it ends with a report.
    """

    folder: Path
    record: Record
    described: str
    experiment: str
    report: bool


sweep: Sweep | None = None
problem: str | None = None
