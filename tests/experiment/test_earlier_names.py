"""A checkpoint of an earlier version, which named some things otherwise, can still be used."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from attnscale.cli.resume import resumed_config
from attnscale.experiment.checkpoints import load_checkpoint

SHORT = (
    "trainer.max_epochs=1",
    "data.n_train=100",
    "data.n_val=30",
    "data.n_test=30",
    "attention.scale=score_batchnorm",
)


@pytest.fixture
def half(lab: Any) -> str:
    return str(lab.run(*SHORT).last_checkpoint)


@pytest.fixture
def earlier(half: str, tmp_path: Path) -> str:
    """Write a checkpoint with the names of an earlier version."""
    state = torch.load(half)
    tensors, callbacks = state["state_dict"], state["attnscale"]["config"]["callbacks"]
    for name in ("running_mean", "running_variance"):
        head = "model.layers.0.attention"
        tensors[f"{head}.{name}"] = tensors.pop(f"{head}.scale.{name}")
    for earlier, today in (
        ("least_live_rows", "min_live_rows"),
        ("largest_logit", "max_logit_gap"),
    ):
        callbacks["watchdog"][earlier] = callbacks["watchdog"].pop(today)
    node = callbacks.pop("learned_scales")
    target = "attnscale.callbacks.temperatures.Temperatures"
    callbacks["temperatures"] = {**node, "_target_": target}
    path = tmp_path / "earlier.ckpt"
    torch.save(state, path)
    return str(path)


@pytest.mark.slow
def test_training_goes_on_as_from_a_checkpoint_of_today(lab: Any, half: str, earlier: str) -> None:
    runs = [
        lab.run(*SHORT, "trainer.max_epochs=2", f"checkpoint={path}") for path in (half, earlier)
    ]
    wanted, resumed = (lab.curve(result.run_id, "train/loss") for result in runs)
    assert len(wanted) == 4
    assert resumed == wanted
    today, updated = (load_checkpoint(str(result.last_checkpoint)) for result in runs)
    assert list(updated.tensors) == list(today.tensors)
    for key, value in today.tensors.items():
        assert torch.equal(updated.tensors[key], value), key


def test_its_configuration_is_todays(lab: Any, half: str, earlier: str) -> None:
    configs = [
        resumed_config(
            replace(lab.config(*SHORT), checkpoint=path),
            ["callbacks.learned_scales.per_head=false"],
        )
        for path in (half, earlier)
    ]
    today, updated = (config.callbacks for config in configs)
    assert updated == today
    assert updated["learned_scales"]["_target_"].endswith(".learned_scales.LearnedScales")
