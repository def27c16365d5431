"""How a sweep ends, whatever happens while it is told."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from attnscale.cli import app
from attnscale.experiment.result import Result
from attnscale.sweep.state import Job, Launch, Sweep


class Record:
    """Remembers its end."""

    run_id, store = "r", None
    status: str | None = None

    def tags(self, tags: dict[str, str]) -> None: ...

    def text(self, text: str, name: str) -> None: ...

    def end(self, status: str) -> None:
        self.status = status


def raising(error: BaseException) -> Any:
    def raises(*args: object, **options: object) -> None:
        raise error

    return raises


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    """Return a sweep of one job, which finished."""
    job = Job(index=0, name="one", status="FINISHED", folder="", result=Result(objective=0.5))
    monkeypatch.setattr(app, "end_lost", lambda *args, **options: [job])
    monkeypatch.setattr(app, "save_view", lambda *args, **options: "http://x")
    monkeypatch.setattr(app, "finish", lambda *args: "It is so.")
    launch = Launch(parent="r", name="s", swept=[], allow=[], jobs=1)
    return Sweep(tmp_path, cast(Any, Record()), launch, True, cast(Any, None), ExitStack())


def ended(sweep: Sweep) -> tuple[object, str]:
    return cast(Any, sweep.record).status, Launch.load(sweep.folder).status


def test_a_sweep_whose_jobs_finished_is_finished(sweep: Sweep) -> None:
    assert app._finish_sweep(sweep, False, None) == 0
    assert ended(sweep) == ("FINISHED", "FINISHED")


def test_a_report_that_cannot_be_written_makes_it_failed(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(app, "finish", raising(ValueError("no room")))
    assert app._finish_sweep(sweep, False, None) == 1
    assert ended(sweep) == ("FAILED", "FAILED")
    assert "The report could not be written: ValueError: no room" in capsys.readouterr().out


@pytest.mark.parametrize("while_it", ["finish", "save_view", "sweep_table"])
def test_a_signal_while_it_is_told_makes_it_killed(
    while_it: str, sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, while_it, raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        app._finish_sweep(sweep, False, None)
    assert ended(sweep) == ("KILLED", "KILLED")


def test_its_record_ends_though_its_folder_takes_nothing(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Launch, "save", raising(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        app._finish_sweep(sweep, False, None)
    assert cast(Any, sweep.record).status == "FINISHED"
