"""What a task tells, and to which logger."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import CSVLogger

from attnscale.tracking.logger import MLflowLogger
from tests.task.toy import Toy, task, trainer


class Notes:
    """A record that only remembers what it was told."""

    run_id = "id"

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def tags(self, tags: Mapping[str, str]) -> None:
        self.told.append(("tags", dict(tags)))

    def file(self, path: Path, folder: str) -> None:
        self.told.append(("file", path.name, folder))

    def points(self, figures: Mapping[str, float], step: int, timestamp: int | None) -> None:
        self.told.append(("points", dict(figures), step, timestamp))


def reporter(folder: Path, notes: Any) -> Toy:
    """Return a task with a logger of others, and one of MLflow."""
    module = task()
    module.trainer = trainer(folder, logger=[CSVLogger(folder), MLflowLogger(notes)])
    return module


def test_figures_go_to_every_logger_and_their_time_to_mlflow_alone(tmp_path: Path) -> None:
    notes = Notes()
    module = reporter(tmp_path, notes)
    module.write({"val/loss": 0.5}, 7, 1_700_000_000_000)
    assert notes.told == [("points", {"val/loss": 0.5}, 7, 1_700_000_000_000)]
    others: Any = module.trainer.loggers[0]
    assert others.experiment.metrics == [{"val/loss": 0.5, "step": 7}]


def test_tags_and_files_are_for_mlflow_alone(tmp_path: Path) -> None:
    notes, files = Notes(), tmp_path / "files"
    files.mkdir()
    for name in ("b.txt", "a.txt"):
        (files / name).touch()
    module = reporter(tmp_path, notes)
    module.tag({"alarms": "none"})
    module.artifacts(files, "pictures")
    assert notes.told == [
        ("tags", {"alarms": "none"}),
        ("file", "a.txt", "pictures"),
        ("file", "b.txt", "pictures"),
    ]
