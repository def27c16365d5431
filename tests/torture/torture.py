"""Sweeps that are killed at random moments, and go on until they are done: ``make torture``.

Each sweep of 6 jobs loses a process by SIGKILL at a random moment, its launcher or one of its jobs,
and goes on by the command that users are told, until it ends with status 0. Then it must have 6
finished runs with the curves of a sweep that nobody disturbed, and have left nothing behind: no run
that is running, no process, no temporary file. Then many launches meet a store that does not exist.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from mlflow.tracking import MlflowClient

ROOT = Path(__file__).resolve().parents[2]
JOBS = ("attention.scale=sqrt,none", "seed=0,1,2", "model.d_k=16", "trainer.max_epochs=12")
N_JOBS = 6
OF_THE_PROCESS = ("time/", "memory/")
PATIENCE_SECONDS = 90.0


class Place:
    """A folder with a store, and commands in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.uri = folder, f"sqlite:///{folder}/mlflow.db"
        self.environment = {**os.environ, "MLFLOW_TRACKING_URI": self.uri}

    def start(self, sweep: Path, *more: str) -> "subprocess.Popen[bytes]":
        words = [*JOBS, f"hydra.sweep.dir={sweep}", "trust=true", *more]
        log = (self.folder / f"{sweep.name}.log").open("ab")
        return subprocess.Popen(
            [sys.executable, "-m", "src.train", "-m", *words],
            cwd=ROOT,
            env=self.environment,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )

    def client(self) -> MlflowClient:
        return MlflowClient(self.uri)


def jobs_running(sweep: Path) -> list[int]:
    """Return the process ids of the jobs that say they run."""
    pids = []
    for file in (sweep / "jobs").glob("*.json"):
        entries = json.loads(file.read_text())
        if entries["status"] == "RUNNING":
            pids.append(int(entries["process"].split()[2]))
    return pids


def processes_of(sweep: Path) -> list[int]:
    """Return the processes that have the sweep's folder open, in their command or as a file."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            files = [str(link.readlink()) for link in (folder / "fd").iterdir()]
        except OSError:
            continue
        inside = any(file.startswith(f"{sweep}/") for file in files)
        if int(folder.name) != os.getpid() and (inside or str(sweep).encode() in command):
            pids.append(int(folder.name))
    return pids


def curves(place: Place, sweep: str) -> dict[tuple[str, str], list[tuple[str, int, float]]]:
    """Return (scale, seed) -> all points of the finished run, but for what is of its process."""
    client = place.client()
    found = {}
    for run in runs_of(place, sweep):
        if run.info.status != "FINISHED":
            continue
        key = run.data.params["attention.scale"], run.data.params["seed"]
        assert key not in found, f"{sweep}: two finished runs of {key}"
        found[key] = sorted(
            (name, point.step, point.value)
            for name in run.data.metrics
            if not name.startswith(OF_THE_PROCESS)
            for point in client.get_metric_history(run.info.run_id, name)
        )
    return found


def runs_of(place: Place, sweep: str, kind: str = "run") -> list:  # type: ignore[type-arg]
    client = place.client()
    experiments = [e.experiment_id for e in client.search_experiments()]
    return list(
        client.search_runs(experiments, f"tags.sweep LIKE '{sweep}%' and tags.kind = '{kind}'")
    )


def disturb(place: Place, sweep: Path, seconds: float, chance: random.Random) -> int:
    """Start a sweep, kill one of its processes, and let it go on; return the number of launches."""
    launches, more = 1, list[str]()
    process = place.start(sweep)
    delay = chance.uniform(0, seconds)
    moment = time.monotonic() + delay
    while time.monotonic() < moment and process.poll() is None:
        time.sleep(0.01)
    running = jobs_running(sweep)
    victim = chance.choice(running) if running and chance.random() < 0.5 else process.pid
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
    what = "launcher" if victim == process.pid else "job"
    print(f"{sweep.name}: killed {what} after {delay:.1f} s", end="")
    while process.wait() != 0:
        if launches == 5:
            raise AssertionError(f"{sweep.name}: not done after {launches} launches")
        more = [f"resume={sweep}"] if (sweep / "sweep.json").is_file() else []
        process = place.start(sweep, *more)
        launches += 1
    print(f", done after {launches} launches", flush=True)
    return launches


def check(place: Place, sweep: Path, reference: object) -> None:
    """Check what a sweep left behind."""
    until = time.monotonic() + PATIENCE_SECONDS
    while processes_of(sweep) and time.monotonic() < until:
        time.sleep(0.1)
    assert not processes_of(sweep), f"{sweep.name}: processes {processes_of(sweep)}"
    found = curves(place, sweep.name)
    assert len(found) == N_JOBS, f"{sweep.name}: {len(found)} finished runs"
    for key in found:
        assert found[key] == reference[key], f"{sweep.name}: other curves of {key}"  # type: ignore[index]
    for kind in ("run", "sweep"):
        runs = runs_of(place, sweep.name, kind)
        still = [run.info.run_name for run in runs if run.info.status == "RUNNING"]
        assert not still, f"{sweep.name}: running {still}"
    left = [p for p in sweep.rglob("*") if p.suffix in (".part", ".tmp") or ".tmp" in p.name]
    assert not left, f"{sweep.name}: {left}"


def killed_sweeps(place: Place, count: int, seed: int) -> None:
    """Kill ``count`` sweeps, and check each."""
    chance = random.Random(seed)
    started = time.monotonic()
    assert place.start(place.folder / "undisturbed").wait() == 0
    seconds = time.monotonic() - started
    reference = curves(place, "undisturbed")
    print(f"undisturbed: {seconds:.1f} s")
    for number in range(count):
        sweep = place.folder / f"killed{number:02d}x"
        disturb(place, sweep, seconds, chance)
        check(place, sweep, reference)


def new_stores(folder: Path, launches: int, rounds: int) -> None:
    """Let launches meet a store that does not exist, and check their runs and artifacts."""
    for number in range(rounds):
        place = Place(folder / f"store{number}")
        place.folder.mkdir()
        log = (place.folder / "log").open("wb")
        processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "src.train",
                    f"seed={seed}",
                    "trainer.max_epochs=2",
                    f"hydra.run.dir={place.folder}/{seed}",
                ],
                cwd=ROOT,
                env=place.environment,
                stdout=log,
                stderr=log,
            )
            for seed in range(launches)
        ]
        status = [process.wait() for process in processes]
        assert status == [0] * launches, f"store {number}: {status}"
        assert b"Traceback" not in (place.folder / "log").read_bytes()
        client = place.client()
        runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
        assert [run.info.status for run in runs] == ["FINISHED"] * launches
        listings = [{f.path for f in client.list_artifacts(run.info.run_id)} for run in runs]
        assert all(listing == listings[0] != set() for listing in listings), listings
        print(f"store {number}: {launches} runs, artifacts {sorted(listings[0])}", flush=True)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=20)
    parser.add_argument("--launches", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}")
    with tempfile.TemporaryDirectory() as name:
        killed_sweeps(Place(Path(name)), options.sweeps, options.seed)
        new_stores(Path(name), options.launches, options.rounds)
    print("All held.")


if __name__ == "__main__":
    main(sys.argv[1:])
