"""The command as a person gives it."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from attnscale.tracking.store import find_store
from attnscale.tracking.ui import newest_views

SHORT = (
    "trainer.max_epochs=1",
    "trainer.limit_train_batches=4",
    "trainer.limit_val_batches=2",
    "trainer.accelerator=cpu",
)


def _listen() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


def test_one_run_then_the_printed_hint(shell: Any) -> None:
    done = shell(*SHORT, "attention.scale=none", "model.d_k=16")
    assert done.returncode == 0, done.stderr
    assert f"Recording to {shell.uri} (MLFLOW_TRACKING_URI)" in done.stdout
    assert f"mlflow ui --backend-store-uri {shell.uri}" in done.stdout
    figures = ("best val loss", "last val loss", "last explained variance")
    for row in (*figures, "steps per second", "peak memory", "folder"):
        assert re.search(rf"^{row}\s+\S", done.stdout, re.MULTILINE), row
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    assert len(lines) == len(set(lines)), "a message came twice"
    assert done.stderr == ""
    (first,) = shell.runs()
    assert first.data.tags["mlflow.runName"].startswith("autoencoder scale=none d_k=16 (")
    hint = re.search(
        r"^train on\s+python -m src\.train (checkpoint=\S+) trainer", done.stdout, re.MULTILINE
    )
    assert hint is not None
    again = shell(hint[1], "trainer.max_epochs=2")
    assert again.returncode == 0, again.stderr
    assert re.search(r"^optimizer steps\s+8$", again.stdout, re.MULTILINE)
    assert re.search(r"^run\s+autoencoder scale=none d_k=16 ", again.stdout, re.MULTILINE)
    assert sorted(r.info.status for r in shell.runs()) == ["FINISHED", "FINISHED"]


@pytest.mark.slow
def test_nothing_left_to_train_and_a_setting_that_contradicts(shell: Any) -> None:
    done = shell(*SHORT, "model.d_k=16")
    assert done.returncode == 0, done.stderr
    checkpoint = f"checkpoint={shell.result()['last_checkpoint']}"
    over = shell(checkpoint)
    assert over.returncode == 1
    assert "trainer.max_epochs=1" in last_line(over.stderr)
    other = shell(checkpoint, "trainer.max_epochs=2", "model.d_k=32")
    assert other.returncode == 1
    assert "model.d_k=32: it was trained with model.d_k=16" in last_line(other.stderr)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("model.dk=3", ("model.dk", "no such key", "'d_k'")),
        ("model.d_k=abc", ("model.d_k", "'abc'")),
        ("attention.scale=sqtr", ("attention.scale=sqtr", "'sqrt'", "softcap")),
        ("model=foo", ("model=foo", "autoencoder")),
        ("model.d_k=0", ("model.d_k=0", "at least 1")),
        ("attention.options.softcap.cap=3", ("softcap.cap=3", "no effect", "sqrt")),
        ("tracking.uri=file:/tmp/mlruns", ("tracking.uri=file:/tmp/mlruns", "sqlite:")),
        ("folder=/proc/nowhere", ("folder=/proc/nowhere", "cannot be written")),
    ],
)
def test_a_mistake_is_one_line(shell: Any, argument: str, words: tuple[str, ...]) -> None:
    done = shell(argument, *SHORT)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    if Path(shell.path, "mlflow.db").exists():
        assert all(run.info.status != "RUNNING" for run in shell.runs())


@pytest.mark.slow
def test_a_mistake_of_several_processes_is_one_line(shell: Any) -> None:
    done = shell("callbacks.pictures.examples=0", "trainer=ddp_cpu", *SHORT)
    assert done.returncode == 1
    assert done.stderr.strip() == "callbacks.pictures.examples=0: must be at least 1"
    (run,) = shell.runs()
    assert run.info.status == "FAILED"


def test_a_traceback_can_be_asked_for(shell: Any) -> None:
    done = shell("model.d_k=0", *SHORT, extra={"HYDRA_FULL_ERROR": "1"})
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "model.d_k=0" in last_line(done.stderr)


def test_help_shows_choices_modes_and_examples(shell: Any) -> None:
    from attnscale.attention import SCALES

    done = shell("--help", where=False)
    assert done.returncode == 0
    assert all(mode in done.stdout for mode in SCALES)
    assert "adam, adamw, sgd" in done.stdout
    assert "ddp_cpu" in done.stdout
    assert done.stdout.count("python -m src.train ") >= 3 - 1
    assert "python -m src.train -m attention.scale=sqrt,none model.d_k=64,512" in done.stdout


def test_a_sweep_with_one_failing_job(shell: Any) -> None:
    done = shell("-m", "model.d_k=64,-1,128", *SHORT)
    assert done.returncode == 1
    jobs = shell.jobs()
    assert [r.info.status for r in jobs] == ["FINISHED", "FAILED", "FINISHED"]
    assert [r.data.params["model.d_k"] for r in jobs] == ["64", "-1", "128"]
    parent = shell.parent()
    assert parent.info.status == "FAILED"
    assert {r.data.tags["mlflow.parentRunId"] for r in jobs} == {parent.info.run_id}
    assert {r.data.tags["sweep"] for r in jobs} == {parent.data.tags["sweep"]}
    assert "2 of 3" in parent.data.tags["mlflow.note.content"]
    names = [r.data.tags["mlflow.runName"] for r in jobs]
    assert [n.partition(" (")[0] for n in names] == ["d_k=64", "d_k=-1", "d_k=128"]
    assert len(set(names)) == 3
    table = done.stdout[done.stdout.index("job    run") :].splitlines()
    rows = [line for line in table if re.match(r"\d\s{3}", line)]
    assert ["finished" in row for row in rows] == [True, False, True]
    assert "failed: model.d_k=-1: must be at least 1" in rows[1]
    (folder,) = (shell.path / "multirun").iterdir()
    assert "Traceback" in (folder / "1" / "train.log").read_text()
    assert "Traceback" not in done.stdout + done.stderr
    addresses = re.findall(
        r"^ +(http://127\.0\.0\.1:5000/#/experiments/\S+)$", done.stdout, re.MULTILINE
    )
    assert len(addresses) == 2, "one when it starts, one when it ends"
    assert set(addresses) == set(newest_views(find_store(shell.uri, shell.path), 1).values())
    colors = [r.data.tags["mlflow.runColor"] for r in jobs]
    assert len(set(colors)) == 3


@pytest.mark.parametrize(
    ("argument", "word"),
    [
        ("attention.scale=sqrt,sqtr", "attention.scale=sqtr"),
        ("model.dk=16,32", "model.dk"),
        pytest.param("model.d_k=16,abc", "model.d_k", marks=pytest.mark.slow),
        pytest.param("attention.options.softcap.cap=3,4", "no effect", marks=pytest.mark.slow),
    ],
)
def test_a_wrong_sweep_stops_before_its_first_job(shell: Any, argument: str, word: str) -> None:
    done = shell("-m", argument, *SHORT)
    assert done.returncode == 1
    assert word in last_line(done.stderr)
    assert "Job 0" not in done.stdout
    assert shell.runs() == []


@pytest.mark.slow
def test_modes_and_their_options_sweep_together(shell: Any) -> None:
    done = shell(
        "-m",
        "attention.scale=sqrt,softcap,0.125",
        "attention.options.softcap.cap=30",
        "model.d_k=16",
        "trainer=smoke",
    )
    assert done.returncode == 0, done.stderr
    assert [r.data.params["attention.scale"] for r in shell.jobs()] == ["sqrt", "softcap", "0.125"]
    assert shell.parent().info.status == "FINISHED"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143)],
)
def test_interrupting_a_sweep(
    shell: Any, request: pytest.FixtureRequest, number: signal.Signals, code: int
) -> None:
    command = [
        sys.executable,
        "-m",
        "src.train",
        "-m",
        "model.d_k=16,32,64",
        "trainer.max_epochs=9999",
        "hydra.launcher.n_jobs=1",
    ]
    child = subprocess.Popen(
        [*command, *shell.outputs()],
        cwd=shell.root,
        env=shell.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A test runner may ignore SIGINT, which a child would inherit.
        preexec_fn=_listen,  # noqa: PLW1509
    )
    request.addfinalizer(child.kill)
    deadline = time.monotonic() + 100
    while not list(shell.path.glob("multirun/*/*/checkpoints/last.ckpt")):
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.2)
    sent = time.monotonic()
    child.send_signal(number)
    output, errors = child.communicate(timeout=60)
    assert time.monotonic() - sent < 15
    assert child.returncode == code
    assert "Traceback" not in output + errors
    (job,) = shell.jobs()
    assert job.info.status == "KILLED"
    assert job.info.end_time is not None
    assert shell.parent().info.status == "KILLED"
    points = MlflowClient(shell.uri).get_metric_history(job.info.run_id, "train/loss")
    assert len(points) >= 16


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A checkout of its own in a folder with a space and a number sign."""
    here = Path(__file__).resolve().parents[2]
    there = tmp_path / "my dir #1"
    for name in ("src", "conf"):
        shutil.copytree(
            here / name, there / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    return there


@pytest.mark.slow
def test_the_default_store_is_the_projects_whatever_the_folder(
    copied: Path, tmp_path: Path
) -> None:
    # What an old MLflow left behind must not turn the store into a plain folder.
    (copied / "mlruns" / "0").mkdir(parents=True)
    (copied / "mlruns" / "0" / "meta.yaml").write_text("x: y\n")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
    environment["PYTHONPATH"] = f"{copied}{os.pathsep}{copied / 'src'}"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "src.train", *SHORT, "callbacks.pictures=null"],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert "(default)" in done.stdout
    assert list(elsewhere.iterdir()) == []
    client = MlflowClient(f"sqlite:///{copied}/mlruns/mlflow.db")
    (experiment,) = [e for e in client.search_experiments() if e.name == "attnscale"]
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert "model:" in Path(client.download_artifacts(run.info.run_id, "config.yaml")).read_text()
    beside = copied / "mlruns" / "artifacts"
    assert list(beside.glob(f"*/{run.info.run_id}/artifacts/config.yaml"))
    assert list((copied / "outputs").glob("*/checkpoints/best.ckpt"))


@pytest.mark.slow
def test_a_sweep_under_a_budget_says_how_long_it_takes(shell: Any) -> None:
    cells = ("seed=0,1", "optimizer.lr=1e-3", "attention.scale=sqrt", "data.n_train=40")
    done = shell("-m", "experiment=claim_folding", *cells, *SHORT)
    assert done.returncode == 0, done.stderr
    # 3.6 s a job.
    assert "Budget laptop: 2 jobs, about 7 s on one core" in done.stdout
    assert re.search(r"^2 of 2: .*finished", done.stdout, re.MULTILINE)
    assert [run.data.params["budget"] for run in shell.jobs()] == ["laptop"] * 2
    assert {run.data.params["margin.absolute"] for run in shell.jobs()} == {"0.0001"}
    assert not any(key.startswith("budgets") for key in shell.jobs()[0].data.params)
