"""The check for a GPU runs to its end where there is none, and tells what failed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu_check

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_all_of_it_runs_on_a_cpu() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_check", "--device", "cpu"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for check in gpu_check.CHECKS:
        assert f"{check.__name__:30}ok " in done.stdout, done.stdout


def test_any_failure_is_told_and_the_rest_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(place: gpu_check.Place) -> str:
        raise ValueError("attention.options.x is missing")

    def sound(place: gpu_check.Place) -> str:
        return f"on {place.device}"

    monkeypatch.setattr(gpu_check, "CHECKS", (broken, sound))
    assert gpu_check.main(["--device", "cpu"]) == 1
    shown = capsys.readouterr().out
    assert "FAILED  ValueError: attention.options.x is missing" in shown
    assert "ok      on cpu" in shown
