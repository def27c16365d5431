"""Files of ``conf/callbacks`` that combine, and of ``conf/debug``: they compose, and they run."""

from pathlib import Path

import pytest

from attnscale.config.build import compose, project_root
from attnscale.config.schema import TrainConfig
from attnscale.experiment import Result, run

CALLBACKS = {
    "curves": ["curves"],
    "checkpoint": ["best", "last"],
    "progress": ["progress"],
    "learned_scales": ["learned_scales"],
    "attention_stats": ["attention_stats"],
    "gradient_stats": ["gradient_stats"],
    "pictures": ["pictures"],
    "watchdog": ["watchdog"],
}
SMALL = ("data.n_train=96", "data.n_val=32", "data.n_test=32", "model.d_k=8", "threads=1")
FAST = (*SMALL, "trainer.max_epochs=1", "trainer.enable_progress_bar=false")


def composed(folder: Path, *overrides: str) -> TrainConfig:
    return compose([*overrides, f"tracking.uri=sqlite:///{folder}/mlflow.db"], folder=folder)


def ran(folder: Path, *overrides: str) -> Result:
    return run(composed(folder, *overrides))


def names(group: str) -> set[str]:
    return {file.stem for file in (project_root() / "conf" / group).glob("*.yaml")}


def test_the_default_is_every_file_once(tmp_path: Path) -> None:
    assert names("callbacks") == {*CALLBACKS, "default", "none"}
    default = composed(tmp_path).callbacks
    assert list(default) == [key for keys in CALLBACKS.values() for key in keys]
    assert composed(tmp_path, f"callbacks=[{','.join(CALLBACKS)}]").callbacks == default
    assert composed(tmp_path, "callbacks=none").callbacks == {}


def test_files_combine_and_keep_their_keys(tmp_path: Path) -> None:
    overrides = ("callbacks=[curves,checkpoint]", "callbacks.curves.per_attention=false")
    config = composed(tmp_path, *overrides, *FAST)
    assert list(config.callbacks) == ["curves", "best", "last"]
    assert config.callbacks["curves"]["per_attention"] is False
    result = run(config)
    assert result.best_checkpoint is not None
    assert result.last_checkpoint is not None


ALONE = [
    name if name in ("curves", "watchdog") else pytest.param(name, marks=pytest.mark.slow)
    for name in CALLBACKS
]


@pytest.mark.parametrize("name", [*ALONE, "none"])
def test_each_stands_alone(tmp_path: Path, name: str) -> None:
    result = ran(tmp_path, f"callbacks={name}", *FAST)
    assert result.steps > 0
    assert (result.last_checkpoint is not None) == (name == "checkpoint")


def test_every_debug_file_is_tried_below() -> None:
    assert names("debug") == {"default", "fdr", "limit", "overfit", "profiler"}


@pytest.mark.parametrize(
    ("name", "more", "steps"),
    [
        ("default", (), 3),
        pytest.param("fdr", (), 1, marks=pytest.mark.slow),
        ("limit", ("data.batch_size=4", "data.eval_batch_size=2"), 3 * 2),
        pytest.param(
            *("overfit", ("trainer.max_epochs=20", "data.batch_size=8"), 20 * 3),
            marks=pytest.mark.slow,
        ),
        pytest.param("profiler", (), 3, marks=pytest.mark.slow),
    ],
)
def test_debug_runs(tmp_path: Path, name: str, more: tuple[str, ...], steps: int) -> None:
    result = ran(tmp_path, f"debug={name}", *SMALL, "data.batch_size=32", *more)
    assert result.steps == steps
    assert result.last_checkpoint is None
    profiles = {path.name for path in tmp_path.glob("*profile*")}
    assert ("fit-profile.txt" in profiles) == (name == "profiler")


@pytest.mark.slow
def test_overfitting_repeats_its_batches(tmp_path: Path) -> None:
    small = (*SMALL, "data.batch_size=8", "optimizer.lr=1e-2")
    first = ran(tmp_path / "1", "debug=overfit", *small, "trainer.max_epochs=1")
    last = ran(tmp_path / "2", "debug=overfit", *small)
    assert last.metrics["train/loss"] < 0.9 * first.metrics["train/loss"]


@pytest.mark.slow
def test_debug_runs_with_a_model_of_its_own_choice(tmp_path: Path) -> None:
    words = ("model=transformer", "model.d_model=16", "data.n_train=40", "data.n_val=8")
    assert ran(tmp_path, "debug=fdr", *words, "data.n_test=8", "callbacks=default").steps == 1
