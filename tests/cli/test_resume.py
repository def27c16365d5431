"""A single run goes on as what it was, or says why not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnscale.cli import resume as module
from attnscale.cli.resume import run_config
from attnscale.config.build import compose
from attnscale.config.schema import TrainConfig
from attnscale.config.section import plain
from attnscale.experiment import identity as identity_module
from attnscale.experiment.identity import fingerprint

CODE = {"commit": "a", "dirty": "false"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a run of ten epochs and one thread, of the code as it is."""
    monkeypatch.setattr(module, "code_state", lambda root: CODE)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.en").write_text("one\n")
    config = composed(tmp_path, "trainer.max_epochs=10", "threads=1")
    entries = {"code": CODE, "config": plain(config), "data": fingerprint(config.data)}
    (tmp_path / "run.json").write_text(json.dumps(entries))
    return tmp_path


def composed(folder: Path, *overrides: str) -> TrainConfig:
    translation = ("model=transformer", "data=multi30k", f"data.dir={folder}/data")
    return compose([*translation, *overrides], folder=folder)


def goes_on(folder: Path, *overrides: str, trust: bool = False) -> TrainConfig:
    config = composed(folder, *overrides)
    return run_config(replace(config, resume="last", trust=trust), overrides)


def test_it_keeps_its_settings_and_threads(folder: Path) -> None:
    config = goes_on(folder)
    assert (config.trainer.max_epochs, config.threads, config.resume) == (10, 1, "last")


def test_it_may_move_to_another_device(folder: Path) -> None:
    assert goes_on(folder, "trainer.accelerator=gpu").trainer.accelerator == "gpu"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("trainer.max_epochs=20", "resume=last: trainer.max_epochs=20 make it another run"),
        ("model.d_k=3", "model.d_k=3: it was trained with model.d_k="),
    ],
)
def test_it_is_not_made_another_run(override: str, words: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=f"^{words}"):
        goes_on(folder, override)


def test_other_data_are_told_and_may_be_trusted(folder: Path) -> None:
    (folder / "data" / "train.en").write_text("two\n")
    identity_module._digest.cache_clear()  # of another process
    with pytest.raises(ValueError, match=r"the data have changed.*trust=true"):
        goes_on(folder)
    assert goes_on(folder, trust=True).trainer.max_epochs == 10


def test_other_code_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other: dict[str, Any] = {**CODE, "commit": "b"}
    monkeypatch.setattr(module, "code_state", lambda root: other)
    with pytest.raises(ValueError, match="commit a, and is at b"):
        goes_on(folder)
