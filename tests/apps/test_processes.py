"""Several processes for one run: gloo on the CPU."""

from pathlib import Path
from typing import Any

import pytest

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


@pytest.mark.slow
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
