"""The processes of one run.

Lightning never starts processes inside a Hydra job: its child would repeat the command line, and so
the whole sweep. A run that wants several writes its configuration into its folder and starts
torchrun on ``python -m attnscale.experiment``, which knows no Hydra. Where torchrun or srun started
the processes already, the run trains in place.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

from attnscale.config.choice_schema import TrainerConfig
from attnscale.config.schema import TrainConfig
from attnscale.config.section import plain
from attnscale.experiment.result import write_json
from attnscale.system import end_group, end_with_parent

RANK_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NODE_RANK",
    "TORCHELASTIC_RUN_ID",
)
STEP_TASKS = "SLURM_STEP_NUM_TASKS"
OUTSIDE_VARIABLES = {
    "torchrun": (
        "TORCHELASTIC_RUN_ID",
        "WORLD_SIZE",
        "RANK",
        "LOCAL_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
    ),
    "srun": (
        STEP_TASKS,
        "SLURM_NTASKS",
        "SLURM_NTASKS_PER_NODE",
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "SLURM_NODEID",
    ),
}
"""What says that a process is one of several, how many, and which: for each that starts them."""
MEETING_SECONDS = 120
GRACE_SECONDS = 40.0  # torchrun itself gives its workers 30
CONFIG_FILE, RESULT_FILE = "processes.json", "result.json"


class ProcessFailedError(RuntimeError):
    """A process of a run of several failed; the message names its rank and reason."""


def launched_from_outside() -> str | None:
    """Return "torchrun" or "srun" if that started this process as one of several, else None."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return "torchrun"
    # Of the step: SLURM_NTASKS is the job's too, in a shell that waits for commands.
    tasks = os.environ.get(STEP_TASKS, "1")
    if "SLURM_STEP_ID" in os.environ and tasks.isdigit() and int(tasks) > 1:
        return "srun"
    return None


def check_launch(trainer: TrainerConfig) -> None:
    """Check what torchrun or srun says of this process, which may be left over in a shell.

    Raises:
        ValueError: If they started another number of processes than the trainer wants, or say too
            little to meet the others; it names the variables and how to ignore them.
    """
    started = launched_from_outside()
    if started is None:
        return
    first, size, *others = OUTSIDE_VARIABLES[started]
    ignore = f"if it is left over, ignore it with: env -u {first} python -m …"
    absent = [name for name in (first, size, *others) if name not in os.environ]
    if absent:
        raise ValueError(f"{first} is set, but not {', '.join(absent)}; {ignore}")
    n, n_wanted = int(os.environ[size]), processes_wanted(trainer)
    if n != n_wanted:
        raise ValueError(
            f"{first} and {size}={n} say that {started} started {n} processes, but trainer.devices="
            f"{trainer.devices} and trainer.num_nodes={trainer.num_nodes} want {n_wanted}; {ignore}"
        )


def meet() -> TCPStore | None:
    """Wait for the processes that torchrun or srun started with this one.

    torch would wait half an hour, deaf to signals. The address is that of the process group, which
    shares the first process's store: keep what is returned until the group is there.

    Raises:
        ValueError: If they do not come; it names the variables and how to ignore them.
    """
    started = launched_from_outside()
    if started is None:
        return None
    first, size, *_ = OUTSIDE_VARIABLES[started]
    n, own = int(os.environ[size]), rank()
    if started == "srun":
        # Lightning takes a second to import, and whoever only counts processes is told at once.
        from pytorch_lightning.plugins.environments import SLURMEnvironment

        slurm = SLURMEnvironment(auto_requeue=False)
        address, port = slurm.main_address, slurm.main_port
    else:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    hosts = own == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    round_ = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    keys = [f"attnscale/{round_}/{number}" for number in range(n)]
    end = time.monotonic() + MEETING_SECONDS
    store = None
    while time.monotonic() < end:
        try:
            if store is None:
                # A short attempt at a time: in between signals are heard.
                store = TCPStore(
                    address,
                    port,
                    n,
                    is_master=hosts,
                    timeout=timedelta(seconds=1),
                    wait_for_workers=False,
                    multi_tenant=True,
                )
                store.set(keys[own], "here")
            if store.check(keys):
                return store
        except DistError:
            store = None
        time.sleep(0.1)
    raise ValueError(
        f"{first} and {size}={n} say that {started} started {n} processes, but they did not meet "
        f"at {address}:{port} within {MEETING_SECONDS} s; if it is left over, ignore it with: "
        f"env -u {first} python -m …"
    )


def rank() -> int:
    """Return this process's rank, 0 if it is alone."""
    started = launched_from_outside()
    return int(os.environ[{"torchrun": "RANK", "srun": "SLURM_PROCID"}[started]]) if started else 0


def processes_wanted(trainer: TrainerConfig) -> int:
    """Return how many processes ``trainer.devices`` and ``trainer.num_nodes`` ask for.

    Raises:
        ValueError: If the devices cannot be counted, or are not there.
    """
    devices, accelerator = trainer.devices, trainer.accelerator
    on_gpu = accelerator in ("gpu", "cuda") or (accelerator == "auto" and torch.cuda.is_available())
    there = torch.cuda.device_count() if on_gpu else 1
    if on_gpu and there == 0:
        raise ValueError(
            f"trainer.accelerator={accelerator}: no GPU was found; use trainer.accelerator=cpu"
        )
    if isinstance(devices, list):
        count = len(devices)
    elif devices in ("auto", -1, "-1"):
        count = there
    else:
        try:
            count = int(devices)
        except (TypeError, ValueError):
            count = 0
        if count < 1:
            raise ValueError(
                f"trainer.devices={devices}: allowed is a number from 1, -1, auto or a list"
            )
    if on_gpu and count > there:
        raise ValueError(f"trainer.devices={devices}: only {there} GPUs were found")
    return count * trainer.num_nodes


def _environment(n: int) -> dict[str, str]:
    left_over = (*RANK_VARIABLES, "PET_")  # PET_*: options of torchrun
    variables = {k: v for k, v in os.environ.items() if not k.startswith(left_over)}
    threads = max(1, (os.cpu_count() or 1) // n)
    variables.setdefault("OMP_NUM_THREADS", str(threads))
    package = str(Path(__file__).resolve().parents[2])
    variables["PYTHONPATH"] = os.pathsep.join(
        p for p in (package, variables.get("PYTHONPATH")) if p
    )
    return variables


def save_failure(folder: Path, rank: int, error: Exception) -> None:
    """Leave in the run's folder why a process ended."""
    reason = {"rank": rank, "type": type(error).__name__, "message": str(error)}
    write_json(folder / f"error-rank{rank}.json", reason)


def _reason(folder: Path, log: Path) -> str:
    """Return why the first process that failed did, or else torchrun's last words.

    Raises:
        ValueError: If it met a value that is not allowed, as every process then does.
    """
    files = sorted(folder.glob("error-rank*.json"), key=lambda p: p.stat().st_mtime_ns)
    if not files:
        lines = [
            line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
        ]
        return next((line for line in reversed(lines) if line), "ended without a word")
    failure = json.loads(files[0].read_text(encoding="utf-8"))
    if failure["type"] == "ValueError":
        raise ValueError(failure["message"])
    return f"rank {failure['rank']}: {failure['type']}: {failure['message']}"


def run_in_processes(
    config: TrainConfig, *, n: int, run_id: str, store: str, allow: Sequence[str]
) -> None:
    """Train in ``n`` processes of this machine; the result is left in the run's folder.

    The main process writes to the MLflow run of an id in a store. What is allowed is given on the
    command line of each process, so that no file can widen it.

    Raises:
        ProcessFailedError: If one of them failed; the others are ended then.
        ValueError: If several nodes are asked for: those must be started by srun.
    """
    if config.trainer.num_nodes != 1:
        raise ValueError(
            f"trainer.num_nodes={config.trainer.num_nodes}: processes on other machines "
            "must be started by srun or torchrun"
        )
    folder = Path(config.folder)
    for old in (*folder.glob("error-rank*.json"), folder / RESULT_FILE):
        old.unlink(missing_ok=True)
    write_json(folder / CONFIG_FILE, {"config": plain(config), "run_id": run_id, "store": store})
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(n), "--log-dir", str(folder / "processes")),
        *("-m", "attnscale.experiment", *(f"--allow={package}" for package in allow)),
        str(folder / CONFIG_FILE),
    ]
    # A session of its own, so that a Ctrl-C at the terminal reaches it once, from here.
    log = folder / "processes.log"
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            env=_environment(n),
            start_new_session=True,
            stderr=output,
            # A run that is killed takes its processes along.
            preexec_fn=end_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
        )
        try:
            code = child.wait()
        except BaseException:
            end_group(child, GRACE_SECONDS)
            raise
    if code != 0 or not (folder / RESULT_FILE).exists():
        reason = _reason(folder, log)
        raise ProcessFailedError(f"{n} processes: {reason} (all output: {log})")
