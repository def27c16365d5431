"""How jobs end that could not say it themselves."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from attnscale.experiment.result import RUN_FILE, write_json
from attnscale.sweep.ends import cause, end_lost
from attnscale.sweep.state import Job, Launch, job_file
from attnscale.tracking.liveness import Process
from attnscale.tracking.record import Record
from attnscale.tracking.store import Store, find_store

LAUNCH = Launch(parent="", name="s", swept=[], allow=[])
POOL = replace(LAUNCH, launcher="hydra_plugins.hydra_joblib_launcher.JoblibLauncher")


@pytest.mark.parametrize(
    ("status", "out_of_memory", "words"),
    [
        (None, False, "ended without a word"),
        (0, False, "ended with exit status 0 and no result"),
        (3, True, "ended with exit status 3 and no result"),
        (-11, True, "ended by signal 11 (SIGSEGV)"),
        (-9, True, "killed by the kernel for want of memory (SIGKILL)"),
        (-9, False, "killed from outside (SIGKILL), as the kernel does when memory is short"),
    ],
)
def test_an_exit_status_is_told_in_words(
    status: int | None, out_of_memory: bool, words: str
) -> None:
    assert cause(status, out_of_memory=out_of_memory) == words


@pytest.fixture
def store(empty_store: Path, tmp_path: Path) -> Store:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return find_store(f"sqlite:///{tmp_path}/mlflow.db", tmp_path)


def leave(sweep: Path, index: int, status: str, process: str = "") -> None:
    folder = sweep / str(index)
    job = Job(index=index, name=f"j{index}", status=status, process=process, folder=str(folder))
    job.save(job_file(sweep, index))


@pytest.mark.parametrize(
    ("launch", "interrupted", "ends"),
    [
        (LAUNCH, False, ("LOST", "FAILED", "ended without a word")),
        (LAUNCH, True, ("KILLED", "KILLED", "ended without a word")),
        (POOL, False, ("LOST", "FAILED", "lost with the pool")),
    ],
)
def test_a_job_whose_process_is_gone_is_marked_and_its_run_ends(
    launch: Launch, interrupted: bool, ends: tuple[str, str, str], store: Store, tmp_path: Path
) -> None:
    leave(tmp_path, 0, "RUNNING", str(replace(Process.current(), boot="before")))
    record = Record.start(store, experiment="e", name="r")
    write_json(tmp_path / "0" / RUN_FILE, {"run_id": record.run_id})
    (job,) = end_lost(tmp_path, store, launch, interrupted=interrupted)
    assert Job.load(job_file(tmp_path, 0)) == job
    assert job.error == record.all_tags()["error"]
    assert (job.status, record.status(), job.error) == ends


def test_one_that_lives_and_one_that_ended_stay_as_they_are(store: Store, tmp_path: Path) -> None:
    leave(tmp_path, 0, "RUNNING", str(Process.current()))
    leave(tmp_path, 1, "FINISHED")
    leave(tmp_path, 2, "FAILED")
    jobs = end_lost(tmp_path, store, LAUNCH, interrupted=False)
    assert [job.status for job in jobs] == ["RUNNING", "FINISHED", "FAILED"]


def test_one_that_waits_was_not_started(store: Store, tmp_path: Path) -> None:
    leave(tmp_path, 0, "WAITING")
    (job,) = end_lost(tmp_path, store, LAUNCH, interrupted=True)
    assert (job.status, job.error) == ("WAITING", "not started")


@pytest.mark.parametrize(("interrupted", "indices"), [(False, [0, 1, 2, 3]), (True, [1, 3])])
def test_a_pool_takes_along_what_it_had_not_started(
    interrupted: bool, indices: list[int], store: Store, tmp_path: Path
) -> None:
    leave(tmp_path, 1, "FINISHED")
    leave(tmp_path, 3, "FINISHED")
    jobs = end_lost(tmp_path, store, replace(POOL, jobs=4), interrupted=interrupted)
    assert [job.index for job in jobs] == indices
    lost = {job.error for job in jobs if job.status == "LOST"}
    assert lost == (set() if interrupted else {"lost with the pool"})
