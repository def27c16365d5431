"""Configurations that name what they may not, and a package of a person's own."""

import copy
import functools
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from attnscale.cli.resume import resumed_config
from attnscale.config import build
from attnscale.config.build import compose
from attnscale.config.schema import TrainConfig
from attnscale.config.section import plain
from attnscale.experiment import run
from attnscale.experiment.checkpoints import load_checkpoint
from attnscale.experiment.translator import Translator

ROOT = Path(__file__).resolve().parents[2]

OWN = """
import pathlib
from pathlib import Path

import pytorch_lightning as pl

pathlib.Path({imported!r}).touch()


class Inner:
    def __init__(self, *, words):
        self.words = words


class Toy(pl.Callback):
    def __init__(self, *, inner=None, allow=None):
        self.inner, self.allow = inner, allow

    def on_train_start(self, trainer, pl_module):
        pathlib.Path({started!r}).touch()

    @classmethod
    def method(cls):
        pathlib.Path({called!r}).touch()


def function():
    pathlib.Path({called!r}).touch()
"""


@dataclass(frozen=True)
class Own:
    """A package of a person's own: what its import and its callback leave behind."""

    name: str
    imported: Path
    started: Path
    called: Path


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Own]:
    package = Own("ownpackage", *(tmp_path / name for name in ("imported", "started", "called")))
    folder = tmp_path / "packages" / package.name
    folder.mkdir(parents=True)
    names = {name: str(getattr(package, name)) for name in ("imported", "started", "called")}
    (folder / "__init__.py").write_text(OWN.format(**names))
    monkeypatch.syspath_prepend(str(folder.parent))
    yield package
    sys.modules.pop(package.name, None)


def override(key: str, value: Any) -> str:
    """Write a value in the grammar of Hydra's command line."""

    def text(value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ",".join(f"{k}: {text(v)}" for k, v in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(text, value)) + "]"
        return json.dumps(value)

    return f"++{key}={text(value)}"


def nested(key: str, value: Any) -> dict[str, Any]:
    """Return the mapping that has a value at a dotted key."""
    for name in reversed(key.split(".")):
        value = {name: value}
    assert isinstance(value, dict)
    return value


@functools.cache
def _base(overrides: tuple[str, ...]) -> TrainConfig:
    return compose(["trainer=smoke", *overrides], folder=Path("unset"))


@dataclass(frozen=True)
class Bench:
    """Brings a value into a run in each of the ways that there are; a folder of its own."""

    path: Path
    monkeypatch: pytest.MonkeyPatch

    @property
    def folder(self) -> Path:
        return self.path / "run"

    @property
    def store(self) -> Path:
        return self.path / "mlflow.db"

    def compose(self, *overrides: str, **more: Any) -> TrainConfig:
        fixed = (f"tracking.uri=sqlite:///{self.store}", "trainer=smoke")
        return compose([*fixed, *overrides], folder=self.folder, **more)

    def based(self, *overrides: str) -> TrainConfig:
        """Return what ``compose`` does, composed once for all tests."""
        config = copy.deepcopy(_base(overrides))
        config.tracking.uri = f"sqlite:///{self.store}"
        config.folder = config.trainer.default_root_dir = str(self.folder)
        return config

    def command_line(self, key: str, value: Any) -> None:
        run(self.compose(override(key, value)))

    def file(self, key: str, value: Any) -> None:
        conf = self.path / "project" / "conf"
        shutil.copytree(ROOT / "conf", conf)
        text = "# @package _global_\n" + yaml.safe_dump(nested(key, value))
        (conf / "experiment" / "attack.yaml").write_text(text)
        self.monkeypatch.setattr(build, "project_root", lambda: conf.parent)
        run(self.compose("experiment=attack"))

    def checkpoint(self, key: str, value: Any) -> str:
        """Write a checkpoint whose configuration has a value at a key."""
        config = plain(self.based("model=transformer"))
        *sections, last = key.split(".")
        place: dict[str, Any] = config
        for section in sections:
            place = place[section]
        place[last] = value
        path = self.path / "attack.ckpt"
        words = ["a", "b"]
        data = {"source": words, "target": words}
        torch.save({"attnscale": {"config": config, "data": data}, "state_dict": {}}, path)
        return str(path)

    def resume(self, key: str, value: Any) -> None:
        path = self.checkpoint(key, value)
        run(resumed_config(replace(self.based(), checkpoint=path), [f"checkpoint={path}"]))

    def train_on(self, key: str, value: Any) -> None:
        """Resume without the command line: the run reads the checkpoint by itself."""
        run(replace(self.based("model=transformer"), checkpoint=self.checkpoint(key, value)))

    def translate(self, key: str, value: Any) -> None:
        Translator(self.checkpoint(key, value))

    def evaluate(self, key: str, value: Any) -> None:
        load_checkpoint(self.checkpoint(key, value))

    def bring(self, way: str) -> Callable[[str, Any], None]:
        ways: dict[str, Callable[[str, Any], None]] = {
            "command line": self.command_line,
            "file": self.file,
            "resume": self.resume,
            "translate": self.translate,
            "evaluate": self.evaluate,
        }
        return ways[way]


WAYS = ("command line", "file", "resume", "translate", "evaluate")
every_way = pytest.mark.parametrize("way", WAYS)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)
