"""A sweep that goes on: what must hold for that, and how it is offered."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from attnscale.sweep.going_on import (
    check_code,
    command,
    earlier,
    sweep_name,
    take_lock,
    tell_unfinished,
)
from attnscale.sweep.state import SWEEP_FILE, Launch
from attnscale.tracking.liveness import Process

LOCAL, BASIC = "hydra_plugins.attnscale.LocalLauncher", "hydra._internal.BasicLauncher"
DEAD = str(replace(Process.current(), boot="before"))
LAUNCH = Launch(parent="", name="s", swept=[], allow=[], overrides=["seed=0,1"], process=DEAD)
CLEAN, DIRTY = {"commit": "a", "dirty": "false"}, {"commit": "a", "dirty": "true"}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (CLEAN, CLEAN | {"commit": "b"}, "was at commit a, and is at b; go on all the same with t"),
        (CLEAN, DIRTY, "changes that are not committed"),
        (DIRTY, CLEAN, "changes that are not committed"),
        (DIRTY, DIRTY, "changes that are not committed"),
        ({}, CLEAN, "was at commit None"),
    ],
)
def test_jobs_of_other_code_are_refused_unless_trusted(
    old: dict[str, str], new: dict[str, str], words: str
) -> None:
    with pytest.raises(ValueError, match=f"^resume=last: .*{words}"):
        check_code(old, new, trust=False, resume="last")
    check_code(old, new, trust=True, resume="last")


@pytest.mark.parametrize("state", [CLEAN, {}])
def test_jobs_of_the_same_code_are_taken(state: dict[str, str]) -> None:
    check_code(state, state, trust=False, resume="last")


def test_a_new_sweep_takes_no_folder_that_holds_one(tmp_path: Path) -> None:
    assert earlier(tmp_path, None, BASIC) is None
    LAUNCH.save(tmp_path)
    with pytest.raises(ValueError, match=f"^hydra.sweep.dir={tmp_path}: .* resume={tmp_path}$"):
        earlier(tmp_path, None, LOCAL)


def test_a_sweep_goes_on_where_there_is_one_by_a_launcher_that_can(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^resume=x: .* holds no sweep$"):
        earlier(tmp_path, "x", LOCAL)
    LAUNCH.save(tmp_path)
    assert earlier(tmp_path, "x", LOCAL) == LAUNCH
    with pytest.raises(ValueError, match=r"^resume=x: needs hydra/launcher=local"):
        earlier(tmp_path, "x", BASIC)


def test_a_sweep_has_its_folder_s_name_and_a_mark_if_a_person_named_that() -> None:
    own = Path("multirun/2026-01-02_03-04-05_ab12cd")
    assert sweep_name(own) == own.name
    first, second = sweep_name(Path("mine")), sweep_name(Path("mine"))
    assert first != second
    assert first.startswith(f"mine_{os.getpid():x}")


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Return a process that holds the lock of a folder until its standard input is closed."""
    code = (
        "import sys; from filelock import FileLock; lock = FileLock(sys.argv[1]); lock.acquire(); "
        "print('held', flush=True); sys.stdin.read()"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path / ".lock")]
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process


def test_a_folder_is_of_one_process_until_that_ends(
    holder: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"^resume=x: {tmp_path} is in use by a process"):
        take_lock(tmp_path, "resume=x")
    holder.kill()
    holder.wait()
    take_lock(tmp_path, "resume=x", seconds=10).release()


def test_a_folder_is_made_for_its_lock(tmp_path: Path) -> None:
    with take_lock(tmp_path / "a" / "b", "k"):
        assert (tmp_path / "a" / "b").is_dir()


@pytest.mark.parametrize(
    ("folder", "resume"),
    [("/p/multirun/name", "resume=name"), ("/p/my sweeps/x", "resume=/p/my sweeps/x")],
)
def test_the_command_goes_on_with_the_same_jobs(folder: str, resume: str) -> None:
    overrides = ["seed=0,1", "resume=last", "trust=true", "tags.note='a b'"]
    words = shlex.split(command(replace(LAUNCH, overrides=overrides), Path(folder)))
    assert words == ["python", "-m", "src.train", "-m", "seed=0,1", "tags.note='a b'", resume]


@pytest.mark.parametrize(
    ("launch", "told"),
    [
        (LAUNCH, True),
        (replace(LAUNCH, status="KILLED"), True),
        (replace(LAUNCH, overrides=["resume=last", "seed=0,1", "trust=true"]), True),
        (replace(LAUNCH, status="FINISHED"), False),
        (replace(LAUNCH, overrides=["seed=0,2"]), False),
    ],
)
def test_an_unfinished_sweep_of_the_same_jobs_is_told(
    launch: Launch, told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launch.save(tmp_path / "multirun" / "old")
    LAUNCH.save(tmp_path / "multirun" / "new")
    tell_unfinished(tmp_path / "multirun" / "new", LAUNCH.overrides)
    words = "An unfinished sweep of these jobs can go on: python -m src.train -m seed=0,1 "
    assert capsys.readouterr().out == (f"{words}resume=old\n" if told else "")


def test_a_sweep_that_a_process_holds_is_not_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    LAUNCH.save(tmp_path / "multirun" / "old")
    lock = take_lock(tmp_path / "multirun" / "old", "")
    tell_unfinished(tmp_path / "multirun" / "new", LAUNCH.overrides)
    lock.release()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("content", ["", "{", '{"later": 1}'])
def test_a_sweep_of_another_version_is_passed_over(content: str, tmp_path: Path) -> None:
    file = tmp_path / "old" / SWEEP_FILE
    file.parent.mkdir()
    file.write_text(content)
    tell_unfinished(tmp_path / "new", LAUNCH.overrides)
