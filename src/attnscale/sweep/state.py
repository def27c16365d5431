"""What the launched process knows of its sweep; Hydra's hooks have no other way to tell."""

from dataclasses import dataclass
from pathlib import Path

from attnscale.tracking.record import Record


@dataclass
class Sweep:
    """The sweep that this process launched."""

    folder: Path
    record: Record
    described: str


sweep: Sweep | None = None
problem: str | None = None
