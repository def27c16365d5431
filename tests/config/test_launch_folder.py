"""Which folder a launch writes into."""

import os
from pathlib import Path

import pytest

from attnscale.config import build
from attnscale.config.build import launch_folder

RUN_ID = "0123456789abcdef" * 2


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project with two sweeps and two runs; the older ones sort behind the newer."""
    monkeypatch.setattr(build, "project_root", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
    names = ("multirun/b/sweep.json", "multirun/a/sweep.json", "outputs/d/job.json")
    for age, name in enumerate((*names, "outputs/c/job.json")):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text("{}")
        os.utime(path, (1e9 + age, 1e9 + age))
    (tmp_path / "multirun" / "failed").mkdir()
    return tmp_path


@pytest.mark.parametrize("kind", ["outputs", "multirun"])
def test_a_new_launch_has_a_folder_of_its_own(kind: str, root: Path) -> None:
    first, second = launch_folder(kind, None), launch_folder(kind, None)
    assert first != second
    assert Path(first).parent == root / kind
    assert not Path(first).exists()


@pytest.mark.parametrize(
    ("kind", "resume", "name"),
    [
        ("multirun", "last", "multirun/a"),
        ("outputs", "last", "outputs/c"),
        ("multirun", "b", "multirun/b"),
        ("outputs", "d", "outputs/d"),
        ("multirun", "multirun/b", "multirun/b"),
    ],
)
def test_one_that_goes_on_has_that_of_the_earlier(
    kind: str, resume: str, name: str, root: Path
) -> None:
    assert launch_folder(kind, resume) == str(root / name)
    assert launch_folder(kind, str(root / name)) == str(root / name)


@pytest.mark.parametrize(
    ("kind", "file", "name"),
    [
        ("multirun", "multirun/b/sweep.json", "multirun/b"),
        ("multirun", "multirun/b/3/run.json", "multirun/b"),
        ("outputs", "outputs/d/run.json", "outputs/d"),
    ],
)
def test_a_run_s_id_names_the_folder_it_lies_in(
    kind: str, file: str, name: str, root: Path
) -> None:
    path = root / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'{{"run_id": "{RUN_ID}"}}')
    assert launch_folder(kind, RUN_ID) == str(root / name)


@pytest.mark.parametrize(
    ("kind", "resume", "words"),
    [
        ("multirun", "d", "resume=d: no such sweep"),
        ("outputs", "a", "resume=a: no such run"),
        ("outputs", RUN_ID, f"resume={RUN_ID}: no such run"),
        ("multirun", "failed", "resume=failed: no such sweep"),
    ],
)
def test_one_that_is_not_there_is_named(kind: str, resume: str, words: str) -> None:
    with pytest.raises(ValueError, match=f"^{words}$"):
        launch_folder(kind, resume)


def test_there_is_no_last_of_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "project_root", lambda: tmp_path / "empty")
    with pytest.raises(ValueError, match=r"^resume=last: there is nothing in .*outputs$"):
        launch_folder("outputs", "last")
