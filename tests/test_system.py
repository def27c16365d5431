"""What differs between systems."""

import os
from pathlib import Path

import pytest

from attnscale import system
from attnscale.system import ensure_home, expand_home, peak_mib


@pytest.mark.parametrize(
    ("path", "expanded"),
    [("~", "/h"), ("~/a b", "/h/a b"), ("~root/a", "/root/a"), ("./~", "./~"), ("a/~", "a/~")],
)
def test_a_tilde_in_front_is_a_home_folder(
    monkeypatch: pytest.MonkeyPatch, path: str, expanded: str
) -> None:
    monkeypatch.setenv("HOME", "/h")
    assert expand_home("data.dir", path) == expanded


def test_a_home_folder_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"data\.dir=~no-such-user/a: no such home folder"):
        expand_home("data.dir", "~no-such-user/a")


def test_a_user_without_a_home_has_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    with pytest.raises(RuntimeError):
        Path.home()
    ensure_home()
    assert Path.home() == Path("/")


def test_a_home_that_is_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    ensure_home()
    assert os.environ["HOME"] == "/h"


@pytest.mark.parametrize(("name", "unit"), [("Linux", 2**10), ("Darwin", 2**20)])
def test_the_peak_without_proc_is_in_the_unit_of_the_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, unit: int
) -> None:
    class Usage:
        ru_maxrss = 700 * unit

    class System:
        sysname = name

    monkeypatch.setattr(system, "Path", lambda _: tmp_path / "status")
    monkeypatch.setattr("resource.getrusage", lambda _: Usage)
    monkeypatch.setattr(os, "uname", lambda: System)
    assert peak_mib() == 700


def test_no_peak_where_the_system_tells_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(system, "Path", lambda _: tmp_path / "status")
    monkeypatch.setattr(system, "resource", None)
    assert peak_mib() is None
