"""A real Slurm on this machine: make test-slurm starts it."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

ROOT = Path(__file__).resolve().parents[2]


def _answers() -> bool:
    if shutil.which("sinfo") is None:
        return False
    asked = subprocess.run(["sinfo", "-h"], capture_output=True, text=True, check=False, timeout=20)
    return asked.returncode == 0 and bool(asked.stdout.strip())


pytestmark = pytest.mark.skipif(
    not _answers(), reason="Slurm is not up: make test-slurm starts one"
)

SWEEP = ("-m", "model.d_k=16,-1,32", "trainer=smoke", "threads=1")
SLURM = (
    "hydra/launcher=slurm",
    "hydra.launcher.timeout_min=5",
    "hydra.launcher.mem_gb=1",
    "hydra.launcher.cpus_per_task=1",
    "hydra.launcher.partition=main",
)


def sweep(folder: Path, *more: str) -> tuple["subprocess.CompletedProcess[str]", str]:
    store = f"sqlite:///{folder}/mlflow.db"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "src.train", *SWEEP, *more, f"tracking.uri={store}"),
            f"hydra.sweep.dir='{folder}/multirun/${{launch_id:}}'",
        ],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    return done, store


def rows(text: str) -> list[list[str]]:
    """Return the table's columns without the sweep's mark and the speed."""
    found = [re.sub(r" \([0-9a-f]+\)", "", x) for x in text.splitlines() if re.match(r"\d\s{3}", x)]
    return [re.split(r"\s{2,}", row.strip())[:6] for row in found]


def test_an_array_ends_in_the_table_of_the_serial_launcher(tmp_path: Path) -> None:
    (tmp_path / "slurm").mkdir()
    (tmp_path / "serial").mkdir()
    done, store = sweep(tmp_path / "slurm", *SLURM)
    assert done.returncode == 1, done.stderr
    assert re.search(r"Slurm jobs (\d+)_0, \1_1, \1_2", done.stdout), "not one array"
    serial, _ = sweep(tmp_path / "serial")
    assert len(rows(done.stdout)) == 3
    assert rows(done.stdout) == rows(serial.stdout)
    assert "failed: model.d_k=-1: must be at least 1" in done.stdout
    client = MlflowClient(store)
    (experiment,) = [e for e in client.search_experiments() if e.name == "attnscale"]
    runs: list[Any] = list(client.search_runs([experiment.experiment_id]))
    states = {run.data.tags.get("job", "parent"): run.info.status for run in runs}
    assert states == {"0": "FINISHED", "1": "FAILED", "2": "FINISHED", "parent": "FAILED"}


def test_a_killed_job_is_lost_and_the_others_run(tmp_path: Path) -> None:
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(
        "import os, signal\n"
        "task, rank = (os.environ.get(f'SLURM_{n}') for n in ('ARRAY_TASK_ID', 'PROCID'))\n"
        "if (task, rank) == ('0', '0'):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = str(hook)
    try:
        done, _ = sweep(tmp_path, *SLURM, "model.d_k=16,32")
    finally:
        os.environ["PYTHONPATH"] = before
    assert done.returncode == 1
    assert [row[2].partition(":")[0] for row in rows(done.stdout)] == ["lost", "finished"]
    (file,) = tmp_path.glob("multirun/*/1/result.json")
    assert json.loads(file.read_text())["steps"] == 4
