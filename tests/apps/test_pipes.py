"""Whole apps whose output goes nowhere."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.apps.conftest import QUICK, ROOT, SHORT


def _piped(shell: Any, app: str, arguments: list[str], given: str) -> tuple[int, str, str]:
    """Run an app into ``head -1``; return its status, that line, and what it says of errors."""
    line = 'set -o pipefail; "$@" | head -1'
    done = subprocess.run(
        ["bash", "-c", line, "bash", sys.executable, "-m", app, *arguments],
        cwd=ROOT,
        env=shell.environment(),
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [(), ("-m", "model.d_k=8,16", "report=true")], ids=["run", "sweep"]
)
def test_what_trains_goes_on_when_its_reader_has_gone(shell: Any, more: tuple[str, ...]) -> None:
    words = [*more, *SHORT, QUICK[0], *shell.outputs()]
    assert _piped(shell, "src.train", words, "") == (
        0,
        f"Recording to {shell.uri} (MLFLOW_TRACKING_URI)\n",
        "",
    )
    assert {run.info.status for run in shell.runs()} == {"FINISHED"}


@pytest.mark.slow
def test_answers_end_quietly_when_their_reader_has_gone(shell: Any, tmp_path: Path) -> None:
    shell(*SHORT, "model=transformer", "model.d_model=16", "model.d_k=8", "model.n_heads=1")
    checkpoint = shell.result()["last_checkpoint"]
    words = [f"checkpoint={checkpoint}", f"hydra.run.dir={tmp_path}/t", "batch_sentences=500"]
    status, _, errors = _piped(shell, "src.translate", words, "ein Hund\n" * 5000)
    # A model of one epoch does not know where to end, and says that for each line; no more.
    assert status == 141
    assert all("has no end after" in line for line in errors.splitlines())
    full = shell(*words, "input=README.md", "output=/dev/full", app="src.translate", where=False)
    assert full.returncode == 1
    assert full.stderr.endswith("output=/dev/full: cannot be written: No space left on device\n")
