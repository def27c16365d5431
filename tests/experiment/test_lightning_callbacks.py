"""Every callback that Lightning exports: its effect, or one line that names it."""

import importlib.util
import re
from pathlib import Path

import pytest
from pytorch_lightning import callbacks as lightnings

from attnscale.callbacks.progress import Progress
from tests.support.trial import LIGHTNING, MODELS, N_STEPS, Expected, Run, named, steps, trial

__all__ = ["trial"]

MONITOR = {"monitor": "val/loss", "stopping_threshold": 1e9}
CALLBACKS: list[tuple[str, dict[str, object], tuple[str, ...], Expected]] = [
    ("BackboneFinetuning", {}, (), "callbacks.x: BackboneFinetuning"),
    ("BaseFinetuning", {}, (), "callbacks.x: BaseFinetuning"),
    ("BasePredictionWriter", {}, (), "callbacks.x: BasePredictionWriter"),
    ("BatchSizeFinder", {}, (), "callbacks.x: BatchSizeFinder"),
    ("Callback", {}, (), "callbacks.x: Callback: a base class"),
    ("Checkpoint", {}, (), "callbacks.x: Checkpoint: a base class"),
    (
        "DeviceStatsMonitor",
        {},
        (),
        (lambda run: len(run.steps_starting("DeviceStatsMonitor")) > 0)
        if importlib.util.find_spec("psutil")
        else "callbacks: DeviceStatsMonitor",
    ),
    ("EarlyStopping", MONITOR, ("trainer.max_epochs=5",), steps(4)),
    ("EarlyStopping", {"monitor": "train/loss"}, (), "callbacks: EarlyStopping: Early stopping"),
    ("EarlyStopping", {"monitor": "val_loss"}, (), "callbacks: EarlyStopping: Early stopping"),
    ("EarlyStopping", MONITOR, ("trainer.limit_val_batches=0",), "callbacks: EarlyStopping: Early"),
    (
        "GradientAccumulationScheduler",
        {"scheduling": "{0: 2}"},
        (),
        "callbacks.x: GradientAccumulationScheduler: set trainer.accumulate_grad_batches",
    ),
    ("LambdaCallback", {"on_train_start": "f"}, (), "callbacks.x: LambdaCallback: wants functions"),
    ("LearningRateFinder", {}, (), "callbacks.x: LearningRateFinder: sweep optimizer.lr"),
    (
        "LearningRateMonitor",
        {},
        (),
        lambda run: set(run.steps_starting("lr-")) == set(range(N_STEPS)),
    ),
    (
        "ModelCheckpoint",
        {"every_n_train_steps": 3, "save_top_k": -1},
        (),
        lambda run: len(run.files()) == 2 + N_STEPS // 3,
    ),
    ("ModelCheckpoint", {"monitor": "loss"}, (), "callbacks: ModelCheckpoint: "),
    ("ModelCheckpoint", {"train_time_interval": 60}, (), "callbacks.x.train_time_interval=60"),
    ("ModelPruning", {"pruning_fn": "l1_unstructured"}, (), "callbacks.x: ModelPruning"),
    ("ModelSummary", {"max_depth": 2}, (), lambda run: "Total params" in run.screen),
    (
        "OnExceptionCheckpoint",
        {"dirpath": "${folder}/exception"},
        (f"trainer.callbacks=[{named(f'{LIGHTNING}.EarlyStopping', monitor='val_loss')}]",),
        "callbacks: EarlyStopping",
    ),
    ("ProgressBar", {}, (), "callbacks.x: ProgressBar: a base class"),
    ("RichModelSummary", {}, (), lambda run: "Total params" in run.screen),
    ("RichProgressBar", {}, (), lambda run: not run.has(Progress) and "Epoch" in run.screen),
    ("StochasticWeightAveraging", {"swa_lrs": 0.1}, (), "callbacks.x: StochasticWeightAveraging"),
    ("SpikeDetection", {}, (), "callbacks.x: SpikeDetection"),
    ("ThroughputMonitor", {}, (), "callbacks.x._target_=pytorch_lightning.callbacks.Throughput"),
    (
        "Timer",
        {"duration": "{milliseconds: 1}"},
        ("trainer.max_epochs=1000",),
        lambda run: run.result.steps < 4 * 1000,
    ),
    ("Timer", {"duration": "soon"}, (), "callbacks.x: `Timer(duration='soon')`"),
    ("TQDMProgressBar", {}, (), lambda run: not run.has(Progress) and "Epoch 1" in run.screen),
    ("EMAWeightAveraging", {"decay": 0.9}, (), lambda run: run.averages() == N_STEPS),
    ("WeightAveraging", {}, (), lambda run: run.averages() == N_STEPS),
]
"""Class, its arguments, what else is set, and what comes of it."""
FAST = {"LambdaCallback", "ModelPruning", "EMAWeightAveraging", "TQDMProgressBar"}
CASES = [
    pytest.param(
        model,
        case,
        id=f"{model}-{case[0]}-{i}",
        marks=() if model == "autoencoder" and case[0] in FAST else pytest.mark.slow,
    )
    for model in MODELS
    for i, case in enumerate(CALLBACKS)
]


def test_every_callback_is_tried() -> None:
    assert {name for name, *_ in CALLBACKS} == set(lightnings.__all__)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("model", "case"), CASES)
def test_a_callback_has_its_effect_or_is_refused_by_name(
    trial: Run, model: str, case: tuple[str, dict[str, object], tuple[str, ...], Expected]
) -> None:
    name, options, more, expected = case
    overrides = (
        *("trainer.enable_progress_bar=true", *more),
        f"+callbacks.x={named(f'{LIGHTNING}.{name}', **options)}",
    )
    if callable(expected):
        assert expected(trial(model, *overrides))
        return
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}") as refusal:
        trial(model, *overrides)
    assert "\n" not in str(refusal.value)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_a_run_comes_to_is_saved_when_it_fails(trial: Run, tmp_path: Path) -> None:
    broken = named(f"{LIGHTNING}.EarlyStopping", monitor="val_loss")
    saving = named(f"{LIGHTNING}.OnExceptionCheckpoint", dirpath=tmp_path / "exception")
    with pytest.raises(ValueError, match="EarlyStopping"):
        trial("autoencoder", f"trainer.callbacks=[{broken},{saving}]")
    assert len(list((tmp_path / "exception").glob("*.ckpt"))) == 1
