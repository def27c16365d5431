"""Which jobs are the same, and whether their data are."""

import copy
import gzip
from pathlib import Path
from typing import Any

import pytest

from attnscale.experiment import identity as module
from attnscale.experiment.identity import fingerprint, identity

VALUES: dict[str, Any] = {
    "seed": 0,
    "threads": None,
    "folder": "a",
    "resume": None,
    "trust": False,
    "tags": {"note": "x"},
    "tracking": {"uri": None, "experiment": "e"},
    "data": {"dir": "here", "cache": "c", "address": None, "source": "de"},
    "callbacks": {"progress": {"rows": 1}, "curves": {"every": 10}},
    "trainer": {"devices": 1, "accelerator": "cpu", "max_epochs": 3, "precision": 32},
    "model": {"d_k": 16, "folder": 1},
}


def changed(key: str, value: Any) -> dict[str, Any]:
    values = copy.deepcopy(VALUES)
    section = values
    *before, last = key.split(".")
    for name in before:
        section = section[name]
    section[last] = value
    return values


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("threads", 4),
        ("folder", "b"),
        ("resume", "last"),
        ("trust", True),
        ("tags", {"note": "y"}),
        ("tracking.uri", "sqlite:////x.db"),
        ("data.dir", "there"),
        ("data.cache", "d"),
        ("data.address", "http://x"),
        ("callbacks.progress", {"rows": 2}),
        ("trainer.devices", 2),
        ("trainer.accelerator", "gpu"),
    ],
)
def test_where_and_how_a_job_is_run_changes_nothing(key: str, value: Any) -> None:
    assert identity(changed(key, value)) == identity(VALUES)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", 1),
        ("data.source", "en"),
        ("callbacks.curves.every", 11),
        ("trainer.max_epochs", 4),
        ("trainer.precision", 16),
        ("model.d_k", 17),
        ("model.folder", 2),
        ("model.new", None),
    ],
)
def test_anything_else_does(key: str, value: Any) -> None:
    assert identity(changed(key, value)) != identity(VALUES)


def test_the_order_of_keys_says_nothing() -> None:
    assert identity(dict(reversed(VALUES.items()))) == identity(VALUES)


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Any]:
    """Return a section whose folder has a split in two languages."""
    (tmp_path / "raw").mkdir()
    for name in ("train.de", "train.en", "val.lc.norm.tok.de", "raw/test_2016.en"):
        (tmp_path / name).write_text(name)
    (tmp_path / "raw" / "val.en.gz").write_bytes(gzip.compress(b"one", mtime=0))
    return {"dir": str(tmp_path), "source": "de", "target": "en"}


def look(data: dict[str, Any]) -> str:
    """Return the fingerprint as another process would find it."""
    module._digest.cache_clear()
    return fingerprint(data)


@pytest.mark.parametrize(
    "name",
    ["train.de", "val.lc.norm.tok.de", "raw/test_2016.en", "raw/val.en.gz", "test.en", "val.de.gz"],
)
def test_the_fingerprint_follows_the_content_of_what_is_read(
    name: str, data: dict[str, Any]
) -> None:
    before = look(data)
    assert before != ""
    assert look(data) == before
    (Path(data["dir"]) / name).write_bytes(b"another")
    assert look(data) != before


@pytest.mark.parametrize("name", ["train.fr", "README.de", "train.fr.gz", "notes", ".git/x.de"])
def test_the_fingerprint_follows_nothing_else(name: str, data: dict[str, Any]) -> None:
    before = look(data)
    path = Path(data["dir"]) / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("x")
    assert look(data) == before


def test_the_fingerprint_is_that_of_the_files_wherever_they_lie(
    data: dict[str, Any], tmp_path: Path
) -> None:
    before = look(data)
    moved = tmp_path.rename(tmp_path.with_name(f"{tmp_path.name}-moved"))
    assert look(data | {"dir": str(moved)}) == before


def test_what_a_run_downloads_by_a_checksum_leaves_no_fingerprint(tmp_path: Path) -> None:
    data = {"dir": None, "cache": str(tmp_path), "source": "de", "target": "en"}
    (tmp_path / "train.de.gz").write_bytes(b"x")
    assert look(data | {"address": "http://x"}) == ""
    assert look(data | {"address": None}) != ""


@pytest.mark.parametrize("data", [{}, {"n_train": 5}, {"dir": None}, {"dir": "/no/such/folder"}])
def test_data_that_are_drawn_have_no_fingerprint(data: dict[str, Any]) -> None:
    assert fingerprint(data) == ""
