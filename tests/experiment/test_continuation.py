"""A run that was broken off goes on as if nothing had happened: the same bits, the same points."""

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mlflow.tracking import MlflowClient

from attnscale.callbacks.names import FOLDER, LAST, PREVIOUS
from attnscale.config.build import compose
from attnscale.experiment import Result, run
from attnscale.signals import STOP, Stopped
from attnscale.task.loop import StepLoop

BASE = (
    "threads=1",
    "trainer.max_epochs=4",
    "callbacks.pictures=null",
    "optimizer.schedule=cosine",
    "optimizer.warmup_steps=3",
)
MODELS = {
    "autoencoder": ("model.d_k=8", "model.d_model=16", "model.dropout=0.2", "data.n_train=160"),
    "transformer": (
        *("model=transformer", "model.d_model=16", "model.d_k=8", "model.d_v=8"),
        *("model.n_layers=1", "model.n_heads=2", "model.feed_forward=16", "data.n_train=60"),
        *("data.batch_tokens=null", "data.batch_sentences=4", "data.n_val=8", "data.n_test=8"),
    ),
}
SLOW = pytest.mark.slow


def _state(result: Result) -> dict[str, Any]:
    assert result.last_checkpoint is not None
    state = torch.load(result.last_checkpoint, weights_only=True)
    return {name: state[name] for name in ("state_dict", "optimizer_states", "lr_schedulers")}


def _points(result: Result) -> list[tuple[str, int, float]]:
    """Return all points of the run, but for times and sizes of the process."""
    assert result.run_id is not None
    client = MlflowClient()
    names = client.get_run(result.run_id).data.metrics
    return sorted(
        (name, point.step, point.value)
        for name in names
        if not name.startswith(("time/", "memory/"))
        for point in client.get_metric_history(result.run_id, name)
    )


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)


@pytest.fixture
def stop_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let SIGTERM come in the middle of a step."""

    def plant(step: int) -> None:
        run_step = StepLoop.before_optimizer_step

        def before(loop: StepLoop) -> None:
            run_step(loop)
            if loop.steps_done == step:
                monkeypatch.setattr(StepLoop, "before_optimizer_step", run_step)
                signal.raise_signal(signal.SIGTERM)

        monkeypatch.setattr(StepLoop, "before_optimizer_step", before)

    return plant


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")


@pytest.fixture(autouse=True)
def handlers() -> Any:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    STOP.number = None
    signal.signal(signal.SIGTERM, STOP.take)
    yield
    STOP.number = None
    for number, handler in before.items():
        signal.signal(number, handler)


def _interrupted(
    overrides: tuple[str, ...], folder: Path, stop_after: Callable[[int], None], step: int
) -> Result:
    stop_after(step)
    with pytest.raises(Stopped):
        run(compose(overrides, folder=folder))
    STOP.number = None
    signal.signal(signal.SIGTERM, STOP.take)
    return run(compose([*overrides, "resume=last"], folder=folder))


@pytest.mark.parametrize(
    ("model", "more", "step"),
    [
        ("autoencoder", (), 7),
        pytest.param("autoencoder", ("task.block=2",), 6, id="last step of a block"),
        pytest.param("autoencoder", (), 9, id="last step of an epoch"),
        pytest.param("transformer", ("trainer.accumulate_grad_batches=2",), 9, marks=SLOW),
        pytest.param("transformer", ("trainer.val_check_interval=5",), 14, marks=SLOW),
        pytest.param("transformer", ("trainer.gradient_clip_val=0.5",), 44, marks=SLOW),
        pytest.param("transformer", ("attention.scale=learned",), 20, marks=SLOW),
        pytest.param("autoencoder", ("trainer.max_steps=13",), 11, marks=SLOW),
    ],
)
def test_after_a_signal_between_any_two_steps(
    model: str,
    more: tuple[str, ...],
    step: int,
    tmp_path: Path,
    stop_after: Callable[[int], None],
) -> None:
    overrides = (*BASE, *MODELS[model], *more)
    straight = run(compose(overrides, folder=tmp_path / "straight"))
    result = _interrupted(overrides, tmp_path / "broken", stop_after, step)
    assert _equal(_state(result), _state(straight))
    assert _points(result) == _points(straight)
    assert result.metrics == straight.metrics


def test_after_whole_epochs_with_the_checkpoint_as_a_new_run(tmp_path: Path) -> None:
    overrides = [*BASE, *MODELS["autoencoder"], "optimizer.schedule=constant"]
    straight = run(compose(overrides, folder=tmp_path / "straight"))
    half = run(compose([*overrides, "trainer.max_epochs=2"], folder=tmp_path / "half"))
    again = [*overrides, f"checkpoint={half.last_checkpoint}"]
    assert _equal(_state(run(compose(again, folder=tmp_path / "rest"))), _state(straight))


def test_a_damaged_last_checkpoint_is_noticed_and_the_one_before_it_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    overrides = [*BASE, *MODELS["autoencoder"]]
    straight = run(compose(overrides, folder=tmp_path))
    last = tmp_path / FOLDER / LAST
    content = last.read_bytes()
    state = _state(straight)
    last.write_bytes(content[: len(content) // 2])
    assert (tmp_path / FOLDER / PREVIOUS).is_file()
    result = run(compose([*overrides, "resume=last"], folder=tmp_path))
    assert "damaged" in caplog.text
    assert _equal(_state(result), state)
    assert _points(result) == _points(straight)


def test_killed_after_training_it_goes_on_with_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pytorch_lightning as pl

    overrides = [*BASE, *MODELS["autoencoder"]]
    straight = run(compose(overrides, folder=tmp_path / "straight"))
    with monkeypatch.context() as patch:
        patch.setattr(pl.Trainer, "test", lambda *_, **__: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(Stopped):
            run(compose(overrides, folder=tmp_path / "broken"))
    result = run(compose([*overrides, "resume=last"], folder=tmp_path / "broken"))
    assert result.metrics == straight.metrics
    assert _points(result) == _points(straight)


@SLOW
def test_pictures_and_files_are_those_of_a_run_straight_through(
    tmp_path: Path, stop_after: Callable[[int], None]
) -> None:
    overrides = tuple(word for word in BASE if "pictures" not in word) + MODELS["autoencoder"]
    straight = run(compose(overrides, folder=tmp_path / "straight"))
    result = _interrupted(overrides, tmp_path / "broken", stop_after, 7)

    def artifacts(run_id: str | None) -> set[str]:
        assert run_id is not None
        client = MlflowClient()
        return {file.path for file in client.list_artifacts(run_id, "attention")}

    assert artifacts(result.run_id) == artifacts(straight.run_id) != set()
