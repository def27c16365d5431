"""Several processes for one run: gloo on the CPU."""

from pathlib import Path
from typing import Any

import pytest
import torch

SIZES = (
    "trainer.max_epochs=2",
    "data.n_train=101",
    "data.n_val=31",
    "data.n_test=33",
    "data.batch_size=15",
    "data.eval_batch_size=7",
)

FAILING = """
import json, os, sys
if os.environ.get("RANK") == "1" and sys.orig_argv[-1].endswith("processes.json"):
    with open(sys.orig_argv[-1]) as file:
        scale = json.load(file)["config"]["attention"]["scale"]
    if scale == "sqrt":
        from attnscale.task.reconstruction import Reconstruction
        def fail(self, batch):
            raise RuntimeError("broken on purpose")
        Reconstruction.loss = fail
"""


def test_two_processes_are_one_run(shell: Any) -> None:
    assert shell(*SIZES).returncode == 0
    single, checkpoint = shell.result(), Path(shell.folder(), "checkpoints", "best.ckpt")
    done = shell(*SIZES, "trainer=ddp_cpu")
    assert done.returncode == 0, done.stderr
    double = shell.result()
    assert double["steps"] == single["steps"]
    for name, value in single["metrics"].items():
        tolerance = 1e-4 if "variance" in name else 2e-6
        assert double["metrics"][name] == pytest.approx(value, rel=tolerance, abs=1e-7), name
    assert len(shell.runs()) == 2
    assert all(run.info.status == "FINISHED" for run in shell.runs())
    # The same checkpoint, scored without training, by one process and by two.
    score = ("trainer.limit_train_batches=0", f"checkpoint={checkpoint}")
    figures = []
    for processes in ((), ("trainer=ddp_cpu",)):
        assert shell(*score, *processes).returncode == 0
        figures.append(shell.result()["metrics"])
    one, two = figures
    assert one["val/count"] == two["val/count"] == 31 * 8 * 128
    assert one["test/count"] == two["test/count"] == 33 * 8 * 128
    for split in ("val", "test"):
        assert two[f"{split}/loss"] == pytest.approx(one[f"{split}/loss"], rel=1e-9)
    state = torch.load(checkpoint)
    assert one["val/loss"] == pytest.approx(state["attnscale"]["best_loss"], rel=1e-6)


def test_a_failing_rank_fails_its_job_only(shell: Any, tmp_path: Path) -> None:
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(FAILING)
    done = shell(
        "-m",
        "attention.scale=sqrt,none",
        "trainer=ddp_cpu",
        *SIZES,
        extra={"PYTHONPATH": str(hook)},
        timeout=150,
    )
    assert done.returncode == 1
    assert "rank 1: RuntimeError: broken on purpose" in done.stdout
    assert [run.info.status for run in shell.jobs()] == ["FAILED", "FINISHED"]
    assert len(list((shell.path / "multirun").iterdir())) == 1
    assert "test/loss" in shell.jobs()[1].data.metrics
