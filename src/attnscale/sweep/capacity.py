"""Which jobs fit beside each other: what a machine has free while some of them run."""

import time
from dataclasses import dataclass, field

from attnscale.experiment.demand import Demand
from attnscale.sweep.machine import free_mib
from attnscale.sweep.plan import Planned
from attnscale.sweep.workers import Worker

YOUNG_SECONDS = 30.0
"""How long a job may take to fill its memory."""


@dataclass
class Running:
    """A job that runs.

    Attributes:
        planned: The job.
        worker: Its process.
        place: Its line on the screen.
        devices: GPUs that it has.
        kills: How many processes of this group the kernel had killed for memory when it started.
        started: When, in seconds of ``time.monotonic``.
        value: What it returned.
        error: What it said of its failure.
    """

    planned: Planned
    worker: Worker
    place: int
    devices: list[str]
    kills: int
    started: float = field(default_factory=time.monotonic)
    value: float | None = None
    error: str | None = None


@dataclass
class Capacity:
    """What is free for jobs.

    Attributes:
        n_jobs: How many may run at once, or None where the machine decides.
        cores: Free cores.
        devices: Free GPUs.
        mib: Memory that a job is expected to take.
    """

    n_jobs: int | None
    cores: int
    devices: list[str]
    mib: float
    running: dict[int, Running] = field(default_factory=dict)

    def _n_devices(self, need: Demand) -> int:
        return len(self.devices) if need.gpus is None else min(need.gpus, len(self.devices))

    def fits(self, need: Demand) -> bool:
        """Whether a job can start now; alone it always can."""
        if not self.running:
            return True
        if self.n_jobs is not None and len(self.running) >= self.n_jobs:
            return False
        if need.gpus != 0:
            # What wants all of them waits until it is alone.
            there = need.gpus is not None and need.gpus <= len(self.devices)
        elif self.n_jobs is not None:
            return True
        else:
            there = self.cores >= need.threads * need.processes
        free = free_mib()
        # What those that have just started will take is not taken yet.
        young = sum(time.monotonic() - one.started < YOUNG_SECONDS for one in self.running.values())
        return there and (free is None or free >= self.mib * (1 + young))

    def take(self, need: Demand) -> list[str]:
        """Take what a job needs, and return its GPUs."""
        self.cores -= need.threads * need.processes
        count = self._n_devices(need)
        devices, self.devices = self.devices[:count], self.devices[count:]
        return devices

    def give_back(self, one: Running, peak_mib: float) -> None:
        """Take back what a job had, and learn from how much memory it took."""
        need = one.planned.demand
        self.cores += need.threads * need.processes
        self.devices = [*self.devices, *one.devices]
        self.mib = max(self.mib, peak_mib)
