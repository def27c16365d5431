"""Every argument of Lightning's Trainer: its effect, or one line that names it.

A text among the expectations is what refuses the value; a function looks at what the run did.
"""

import inspect
import re

import pytest
import pytorch_lightning as pl
from pytorch_lightning.plugins.io import AsyncCheckpointIO
from pytorch_lightning.strategies import DDPStrategy, SingleDeviceStrategy

from attnscale.callbacks.progress import Progress
from tests.support.trial import (
    LIGHTNING,
    MODELS,
    N_STEPS,
    STOP,
    Expected,
    Run,
    named,
    steps,
    trial,
)

__all__ = ["trial"]

EVERY_3 = named(f"{LIGHTNING}.ModelCheckpoint", every_n_train_steps=3, save_top_k=-1)
ARGUMENTS: dict[str, list[tuple[str, tuple[str, ...], Expected]]] = {
    "accelerator": [
        ("cpu", (), lambda run: run.trainer.accelerator.name() == "cpu"),
        ("abacus", (), "trainer.accelerator=abacus"),
    ],
    "strategy": [
        ("auto", (), lambda run: isinstance(run.trainer.strategy, SingleDeviceStrategy)),
        ("ddp", (), lambda run: isinstance(run.trainer.strategy, DDPStrategy)),
        ("chess", (), "trainer.strategy=chess"),
    ],
    "devices": [
        ("1", (), lambda run: run.trainer.num_devices == 1),
        ("0", (), "trainer.devices=0"),
    ],
    "num_nodes": [
        ("1", (), lambda run: run.trainer.num_nodes == 1),
        ("0", (), "trainer.num_nodes=0"),
        ("2", (), "trainer.num_nodes=2"),
    ],
    "precision": [
        ("bf16-mixed", (), lambda run: run.trainer.precision == "bf16-mixed"),
        ("bf16-true", (), lambda run: run.trainer.precision == "bf16-true"),
        ("48", (), "trainer.precision=48"),
        ("transformer-engine", (), "trainer.precision=transformer-engine"),
    ],
    "logger": [
        ("true", (), lambda run: run.steps_of("train/loss") == list(range(N_STEPS))),
        ("false", (), lambda run: run.steps_of("train/loss") == []),
        (f"[{named('pytorch_lightning.loggers.Nobody')}]", (), "trainer.logger[0]"),
    ],
    "callbacks": [
        (f"[{EVERY_3}]", (), lambda run: len(run.files()) == 2 + N_STEPS // 3),
        (f"[{named(f'{LIGHTNING}.Timer', duration='soon')}]", (), "trainer.callbacks[0]"),
        ("true", (), "trainer.callbacks=True"),
    ],
    "fast_dev_run": [("2", (), steps(2)), ("0.5", (), "trainer.fast_dev_run=0.5")],
    "max_epochs": [("1", (), steps(4)), ("-2", (), "trainer.max_epochs=-2")],
    "min_epochs": [("3", STOP, steps(12)), ("-1", (), "trainer.min_epochs=-1")],
    "max_steps": [("3", (), steps(3)), ("-2", (), "trainer.max_steps=-2")],
    "min_steps": [("6", STOP, steps(6)), ("-1", (), "trainer.min_steps=-1")],
    "max_time": [
        (
            "{milliseconds: 1}",
            ("trainer.max_epochs=1000",),
            lambda run: run.result.steps < 4 * 1000,
        ),
        ("soon", (), "trainer.max_time=soon"),
        ("{moons: 1}", (), "trainer.max_time={'moons': 1}"),
    ],
    "limit_train_batches": [
        ("2", (), steps(4)),
        ("0.1", (), steps(4)),
        ("0.01", (), "trainer.limit_train_batches=0.01"),
        ("1.5", (), "trainer.limit_train_batches=1.5"),
    ],
    "limit_val_batches": [
        ("1", (), lambda run: run.trainer.num_val_batches == [1]),
        ("0", (), lambda run: "best.ckpt" not in run.files()),
        ("0.1", (), "trainer.limit_val_batches=0.1"),
        ("-1", (), "trainer.limit_val_batches=-1"),
    ],
    "limit_test_batches": [
        ("1", (), lambda run: run.trainer.num_test_batches == [1]),
        ("0", (), lambda run: "test/loss" not in run.result.metrics),
        ("0.1", (), "trainer.limit_test_batches=0.1"),
        ("-1", (), "trainer.limit_test_batches=-1"),
    ],
    "limit_predict_batches": [
        ("1.0", (), steps(N_STEPS)),
        ("2", (), "trainer.limit_predict_batches=2: has no effect"),
    ],
    "overfit_batches": [
        ("2", (), steps(4)),
        ("0.01", (), "trainer.overfit_batches=0.01"),
        ("-1", (), "trainer.overfit_batches=-1"),
    ],
    "val_check_interval": [
        ("2", (), lambda run: run.steps_of("val/loss") == [2, 4, 6, 8]),
        ("100", (), "trainer.val_check_interval=100"),
        ("0", (), "trainer.val_check_interval=0"),
    ],
    "check_val_every_n_epoch": [
        ("2", (), lambda run: run.steps_of("val/loss") == [8]),
        ("0", (), "trainer.check_val_every_n_epoch=0"),
        ("-1", (), "trainer.check_val_every_n_epoch=-1"),
    ],
    "num_sanity_val_steps": [
        ("1", (), lambda run: run.trainer.num_sanity_val_batches == [1]),
        ("-2", (), "trainer.num_sanity_val_steps=-2"),
    ],
    "log_every_n_steps": [
        ("3", (), lambda run: run.steps_of("train/loss") == [0, 3, 6]),
        ("0", (), "trainer.log_every_n_steps=0"),
    ],
    "enable_checkpointing": [
        ("true", (), lambda run: run.files() == ["best.ckpt", "last.ckpt"]),
        ("false", (), lambda run: run.files() == []),
    ],
    "enable_progress_bar": [
        ("true", (), lambda run: run.has(Progress)),
        ("false", (), lambda run: not run.has(Progress)),
    ],
    "enable_model_summary": [
        ("true", (), lambda run: "Total params" in run.screen),
        ("false", (), lambda run: "Total params" not in run.screen),
    ],
    "accumulate_grad_batches": [
        ("3", (), steps(4)),
        ("0", (), "trainer.accumulate_grad_batches=0"),
    ],
    "gradient_clip_val": [
        ("1e-3", ("optimizer=sgd", "optimizer.lr=1"), lambda run: 0 < run.moved() <= 8e-3),
        ("-1", (), "trainer.gradient_clip_val=-1"),
    ],
    "gradient_clip_algorithm": [
        (
            "value",
            ("trainer.gradient_clip_val=1e-5", "optimizer=sgd", "optimizer.lr=1"),
            lambda run: 7e-5 < run.moved() <= 8.1e-5,
        ),
        ("l1", (), "trainer.gradient_clip_algorithm=l1"),
    ],
    "deterministic": [
        ("true", (), lambda run: "deterministic" in run.inside),
        ("false", (), lambda run: "deterministic" not in run.inside),
        ("maybe", (), "trainer.deterministic=maybe"),
    ],
    "benchmark": [
        ("true", (), lambda run: "benchmark" in run.inside),
        ("false", (), lambda run: "benchmark" not in run.inside),
    ],
    "inference_mode": [
        ("true", (), lambda run: "inference" in run.inside),
        ("false", (), lambda run: "inference" not in run.inside),
    ],
    "use_distributed_sampler": [
        ("false", (), steps(N_STEPS)),
        ("true", (), "trainer.use_distributed_sampler=True: has no effect"),
    ],
    "profiler": [
        ("simple", (), lambda run: "FIT Profiler Report" in run.screen),
        ("advanced", (), lambda run: "FIT Profiler Report" in run.screen),
        ("xla", (), "trainer.profiler=xla"),
        ("loud", (), "trainer.profiler=loud"),
    ],
    "detect_anomaly": [
        ("true", (), lambda run: "anomaly" in run.inside),
        ("false", (), lambda run: "anomaly" not in run.inside),
    ],
    "barebones": [("false", (), steps(N_STEPS)), ("true", (), "trainer.barebones=True")],
    "plugins": [
        (
            f"[{named('pytorch_lightning.plugins.AsyncCheckpointIO')}]",
            (),
            lambda run: isinstance(run.trainer.strategy.checkpoint_io, AsyncCheckpointIO),
        ),
        ("none", (), "trainer.plugins=none"),
    ],
    "sync_batchnorm": [
        ("false", (), steps(N_STEPS)),
        ("true", (), "trainer.sync_batchnorm=True: has no effect"),
    ],
    "reload_dataloaders_every_n_epochs": [
        ("0", (), lambda run: run.n_loaders == 2),
        ("1", (), lambda run: run.n_loaders == 3),
    ],
    "default_root_dir": [
        ("null", (), lambda run: run.files() == ["best.ckpt", "last.ckpt"]),
        ("${folder}/deep", (), lambda run: "/deep/" in run.result.last_checkpoint),
    ],
    "enable_autolog_hparams": [
        ("false", (), steps(N_STEPS)),
        ("true", (), "trainer.enable_autolog_hparams=True: has no effect"),
    ],
    "model_registry": [
        ("null", (), steps(N_STEPS)),
        ("mine", (), "trainer.model_registry=mine: has no effect"),
    ],
}
"""Argument to values, what else is set, and what comes of it."""

FAST = (
    *(("callbacks", 0), ("min_steps", 0), ("fast_dev_run", 1), ("val_check_interval", 1)),
    *(("profiler", 0), ("default_root_dir", 0), ("limit_val_batches", 2)),
)
CASES = [
    pytest.param(
        model,
        argument,
        (value, more, expected),
        id=f"{model}-{argument}-{i}",
        marks=() if model == "autoencoder" and (argument, i) in FAST else pytest.mark.slow,
    )
    for model in MODELS
    for argument, cases in ARGUMENTS.items()
    for i, (value, more, expected) in enumerate(cases)
]


def test_every_argument_is_tried_with_two_values() -> None:
    parameters = set(inspect.signature(pl.Trainer.__init__).parameters) - {"self"}
    assert set(ARGUMENTS) == parameters
    assert all(len(cases) >= 2 for cases in ARGUMENTS.values())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("model", "argument", "case"), CASES)
def test_an_argument_has_its_effect_or_is_refused_by_name(
    trial: Run, model: str, argument: str, case: tuple[str, tuple[str, ...], Expected]
) -> None:
    value, more, expected = case
    override = f"trainer.{argument}={value}"
    if callable(expected):
        assert expected(trial(model, *more, override))
        return
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}") as refusal:
        trial(model, *more, override)
    assert "\n" not in str(refusal.value)
