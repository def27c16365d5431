"""``hydra/launcher=local``: a sweep's jobs side by side on this machine, each in its own process.

As many run at once as the machine has cores, memory and devices for; or ``n_jobs`` of them. A job's
threads do not depend on that, so its figures do not either. The longest start first, as far as that
is known; results are in the order of the jobs. Whatever ends a job's process, the others go on.
"""

import os
import selectors
import signal
import sys
import time
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path

from hydra.core.config_loader import ConfigLoader
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, configure_log, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from attnscale.experiment.result import WORST
from attnscale.sweep.capacity import Capacity, Running
from attnscale.sweep.ends import cause, end_run
from attnscale.sweep.forecast import duration
from attnscale.sweep.lines import Lines, outcome_line
from attnscale.sweep.machine import CUDA_VARIABLE, cores, gpus, oom_kills
from attnscale.sweep.plan import Planned, plan
from attnscale.sweep.state import LOST, RUNNING, WAITING, Job, Launch, job_file
from attnscale.sweep.worker import OUTPUT_FILE, Request
from attnscale.sweep.workers import CAN_FORK, ForkServer, FreshInterpreters, Worker
from attnscale.tracking.record import FAILED, KILLED
from attnscale.tracking.store import find_store

TARGET = "hydra_plugins.attnscale.LocalLauncher"
GRACE_SECONDS = 60.0
"""How long jobs may take to save and record their end before they are killed."""

STATUS_SECONDS = 5.0

WARM: ContextVar[ForkServer | None] = ContextVar("WARM", default=None)
"""The server that was started before Hydra made the launcher."""


def warm_up() -> None:
    """Start importing what jobs need, while Hydra prepares them."""
    if CAN_FORK:
        WARM.set(ForkServer())


class LocalLauncher(Launcher):
    """Runs the jobs of a sweep in processes of this machine."""

    def __init__(self, n_jobs: int | None, memory_mib: float) -> None:
        """Keep the options.

        Args:
            n_jobs: How many jobs run at once; None for as many as fit.
            memory_mib: Memory that a job is expected to take, until one has shown what it does.

        Raises:
            ValueError: If there is to be no job at a time.
        """
        if n_jobs is not None and n_jobs < 1:
            raise ValueError(f"hydra.launcher.n_jobs={n_jobs}: must be at least 1, or null")
        self.n_jobs, self.memory_mib = n_jobs, memory_mib
        self.config: DictConfig | None = None
        self._processes: ForkServer | FreshInterpreters | None = None

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Take what Hydra gives every launcher."""
        self.context, self.task, self.config = hydra_context, task_function, config

    @property
    def processes(self) -> ForkServer | FreshInterpreters:
        """Return what starts processes, made when it is first needed."""
        if self._processes is None:
            server = WARM.get()
            if server is not None and not server.ready():
                server.close()
                server = None
            self._processes = server or FreshInterpreters()
        return self._processes

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run the jobs, and return what they came to in their order.

        Raises:
            ValueError: If two of them would write into one folder.
        """
        setup_globals()
        assert self.config is not None
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        folder = Path(str(self.config.hydra.sweep.dir))
        loader: ConfigLoader = self.context.config_loader
        jobs = plan(loader, self.config, job_overrides, initial_job_idx, folder)
        schedule = _Schedule(self, folder, jobs)
        try:
            return schedule.run()
        finally:
            schedule.lines.close()

    def start(self, planned: Planned, devices: list[str]) -> Worker:
        """Start a job in a process of its own, which sees these GPUs, or all if there are none."""
        own = {CUDA_VARIABLE: ",".join(devices)} if devices else {}
        request = Request(
            task=self.task,
            config=planned.config,
            context=self.context,
            state=Singleton.get_state(),
            arguments=sys.argv,
            path=sys.path,
            environment={**os.environ, **own},
            output=Path(planned.job.folder) / OUTPUT_FILE,
        )
        try:
            worker = self.processes.start()
        except ConnectionError:
            # The server was killed: what it took along is lost, the jobs that wait are not.
            self._processes = FreshInterpreters()
            worker = self.processes.start()
        worker.hand_over(request.dumps())
        return worker


class _Schedule:
    """The jobs of one call, from waiting to ended."""

    def __init__(self, launcher: LocalLauncher, sweep: Path, jobs: Sequence[Planned]) -> None:
        self.launcher, self.sweep, self.jobs = launcher, sweep, jobs
        # A stable order: those of equal work stay as they are.
        left = (job for job in jobs if job.result is None)
        self.waiting = sorted(left, key=lambda planned: -planned.demand.work)
        self.returns = {p.job.index: p.result for p in jobs if p.result is not None}
        self.capacity = Capacity(launcher.n_jobs, cores(), gpus(), launcher.memory_mib)
        most = max(self.capacity.cores, len(self.capacity.devices))
        self.lines = Lines(min(len(self.waiting), launcher.n_jobs or most))
        self.stopping = False
        self.places = list(range(len(self.waiting)))
        self.selector = selectors.DefaultSelector()

    def run(self) -> list[JobReturn]:
        """Run all jobs; on a signal or an error of its own end those that run."""
        try:
            while self.waiting or self.capacity.running:
                self._start_what_fits()
                self._listen(None)
        except BaseException:
            # A full disk too: no job runs on behind a table that is printed.
            self._stop()
            raise
        return [self.returns[planned.job.index] for planned in self.jobs]

    def _start_what_fits(self) -> None:
        while self.waiting and self.capacity.fits(self.waiting[0].demand):
            planned = self.waiting.pop(0)
            devices = self.capacity.take(planned.demand)
            worker = self.launcher.start(planned, devices)
            one = Running(planned, worker, min(self.places), devices, oom_kills())
            self.places.remove(one.place)
            self.capacity.running[worker.news] = one
            self.selector.register(worker.news, selectors.EVENT_READ, one)
            self.lines.show(one.place, planned.job.name, {})

    def _listen(self, seconds: float | None) -> None:
        """Wait for news of the running jobs, and take them."""
        for key, _ in self.selector.select(seconds):
            one: Running = key.data
            news = one.worker.read()
            if news is None:
                self._take_end(one)
                continue
            for entry in news:
                one.value = entry.get("value", one.value)
                one.error = entry.get("error", one.error)
                if "progress" in entry:
                    self.lines.show(one.place, one.planned.job.name, entry["progress"])

    def _take_end(self, one: Running) -> None:
        """Note how a job ended, and give back what it had."""
        self.selector.unregister(one.worker.news)
        status = self.launcher.processes.wait(one.worker, STATUS_SECONDS)
        one.worker.close()
        del self.capacity.running[one.worker.news]
        self.lines.clear(one.place)
        self.places.append(one.place)
        file = job_file(self.sweep, one.planned.job.index)
        job = Job.load(file)
        if job.status in (WAITING, RUNNING):
            why = one.error or cause(status, out_of_memory=oom_kills() > one.kills)
            why = "stopped with its sweep" if self.stopping else why
            job = replace(job, status=KILLED if self.stopping else LOST, error=why)
            job.save(file)
            self._end_run(job)
        peak = None if job.result is None else job.result.peak_memory_mib
        self.capacity.give_back(one, peak or 0.0)
        self.returns[job.index] = self._returned(one, job)
        n_ended = len(self.returns)
        seconds = duration(time.monotonic() - one.started)
        self.lines.say(f"{n_ended} of {len(self.jobs)}: {outcome_line(job)}, {seconds}")

    def _end_run(self, job: Job) -> None:
        """End the run of a job that could not; a store that is away must not end the others."""
        try:
            store = find_store(Launch.load(self.sweep).store, self.sweep)
            status = KILLED if self.stopping else FAILED
            end_run(Path(job.folder), store, status, job.error or "")
        except Exception as error:
            first = str(error).splitlines()[0]
            self.lines.say(f"The store does not take the end of {job.name}: {first}")

    def _returned(self, one: Running, job: Job) -> JobReturn:
        """Return what Hydra's sweepers read; a job that failed by itself has said so already."""
        value = one.value if one.value is not None else WORST
        return JobReturn(
            overrides=job.overrides,
            cfg=one.planned.config,
            working_dir=job.folder,
            _return_value=value,
            status=JobStatus.COMPLETED,
        )

    def _stop(self) -> None:
        """Ask the running jobs to end, wait for them, and end those that do not."""
        self.stopping = True
        for one in list(self.capacity.running.values()):
            one.worker.signal(signal.SIGTERM)
        until = time.monotonic() + GRACE_SECONDS
        while self.capacity.running and time.monotonic() < until:
            self._listen(1.0)
        for one in list(self.capacity.running.values()):
            one.worker.signal(getattr(signal, "SIGKILL", signal.SIGTERM))
            self._take_end(one)


def register(name: str) -> None:
    """Make the launcher known to Hydra under a name, which must be one of ``hydra_plugins``."""
    Plugins.instance().class_name_to_class[name] = LocalLauncher
