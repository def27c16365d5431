"""What the list of sweeps says of one."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from attnscale.cli.sweeps import _row
from attnscale.sweep.going_on import take_lock
from attnscale.sweep.state import Job, Launch, job_file

STATES = ("FINISHED", "FINISHED", "FAILED", "KILLED")


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Return the parent run of a sweep of six jobs, of which four began; its host is away."""
    folder = tmp_path / "multirun" / "s"
    folder.mkdir(parents=True)
    Launch(
        parent="r",
        name="s",
        swept=["seed"],
        allow=[],
        overrides=["seed=range(0,6)"],
        process="another host;boot;1;1",
        jobs=6,
    ).save(folder)
    for index, status in enumerate(STATES):
        job = Job(index=index, name="one", status=status, folder=str(folder / str(index)))
        job.save(job_file(folder, index))
    return SimpleNamespace(tags={"folder": str(folder), "sweep": "s"}, outcome="killed")


def test_its_jobs_are_counted_and_how_to_go_on_is_told(run: Any) -> None:
    (name, outcome, *counts, _), command = _row(cast(Any, run))
    assert (name, outcome, counts) == ("s", "killed", [6, 2, 1, 0, 3])
    assert command == "python -m src.train -m 'seed=range(0,6)' resume=s"


def test_one_that_a_process_holds_does_not_go_on(run: Any) -> None:
    lock = take_lock(Path(run.tags["folder"]), "")
    assert _row(cast(Any, run))[1] is None
    lock.release()


def test_one_of_another_machine_is_named(run: Any) -> None:
    run.tags["folder"] = "/elsewhere"
    cells, command = _row(cast(Any, run))
    assert (cells[-1], command) == ("/elsewhere (not here)", None)
