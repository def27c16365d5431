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
from collections.abc import Sequence
from pathlib import Path

import torch

from attnscale.config.schema import TrainConfig, TrainerConfig
from attnscale.config.section import plain
from attnscale.experiment.result import write_json
from attnscale.system import end_group

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
GRACE_SECONDS = 40.0  # torchrun itself gives its workers 30
CONFIG_FILE, RESULT_FILE = "processes.json", "result.json"


class ProcessFailedError(RuntimeError):
    """A process of a run of several failed; the message names its rank and reason."""


def launched_from_outside() -> str | None:
    """Return "torchrun" or "srun" if that started this process as one of several, else None."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return "torchrun"
    tasks = os.environ.get("SLURM_NTASKS", "1")
    in_step = "SLURM_PROCID" in os.environ and "SLURM_STEP_ID" in os.environ
    if in_step and tasks.isdigit() and int(tasks) > 1:
        return "srun"
    return None


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
    variables = {k: v for k, v in os.environ.items() if k not in RANK_VARIABLES}
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
            command, env=_environment(n), start_new_session=True, stderr=output
        )
        try:
            code = child.wait()
        except BaseException:
            end_group(child, GRACE_SECONDS)
            raise
    if code != 0 or not (folder / RESULT_FILE).exists():
        reason = _reason(folder, log)
        raise ProcessFailedError(f"{n} processes: {reason} (all output: {log})")
