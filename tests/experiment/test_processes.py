"""Two gloo processes on the CPU are one run, and train and score like one process."""

from typing import Any

import pytest
import torch

SIZES = (
    "trainer.max_epochs=2",
    "data.n_train=91",
    "data.n_val=29",
    "data.n_test=36",
    "data.batch_size=15",
    "data.eval_batch_size=7",
)
"""The last batch of each split is one sequence, and one process has none of it."""


def test_two_processes_are_one_run(lab: Any) -> None:
    single, double = lab.run(*SIZES), lab.run(*SIZES, "trainer=ddp_cpu")
    assert double.steps == single.steps
    for name, value in single.metrics.items():
        # Explained variance is near 0 here, a difference of two numbers near 1.
        assert double.metrics[name] == pytest.approx(value, rel=2e-6, abs=2e-6), name
    for metric in ("train/loss", "grad_norm/q"):
        one, two = (lab.curve(result.run_id, metric) for result in (single, double))
        assert [step for step, _ in two] == [step for step, _ in one]
        assert [v for _, v in two] == pytest.approx([v for _, v in one], rel=2e-5)
    assert [run.info.status for run in lab.recorded()] == ["FINISHED"] * 2


@pytest.mark.slow
def test_a_checkpoint_is_scored_alike_by_one_process_and_by_two(lab: Any) -> None:
    single = lab.run(*SIZES)
    score = ("trainer.limit_train_batches=0", f"checkpoint={single.best_checkpoint}")
    one, two = (lab.run(*SIZES, *score, *more).metrics for more in ((), ("trainer=ddp_cpu",)))
    assert one["val/count"] == two["val/count"] == 29 * 8 * 128
    assert one["test/count"] == two["test/count"] == 36 * 8 * 128
    for split in ("val", "test"):
        assert two[f"{split}/loss"] == pytest.approx(one[f"{split}/loss"], rel=1e-9)
    best = torch.load(single.best_checkpoint)["attnscale"]["best_loss"]
    assert one["val/loss"] == pytest.approx(best, rel=1e-6)
