"""Sweeps whose jobs run side by side: every end is an end, and a broken one goes on."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from tests.apps.conftest import SHORT

ENDING = "{{_target_:tests.support.ends.Ending,how:{how}}}"
LONG = ("trainer.max_epochs=9999", "report=false", "callbacks.pictures=null")
ENDED_IN = 15.0  # seconds


def endings(*hows: str) -> list[str]:
    swept = ",".join(ENDING.format(how=how) for how in hows)
    return ["-m", f"+callbacks.end={swept}", "allow=[tests]", *SHORT]


def statuses(shell: Any) -> dict[str, str]:
    return {
        run.data.params["callbacks.end.how"]: run.info.status
        for run in shell.jobs()
        if "callbacks.end.how" in run.data.params
    }


def reasons(stdout: str) -> list[str]:
    table = stdout[stdout.index("job    run") :].splitlines()
    return [re.split(r"\s{2,}", line)[2] for line in table if re.match(r"\d\s{3}", line)]


def points(shell: Any, run_id: str) -> list[tuple[str, int, float]]:
    client = MlflowClient(shell.uri)
    return sorted(
        (name, point.step, point.value)
        for name in client.get_run(run_id).data.metrics
        if not name.startswith(("time/", "memory/"))
        for point in client.get_metric_history(run_id, name)
    )


CHILDREN: list["subprocess.Popen[str]"] = []


@pytest.fixture(autouse=True)
def no_child_left() -> Iterator[None]:
    yield
    while CHILDREN:
        CHILDREN.pop().kill()


def start(shell: Any, *words: str) -> "subprocess.Popen[str]":
    child = subprocess.Popen(
        [sys.executable, "-m", "src.train", *words, *shell.outputs()],
        cwd=shell.root,
        env=shell.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A test runner may ignore signals, which a child would inherit.
        preexec_fn=_listen,  # noqa: PLW1509
    )
    CHILDREN.append(child)
    return child


def _listen() -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)


def wait_for(pattern: str, shell: Any, child: "subprocess.Popen[str]", count: int = 1) -> None:
    deadline = time.monotonic() + 100
    while len(list(shell.path.glob(pattern))) < count:
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def processes(shell: Any) -> list[str]:
    """Return the commands of the processes that have a file of the shell's folder open."""
    inside = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            files = [str(link.readlink()) for link in (folder / "fd").iterdir()]
            command = (folder / "cmdline").read_text()
        except OSError:
            continue
        if int(folder.name) != os.getpid() and any(f.startswith(str(shell.path)) for f in files):
            inside.append(command)
    return inside


@pytest.mark.parametrize("more", [(), pytest.param(("hydra.launcher.n_jobs=1",), id="in turn")])
@pytest.mark.slow
def test_what_ends_one_job_takes_no_other(shell: Any, more: Sequence[str]) -> None:
    hows = ("none", "raise", "exit", "leave", "kill", "off")
    done = shell(*endings(*hows), *more)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    ended = {"none": "FINISHED", "off": "FINISHED"}
    assert statuses(shell) == {how: ended.get(how, "FAILED") for how in hows}
    assert [reason.partition(":")[2].strip() for reason in reasons(done.stdout)] == [
        "",
        "RuntimeError: planted",
        "ended with exit status 9 and no result",
        "sys.exit(0) was called",
        "killed from outside (SIGKILL), as the kernel does when memory is short",
        "",
    ]
    errors = [run.data.tags.get("error", "") for run in shell.jobs()]
    assert "exit status 9" in errors[2]
    assert "SIGKILL" in errors[4]
    assert "2 of 6 jobs finished; status FAILED" in done.stdout
    assert shell.parent().info.status == "FAILED"


def test_jobs_are_the_same_side_by_side_and_in_turn(shell: Any) -> None:
    words = ("-m", "seed=0,1", "model.d_k=16", *SHORT)
    for more in ((), ("hydra.launcher.n_jobs=1",)):
        done = shell(*words, *more)
        assert done.returncode == 0, done.stderr
    runs = shell.jobs()
    assert [run.data.params["threads"] for run in runs] == ["1"] * 4
    of_seed = {
        seed: [points(shell, r.info.run_id) for r in runs if r.data.params["seed"] == seed]
        for seed in ("0", "1")
    }
    assert all(one == other for one, other in of_seed.values())
    assert of_seed["0"][0] != of_seed["1"][0]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_ends_a_sweep_with_checkpoints_and_true_statuses(
    shell: Any, number: signal.Signals
) -> None:
    child = start(shell, "-m", "seed=0,1,2", "hydra.launcher.n_jobs=2", *LONG)
    wait_for("multirun/*/*/checkpoints/last.ckpt", shell, child, count=2)
    sent = time.monotonic()
    child.send_signal(number)
    output, errors = child.communicate(timeout=60)
    assert time.monotonic() - sent < ENDED_IN
    assert child.returncode == 128 + number
    assert "Traceback" not in output + errors
    assert [run.info.status for run in shell.jobs()] == ["KILLED"] * 2
    assert shell.parent().info.status == "KILLED"
    assert processes(shell) == []
    assert re.search(r"^Go on: +python -m src\.train -m .*resume=", output, re.MULTILINE)
    assert reasons(output)[-1] == "waiting: not started"


@pytest.mark.slow
def test_without_its_launcher_a_job_ends_and_the_sweep_goes_on(shell: Any) -> None:
    words = ("-m", "seed=0,1", "trainer.max_epochs=400", "report=false", "callbacks.pictures=null")
    straight = shell(*words)
    assert straight.returncode == 0, straight.stderr
    expected = {r.data.params["seed"]: points(shell, r.info.run_id) for r in shell.jobs()}
    child = start(shell, *words)
    wait_for("multirun/*/*/checkpoints/last.ckpt", shell, child, count=3)
    child.kill()
    child.communicate()
    deadline = time.monotonic() + ENDED_IN
    while processes(shell) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes(shell) == []
    folder = max((shell.path / "multirun").iterdir(), key=lambda path: path.stat().st_mtime)
    before = {path: path.read_bytes() for path in folder.glob("*/.hydra/*.yaml")}
    listing = shell(app="src.sweeps", where=False)
    assert "now marked: sweep seed=0,1" in listing.stdout
    again = shell(
        *words, f"resume={folder}", f"hydra.sweep.dir={folder}", "trust=true", where=False
    )
    assert again.returncode == 0, again.stderr
    sweep = json.loads((folder / "sweep.json").read_text())["name"]
    runs = [run for run in shell.jobs() if run.data.tags["sweep"] == sweep]
    assert [run.info.status for run in runs] == ["FINISHED"] * 2
    assert {r.data.params["seed"]: points(shell, r.info.run_id) for r in runs} == expected
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.slow
def test_going_on_takes_what_is_finished_does_failures_again_and_adds(shell: Any) -> None:
    words = ("-m", *SHORT)
    folder = shell.path / "mine"
    place = f"hydra.sweep.dir={folder}"
    first = shell(*words, "model.d_k=8,-1", place, where=False)
    assert first.returncode == 1
    finished = shell.jobs()[0].info.run_id
    again = shell(*words, "model.d_k=8,-1,16", place, f"resume={folder}", "trust=true", where=False)
    assert again.returncode == 1
    assert "2 of 3 jobs finished" in again.stdout
    runs = shell.jobs()
    assert [r.data.params["model.d_k"] for r in runs if r.info.status == "FINISHED"] == ["8", "16"]
    assert runs[0].info.run_id == finished
    assert sum(run.info.status == "FAILED" for run in runs) == 2
    assert sorted(path.name for path in folder.glob("[0-9]*")) == ["0", "1", "1_2", "2"]
    assert [
        json.loads((folder / "jobs" / f"{i}.json").read_text())["status"] for i in range(3)
    ] == [
        "FINISHED",
        "FAILED",
        "FINISHED",
    ]


@pytest.mark.slow
def test_a_single_run_goes_on_in_its_folder_as_the_same_run(shell: Any) -> None:
    words = ("trainer.max_epochs=300", "callbacks.pictures=null")
    assert shell(*words).returncode == 0
    expected = points(shell, shell.jobs()[0].info.run_id)
    child = start(shell, *words)
    wait_for("outputs/*/checkpoints/last.ckpt", shell, child, count=2)
    child.send_signal(signal.SIGUSR1)
    child.communicate(timeout=30)
    assert child.returncode == 128 + signal.SIGUSR1
    folder = shell.folder()
    run_id = json.loads((folder / "run.json").read_text())["run_id"]
    client = MlflowClient(shell.uri)
    assert client.get_run(run_id).info.status == "KILLED"
    done = shell(f"resume={folder}", f"hydra.run.dir={folder}", "trust=true", *words, where=False)
    assert done.returncode == 0, done.stderr
    assert client.get_run(run_id).info.status == "FINISHED"
    assert points(shell, run_id) == expected
    assert len(shell.jobs()) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-m", "seed=0,1", "folder=/tmp/x"), "folder=/tmp/x: 2 jobs would write into one folder"),
        (("-m", "seed=0,1", "hydra.sweep.subdir=x"), "hydra.sweep.subdir"),
        (("-m", "seed=0,1", "resume=nothing"), "resume=nothing: no such sweep"),
        (("resume=nothing",), "resume=nothing: no such run"),
    ],
)
def test_what_cannot_be_kept_apart_is_refused_before_the_first_job(
    shell: Any, arguments: Sequence[str], words: str
) -> None:
    outputs = [] if "resume=nothing" in arguments else shell.outputs()
    done = shell(*arguments, *SHORT, *outputs, where=False)
    assert done.returncode == 1
    assert words in done.stderr.splitlines()[-1]
    assert [run for run in shell.runs() if run.data.tags["kind"] == "run"] == []


def test_a_folder_holds_one_sweep_and_jobs_may_have_any_name(shell: Any) -> None:
    place = (f"hydra.sweep.dir={shell.path}/mine", "hydra.sweep.subdir='job_${hydra.job.num}'")
    done = shell("-m", "model.d_k=-1,-2", *SHORT, *place, "report=false", where=False)
    assert done.returncode == 1
    assert "0 of 2 jobs finished; status FAILED" in done.stdout
    again = shell("-m", "model.d_k=8,16", *SHORT, *place, where=False)
    assert again.returncode == 1
    assert "holds a sweep" in again.stderr


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["submitit_local", "joblib", "basic"])
def test_launchers_of_others_keep_working(shell: Any, launcher: str) -> None:
    if launcher != "basic":
        pytest.importorskip(f"hydra_plugins.hydra_{launcher.partition('_')[0]}_launcher")
    done = shell(*endings("none", "raise", "off"), f"hydra/launcher={launcher}", fresh=True)
    assert done.returncode == 1, done.stderr
    assert statuses(shell) == {"none": "FINISHED", "raise": "FAILED", "off": "FINISHED"}
    assert "2 of 3 jobs finished" in done.stdout


@pytest.mark.slow
def test_what_a_pool_takes_along_is_told(shell: Any) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    done = shell(
        *endings("hang", "exit"), "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", fresh=True
    )
    assert done.returncode == 1
    assert "lost with the pool" in done.stdout
    assert "RUNNING" not in {run.info.status for run in shell.runs()}
