"""Whether the process that records a run is still there."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnscale.tracking import liveness
from attnscale.tracking.liveness import Process

linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="Linux tells more")


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    """Return a process that waits for its standard input to close."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process


def test_a_process_that_runs_is_alive(child: "subprocess.Popen[bytes]") -> None:
    assert Process.of(child.pid).alive() is True
    assert Process.current().alive() is True


@linux
def test_a_zombie_is_dead_and_so_is_who_is_gone(child: "subprocess.Popen[bytes]") -> None:
    process = Process.of(child.pid)
    assert child.stdin is not None
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process.alive() is False
    child.wait()
    assert process.alive() is False
    assert Process.of(child.pid).alive() is False


@linux
@pytest.mark.parametrize(
    ("change", "alive"),
    [
        ({"start": "1"}, False),
        ({"boot": "another"}, False),
        ({"host": "another"}, None),
        ({"host": "another", "boot": "another"}, None),
    ],
)
def test_another_with_the_same_id_is_not_it(change: dict[str, Any], alive: bool | None) -> None:
    assert replace(Process.current(), **change).alive() is alive


def test_without_a_boot_id_the_process_id_decides(
    child: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(liveness, "BOOT_FILE", tmp_path / "none")
    process = replace(Process.of(child.pid), start="")
    assert process.alive() is True
    assert child.stdin is not None
    child.stdin.close()
    child.wait()
    assert process.alive() is False


@linux
def test_a_name_with_brackets_and_spaces_is_no_hindrance(tmp_path: Path) -> None:
    name = tmp_path / "a) R 1 (b"
    name.symlink_to(sys.executable)
    code = f"import sys; sys.path.insert(0, {str(Path(liveness.__file__).parent)!r}); " + (
        "import liveness; print(liveness.Process.current().alive())"
    )
    found = subprocess.run([name, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "True\n"


@pytest.mark.parametrize(
    "process",
    [
        Process(platform.node(), "b-1", 12, "345"),
        Process("host", "", 12, ""),
        Process("", "b", 1, "2"),
    ],
)
def test_what_is_written_is_read(process: Process) -> None:
    assert Process.parse(str(process)) == process


@pytest.mark.parametrize("text", ["", "a b c", "a b c d", "a b 1 d e", "a b -1 d"])
def test_what_is_something_else_is_no_process(text: str) -> None:
    assert Process.parse(text) is None
