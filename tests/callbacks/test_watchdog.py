"""Which head is in trouble, and what happens to a run whose figures are not finite."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attnscale.attention import attentions
from attnscale.callbacks.watchdog import MAX_ALARMS, Watchdog
from attnscale.experiment import train as training
from attnscale.experiment.assemble import Parts, assemble
from tests.apps.conftest import Shell, shell
from tests.callbacks.conftest import AUTOENCODER, Fit, Fitted

__all__ = ["shell"]

LIGHT = ("callbacks.pictures=null", "callbacks.gradient_stats=null")
HURT = "layers.1.attention"


@torch.no_grad()
def sicken(parts: Parts) -> None:
    """Multiply the query projection of head 2 of the second attention by 100."""
    attention = attentions(parts.module.model)[HURT]
    attention.q.weight[2 * attention.d_k : 3 * attention.d_k] *= 100


def alarms(done: Fitted) -> list[str]:
    callbacks: list[Any] = getattr(done.trainer, "callbacks")  # noqa: B009
    (found,) = [callback for callback in callbacks if isinstance(callback, Watchdog)]
    return found.alarms


SICK = (
    *AUTOENCODER,
    *LIGHT,
    "model.n_heads=3",
    "model.init=unit",
    "optimizer.lr=0",
    "callbacks.watchdog.min_live_rows=0.2",
)


def test_the_head_that_is_sick_is_named_and_no_other(fit: Fit) -> None:
    assert alarms(fit(*SICK)) == []
    done = fit(*SICK, before=sicken)
    told = alarms(done)
    assert {text.partition(":")[0] for text in told} == {
        "entropy collapse",
        "large logits",
        "dead rows",
    }
    assert len(told) == 3, "once per head and trouble, not at each of eight samples"
    assert all(f" {HURT} head 2 at step 0, " in text for text in told)
    points = done.points[f"attention/{HURT}/head2/logit_max"]
    assert f"logit_max {points[0]:.4g} above 50" in " ".join(told)
    assert done.module.diverged is None
    assert done.trainer.global_step == 8, "an alarm alone ends nothing"


@pytest.mark.parametrize(
    ("key", "trouble"),
    [
        ("min_entropy_norm", "entropy collapse"),
        ("max_logit", "large logits"),
        ("min_live_rows", "dead rows"),
    ],
)
def test_a_bound_can_be_switched_off(fit: Fit, key: str, trouble: str) -> None:
    told = alarms(fit(*SICK, f"callbacks.watchdog.{key}=null", before=sicken))
    assert len(told) == 2
    assert not [text for text in told if text.startswith(trouble)]


def test_without_bounds_nothing_is_told(fit: Fit) -> None:
    keys = ("min_entropy_norm", "max_logit", "min_live_rows")
    off = [f"callbacks.watchdog.{key}=null" for key in keys]
    assert alarms(fit(*SICK, *off, before=sicken)) == []


def test_bounds_are_those_of_the_configuration(fit: Fit) -> None:
    strict = ("min_entropy_norm=0.999", "max_logit=null", "min_live_rows=null")
    told = alarms(fit(*SICK, *(f"callbacks.watchdog.{text}" for text in strict)))
    assert len(told) == 6
    assert all("below 0.999" in text for text in told)


def test_alarms_reach_the_run_and_the_screen(
    lab: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def hurt(*given: Any) -> Parts:
        parts = assemble(*given)
        sicken(parts)
        return parts

    monkeypatch.setattr(training, "assemble", hurt)
    with caplog.at_level(logging.WARNING, logger="attnscale.callbacks.watchdog"):
        lab.run(*SICK, "trainer.max_epochs=1", "trainer.limit_test_batches=0")
    lines = lab.last().data.tags["alarms"].splitlines()
    assert [f"{HURT} head 2" in line for line in lines] == [True] * 3
    shown = [record.message for record in caplog.records]
    assert all(a.startswith(b) for a, b in zip(shown, lines, strict=True)), shown
    assert lab.last().data.tags["diverged"] == "false"


def test_a_model_of_many_sick_heads_does_not_flood(fit: Fit) -> None:
    many = ("model.n_heads=16", "model.n_layers=2", "callbacks.watchdog.max_logit=-1e9")
    told = alarms(fit(*AUTOENCODER, *LIGHT, *many, "callbacks.watchdog.min_entropy_norm=2"))
    assert len(told) == MAX_ALARMS


# --- not finite ---


@pytest.mark.parametrize("stop", [True, False])
def test_a_run_that_diverges_ends_or_goes_on(fit: Fit, stop: bool) -> None:
    done = fit(*AUTOENCODER, *LIGHT, "optimizer.lr=1e20", f"callbacks.watchdog.stop={stop}")
    assert done.module.diverged is not None
    assert done.module.diverged.step in (1, 2)
    assert (done.trainer.global_step < 8) is stop
    told = [text for text in alarms(done) if text.startswith("not finite")]
    assert told, "the reason is missing"
    assert f"at step {done.module.diverged.step}" in told[0]


@pytest.mark.parametrize(
    ("optimizer", "rate"), [("sgd", "1e4"), ("adam", "1e10"), ("adam", "1e19")]
)
def test_pictures_of_a_run_that_diverged(fit: Fit, rate: str, optimizer: str) -> None:
    more = ("trainer.max_epochs=1", "callbacks.watchdog.stop=false", f"optimizer={optimizer}")
    done = fit(*AUTOENCODER, *more, f"optimizer.lr={rate}", "attention.scale=none")
    names = {path.name for path in (done.folder / "pictures").glob("*.png")}
    assert names == {"maps.png", "histograms.png", "entropy.png"}


def test_the_gradient_that_broke_is_named(fit: Fit) -> None:
    def before(parts: Parts) -> None:
        weight = attentions(parts.module.model)[HURT].k.weight
        calls: list[int] = []

        def spoil(gradient: Tensor) -> Tensor:
            calls.append(1)
            return gradient * (torch.inf if len(calls) == 3 else 1.0)

        weight.register_hook(spoil)  # type: ignore[no-untyped-call]

    # Statistics are off: they would see the weights that follow, and be named themselves.
    done = fit(*AUTOENCODER, *LIGHT, "callbacks.attention_stats=null", before=before)
    assert done.module.diverged is not None
    assert done.module.diverged.metric == f"grad_norm/{HURT}/k"
    assert done.module.diverged.step == 2
    assert done.trainer.global_step == 4, "noticed at the validation of the first epoch"
    assert alarms(done) == [f"not finite: grad_norm/{HURT}/k at step 2"]


def test_a_statistic_that_is_not_finite_names_its_heads(fit: Fit) -> None:
    @torch.no_grad()
    def before(parts: Parts) -> None:
        attention = attentions(parts.module.model)[HURT]
        attention.q.weight[attention.d_k] = torch.nan

    done = fit(*AUTOENCODER, *LIGHT, before=before)
    assert done.module.diverged is not None
    assert done.module.diverged.step == 0
    assert alarms(done)[0].startswith(f"not finite: {HURT} head 1, ")


@pytest.mark.slow
def test_the_other_jobs_of_a_sweep_go_on(shell: Shell) -> None:
    done = shell(
        "-m",
        "optimizer.lr=1e-3,1e20,1e-2",
        *AUTOENCODER,
        "trainer.accelerator=cpu",
        "trainer.limit_test_batches=0",
        "callbacks.pictures.examples=1",
    )
    assert done.returncode == 0, done.stderr
    first, sick, last = shell.jobs()
    for good in (first, last):
        assert good.info.status == "FINISHED"
        assert good.data.tags["diverged"] == "false"
        assert Path(good.data.tags["best_checkpoint"]).is_file()
        assert "alarms" not in good.data.tags
    assert sick.info.status == "FINISHED"
    assert sick.data.tags["diverged"] == "true"
    assert int(sick.data.tags["diverged.step"]) in (1, 2)
    assert sick.data.tags["diverged.metric"].startswith(("train/loss", "attention/", "grad_norm/"))
    assert "best_checkpoint" not in sick.data.tags
    assert f"at step {sick.data.tags['diverged.step']}" in sick.data.tags["alarms"]
    assert sick.data.tags["alarms"].startswith("not finite: ")


# --- several processes ---

SPOILED = """
import json, os, sys
from pathlib import Path
import torch
from attnscale.experiment import run
from attnscale.task.reconstruction import Reconstruction

whole = Reconstruction.loss

def loss(self, batch):
    found = whole(self, batch)
    bad = self.training and os.environ["RANK"] == "1" and self.global_step == 2
    return found * torch.nan if bad else found

Reconstruction.loss = loss
config = json.loads(Path(sys.argv[1]).read_text())
result = run(config)
name = "rank" + os.environ["RANK"] + ".json"
Path(sys.argv[1]).with_name(name).write_text(json.dumps([result.diverged, result.steps]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("statistics", [pytest.param(True, marks=pytest.mark.slow), False])
def test_one_process_of_two_that_fails_ends_both(lab: Any, statistics: bool) -> None:
    more = () if statistics else ("callbacks.attention_stats=null",)
    config = lab.config(*AUTOENCODER, *LIGHT, *more, "trainer=ddp_cpu", "trainer.max_epochs=3")
    script, given = lab.path / "spoiled.py", lab.path / "config.json"
    script.write_text(SPOILED)
    given.write_text(json.dumps(config))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, "--nproc-per-node", "2", str(script), str(given)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": "src"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    decisions = [json.loads((lab.path / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    assert decisions[0] == decisions[1]
    where, steps = decisions[0]
    assert steps == 4, "both end with the epoch in which it was seen"
    if statistics:
        # The weights of both are spoiled by the step, and the next sample sees it.
        assert where["step"] in (2, 3)
    else:
        assert where == {"metric": "train/loss", "step": 2}
    assert "not finite: " in lab.last().data.tags["alarms"]
