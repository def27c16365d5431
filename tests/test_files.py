"""A file is whole or not there."""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from attnscale.callbacks.checkpoint import WholeCheckpoints
from attnscale.experiment.result import write_json
from attnscale.figures.page import Table, write_csv
from attnscale.files import remove_parts, write_bytes, write_text
from tests.support.full_disk import largest_file

LIMIT = 1024
TABLE = Table(name="t", columns=["x"], rows=[[i] for i in range(LIMIT)])

WRITERS: dict[str, Callable[[Path], object]] = {
    "bytes": lambda path: write_bytes(path, bytes(2 * LIMIT)),
    "text": lambda path: write_text(path, "√" * LIMIT),
    "JSON": lambda path: write_json(path, list(range(LIMIT))),
    "CSV": lambda path: write_csv(TABLE, path),
    "checkpoint": lambda path: WholeCheckpoints().save_checkpoint({"w": torch.ones(LIMIT)}, path),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS.keys())
def test_what_does_not_fit_leaves_the_file_before(
    tmp_path: Path, write: Callable[[Path], object]
) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    with largest_file(LIMIT), pytest.raises(OSError, match=re.escape(str(path))) as failure:
        write(path)
    assert failure.value.errno == errno.EFBIG
    assert path.read_text() == "before"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, names = tmp_path / "file", list[list[str]]()
    monkeypatch.setattr(os, "fsync", lambda _: names.append([f.name for f in tmp_path.iterdir()]))
    write_bytes(path, b"whole")
    assert [len(one) for one in names] == [1]
    assert names[0] != ["file"]
    assert path.read_bytes() == b"whole"


def test_a_new_file_is_as_readable_as_the_one_before_and_a_link_stays(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.touch(0o640)
    link.symlink_to(path)
    write_bytes(link, b"new")
    assert link.is_symlink()
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_device_is_written_directly_and_stays_one() -> None:
    with pytest.raises(OSError, match=r"No space left on device: '/dev/full'"):
        write_bytes("/dev/full", b"content")
    assert Path("/dev/full").is_char_device()


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    for name in (".last.ckpt.123.part", "last.ckpt", ".hydra.part.txt"):
        (tmp_path / name).write_text("x")
    remove_parts(tmp_path, tmp_path / "nowhere")
    assert {path.name for path in tmp_path.iterdir()} == {"last.ckpt", ".hydra.part.txt"}
