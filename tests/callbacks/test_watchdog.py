"""Which head is in trouble, and what happens to a run whose figures are not finite."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attnscale.attention import attentions
from attnscale.callbacks.watchdog import MAX_LINES, Watchdog
from attnscale.config.section import plain
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


def watchdog(done: Fitted) -> Watchdog:
    callbacks: list[Any] = getattr(done.trainer, "callbacks")  # noqa: B009
    (found,) = [callback for callback in callbacks if isinstance(callback, Watchdog)]
    return found


def alarms(done: Fitted) -> list[str]:
    return watchdog(done).alarms


def unusual(done: Fitted) -> list[str]:
    return watchdog(done).unusual


SICK = (
    *AUTOENCODER,
    *LIGHT,
    "model.n_heads=3",
    "model.init=unit",
    "optimizer.lr=0",
    "callbacks.watchdog.min_live_rows=0.2",
)


# --- what is unusual ---


def test_the_head_that_is_unusual_is_named_and_no_other(fit: Fit) -> None:
    assert unusual(fit(*SICK)) == []
    done = fit(*SICK, before=sicken)
    lines = unusual(done)
    assert {text.partition(":")[0] for text in lines} == {
        "low entropy",
        "large gap",
        "few live rows",
    }
    assert len(lines) == 3, "once per head, not at each of eight samples"
    assert all(f" {HURT} head 2 at step 0, " in text for text in lines)
    points = done.points[f"attention/{HURT}/head2/logit_gap"]
    assert f"logit_gap {points[0]:.4g} above 50" in " ".join(lines)
    assert done.trainer.global_step == 8, "it ends nothing"


@pytest.mark.parametrize(
    ("key", "what"),
    [
        ("min_entropy_norm", "low entropy"),
        ("max_logit_gap", "large gap"),
        ("min_live_rows", "few live rows"),
    ],
)
def test_a_bound_can_be_switched_off(fit: Fit, key: str, what: str) -> None:
    lines = unusual(fit(*SICK, f"callbacks.watchdog.{key}=null", before=sicken))
    assert len(lines) == 2
    assert not [text for text in lines if text.startswith(what)]


def test_without_bounds_nothing_is_told(fit: Fit) -> None:
    keys = ("min_entropy_norm", "max_logit_gap", "min_live_rows")
    off = [f"callbacks.watchdog.{key}=null" for key in keys]
    done = fit(*SICK, *off, before=sicken)
    assert (alarms(done), unusual(done)) == ([], [])


def test_bounds_are_those_of_the_configuration(fit: Fit) -> None:
    strict = ("min_entropy_norm=0.999", "max_logit_gap=null", "min_live_rows=null")
    lines = unusual(fit(*SICK, *(f"callbacks.watchdog.{text}" for text in strict)))
    assert len(lines) == 6
    assert all("below 0.999" in text for text in lines)


def test_a_model_of_many_unusual_heads_does_not_flood(fit: Fit) -> None:
    many = ("model.n_heads=16", "model.n_layers=2", "callbacks.watchdog.max_logit_gap=-1")
    lines = unusual(fit(*AUTOENCODER, *LIGHT, *many, "callbacks.watchdog.min_entropy_norm=2"))
    assert len(lines) == MAX_LINES


@torch.no_grad()
def shift(parts: Parts) -> None:
    """Give every key the same large part along the mean of a head's queries."""
    for attention in attentions(parts.module.model).values():
        attention.q.bias = torch.nn.Parameter(torch.ones(attention.q.weight.shape[0]))
        attention.k.bias = torch.nn.Parameter(100 * torch.ones(attention.k.weight.shape[0]))


def test_logits_that_a_row_shares_are_not_large(fit: Fit) -> None:
    done = fit(*SICK, before=shift)
    assert min(done.points["attention/layers.0.attention/logit_max"].values()) > 100
    assert unusual(done) == []


# --- what harms ---

LONG = (*AUTOENCODER, *LIGHT, "trainer.max_epochs=32", "model.n_layers=1", "model.residual=false")
ONE_HEAD = (*LONG, "model.n_heads=1", "model.d_k=12", "optimizer.lr=1e-2")
SATURATION = 1e6
"""Beyond it a tie, whose gradient is as large as the logits, is too rare to learn from."""


@torch.no_grad()
def saturate(parts: Parts) -> None:
    """Let each query attend to one arbitrary key."""
    attentions(parts.module.model)["layers.0.attention"].q.weight.mul_(SATURATION)


@torch.no_grad()
def copy(parts: Parts) -> None:
    """Let each query attend to itself alone."""
    for attention in attentions(parts.module.model).values():
        attention.q.weight.copy_(SATURATION * torch.eye(12))
        attention.k.weight.copy_(torch.eye(12))


def test_one_hot_attention_that_solves_the_task_is_no_alarm(fit: Fit) -> None:
    done = fit(*ONE_HEAD, before=copy)
    losses = list(done.points["train/loss"].values())
    assert losses[-1] < 0.5 * losses[0]
    assert [text.partition(":")[0] for text in unusual(done)] == [
        "low entropy",
        "large gap",
        "few live rows",
    ]
    assert alarms(done) == []


def test_a_run_that_stalls_in_saturation_is_told_once(fit: Fit) -> None:
    # Of so many sequences none is learned by heart.
    fresh = ("data.n_train=6400", "trainer.max_epochs=1")
    done = fit(*ONE_HEAD, *fresh, before=saturate)
    (text,) = alarms(done)
    assert text.startswith("stalled: layers.0.attention at step ")
    assert done.trainer.global_step == 200, "an alarm ends nothing"


@pytest.mark.parametrize(
    ("level", "fall", "share", "stalled"),
    [
        (1.0, 0.0, 1e-4, True),
        (0.81, 0.0, 1e-4, True),
        # Half a per cent and two per cent of the start over 64 steps.
        (1.0, 0.005 / 64, 1e-4, True),
        (1.0, 0.02 / 64, 1e-4, False),
        (0.79, 0.0, 1e-4, False),
        (1.0, 0.0, 2e-3, False),
    ],
)
def test_only_a_loss_that_stands_high_without_gradients_is_a_stall_of_that_attention(
    fit: Fit, level: float, fall: float, share: float, stalled: bool
) -> None:
    dog = watchdog(fit(*AUTOENCODER, *LIGHT, "trainer.max_steps=1"))
    dog.window.clear()
    for step in range(6 * 16):
        norms = {"grad_norm/total": 2.0, "grad_norm/q": 1.0, "grad_norm/k": 1.0}
        norms |= {f"grad_norm/layers.0.attention/{name}": 1.0 for name in "qk"}
        # A tie now and then, as in a saturated softmax.
        own = 100.0 if step % 3 == 0 else 2.0 * share
        norms |= {f"grad_norm/{HURT}/q": own, f"grad_norm/{HURT}/k": 0.0}
        dog.follow(step, (1.0 if step < 16 else level) - fall * step, norms)
    assert [text.partition(" at ")[0] for text in dog.alarms] == [f"stalled: {HURT}"] * stalled


def test_slow_learning_with_gradients_is_no_stall(fit: Fit) -> None:
    assert alarms(fit(*ONE_HEAD, "optimizer.lr=1e-7")) == []


def spoil_at(step: int) -> Callable[[Parts], None]:
    """Return what makes the output ten times too large before a step."""

    def before(parts: Parts) -> None:
        (attention,) = attentions(parts.module.model).values()
        calls: list[int] = []

        @torch.no_grad()
        def spoil(module: torch.nn.Module, inputs: Any) -> None:
            calls.append(1) if module.training else None
            if len(calls) == step:
                attention.o.weight *= 10

        attention.o.register_forward_pre_hook(spoil)

    return before


def test_a_spike_of_the_loss_is_told_once(fit: Fit) -> None:
    (text,) = alarms(fit(*ONE_HEAD, before=spoil_at(70)))
    assert text.startswith("loss rises: at step 79 to ")
    assert alarms(fit(*ONE_HEAD, before=spoil_at(1000))) == []


def test_a_head_that_was_never_live_beside_others_is_dead(fit: Fit) -> None:
    @torch.no_grad()
    def before(parts: Parts) -> None:
        (attention,) = attentions(parts.module.model).values()
        attention.q.weight[attention.d_k : 2 * attention.d_k] *= SATURATION

    every = "callbacks.attention_stats.every=8"
    done = fit(*LONG, every, "model.n_heads=3", before=before)
    assert [text.partition(", ")[0] for text in alarms(done)] == [
        "dead head: layers.0.attention head 1 at step 32"
    ]
    off = "callbacks.watchdog.min_live_rows=null"
    assert alarms(fit(*LONG, every, off, "model.n_heads=3", before=before)) == []


@pytest.mark.slow
@pytest.mark.parametrize(("epochs", "windows"), [(8, 2), (2, 0)])
def test_a_resumed_run_is_compared_with_its_own_start_or_not_at_all(
    lab: Any, epochs: int, windows: int
) -> None:
    more = (*AUTOENCODER, *LIGHT, "trainer.limit_test_batches=0")
    half = lab.run(*more, f"trainer.max_epochs={epochs}")
    curve = sorted(lab.curve(half.run_id, "train/loss"))
    means = [sum(loss for _, loss in curve[i : i + 16]) / 16 for i in range(0, 16 * windows, 16)]
    whole = lab.run(*more, "trainer.max_epochs=12", f"checkpoint={half.last_checkpoint}")
    levels = torch.load(whole.last_checkpoint)["callbacks"]["Watchdog"]["levels"]
    assert levels[:windows] == pytest.approx(means)
    assert len(levels) == (3 if windows else 0)


def test_alarms_reach_the_run_and_the_screen_and_what_is_unusual_the_run(
    lab: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def hurt(*given: Any) -> Parts:
        parts = assemble(*given)
        sicken(parts)
        return parts

    monkeypatch.setattr(training, "assemble", hurt)
    with caplog.at_level(logging.INFO, logger="attnscale.callbacks.watchdog"):
        lab.run(*SICK, "trainer.limit_test_batches=0")
    tags = lab.last().data.tags
    assert [f"{HURT} head 2" in line for line in tags["unusual"].splitlines()] == [True] * 3
    (line,) = tags["alarms"].splitlines()
    assert line.startswith(f"dead head: {HURT} head 2 ")
    shown = [r.message for r in caplog.records if not getattr(r, "file_only", False)]
    assert [text.startswith(line) for text in shown] == [True]
    assert tags["diverged"] == "false"


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
from attnscale.config.schema import TrainConfig
from attnscale.config.section import typed
from attnscale.experiment import run
from attnscale.task.reconstruction import Reconstruction

whole = Reconstruction.loss

def loss(self, batch):
    found = whole(self, batch)
    bad = self.training and os.environ["RANK"] == "1" and self.global_step == 2
    return found * torch.nan if bad else found

Reconstruction.loss = loss
config = typed(TrainConfig, json.loads(Path(sys.argv[1]).read_text()))
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
    given.write_text(json.dumps(plain(config)))
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
