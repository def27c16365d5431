"""The report as a person meets it: at the end of a sweep, and by its own command."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

APP = "src.report"
Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def swept(module_shell: Any) -> Done:
    sweep = ("-m", "attention.scale=sqrt,none", "seed=0,1", "trainer=smoke")
    done: Done = module_shell(*sweep, timeout=280, whole=True)
    assert done.returncode == 0, done.stderr
    return done


def page_of(output: str) -> Path:
    found = re.search(r"^Report: (.+)$", output, re.MULTILINE)
    assert found is not None, output
    return Path(found[1])


def result_of(done: Done) -> Any:
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads((page_of(done.stdout).parent / "result.json").read_text())


def test_a_sweep_ends_with_its_answer(module_shell: Any, swept: Done) -> None:
    page = page_of(swept.stdout)
    (folder,) = (module_shell.path / "multirun").iterdir()
    assert page == folder / "report" / "index.html"
    result = json.loads((page.parent / "result.json").read_text())
    sentences = result["answer"]
    assert sentences[0].startswith("Lowest mean of the best validation loss: scale=")
    assert re.search(r"\(2 seeds; [\d.]+ at the last epoch\)\.$", sentences[0])
    # The table, then the sentences, then the page.
    places = [swept.stdout.index(text) for text in ("verdict", *sentences, "Report: ")]
    assert places == sorted(places)
    rows = [line.split() for line in swept.stdout.splitlines() if "2 finished" in line]
    assert [row[0] for row in rows] == ["none", "sqrt"]
    assert result["keys"] == ["attention.scale"]
    assert [s["losses"].keys() for s in result["settings"]] == [{"0", "1"}] * 2
    assert "Traceback" not in swept.stdout + swept.stderr


def test_the_report_is_kept_with_the_sweep(module_shell: Any, swept: Done) -> None:
    parent, client = module_shell.parent(), MlflowClient(module_shell.uri)
    kept = {item.path for item in client.list_artifacts(parent.info.run_id, "report")}
    names = ("index.html", "settings.csv", "result.json", "train_loss.png", "provenance.csv")
    assert {f"report/{name}" for name in names} <= kept
    note = parent.data.tags["mlflow.note.content"]
    assert "4 of 4 jobs finished. Lowest mean of the best validation loss" in note
    assert parent.info.status == "FINISHED"


@pytest.mark.slow
def test_the_newest_sweep_again_by_its_own_command(module_shell: Any, swept: Done) -> None:
    done = module_shell(app=APP)
    result = result_of(done)
    before = json.loads((page_of(swept.stdout).parent / "result.json").read_text())
    assert result["answer"] == before["answer"]
    assert result["settings"] == before["settings"]
    assert page_of(done.stdout).is_relative_to(module_shell.path / "outputs")


@pytest.mark.slow
def test_a_sweep_by_its_folder(module_shell: Any, swept: Done) -> None:
    (folder,) = (module_shell.path / "multirun").iterdir()
    result = result_of(module_shell(f"sweep='{folder}'", app=APP))
    assert len(result["settings"]) == 2
    assert f"Report: {folder.name}" in (module_shell.folder() / "report/index.html").read_text()


@pytest.mark.slow
def test_runs_by_their_ids(module_shell: Any, swept: Done) -> None:
    ids = [run.info.run_id for run in module_shell.jobs()][:1]
    result = result_of(module_shell(f"runs=[{','.join(ids)}]", app=APP))
    assert [list(setting["runs"]) for setting in result["settings"]] == [ids]
    assert result["answer"][0].startswith("Only all runs has results")


@pytest.mark.slow
def test_runs_by_a_filter(module_shell: Any, swept: Done) -> None:
    result = result_of(module_shell("filter=\"params.`attention.scale` = 'none'\"", app=APP))
    (setting,) = result["settings"]
    assert len(setting["runs"]) == 2


@pytest.mark.parametrize(
    ("argument", "words"),
    [("sweep=never", "sweep=never: no runs"), ("points=1", "points=1: must be at least 2")],
)
def test_a_mistake_is_one_line(module_shell: Any, swept: Done, argument: str, words: str) -> None:
    done = module_shell(argument, app=APP)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stdout


@pytest.mark.slow
def test_help_explains_itself(module_shell: Any) -> None:
    done = module_shell("--help", app=APP, where=False)
    assert done.returncode == 0
    for text in ("sweep=", "runs=[", "filter=", "result.json", "the newest sweep"):
        assert text in done.stdout


@pytest.mark.slow
def test_a_report_can_be_left_out(shell: Any) -> None:
    done = shell("-m", "seed=0", "trainer=smoke", "report=false")
    assert done.returncode == 0, done.stderr
    assert "Report:" not in done.stdout
    assert not list(shell.path.glob("multirun/*/report"))
    assert "Lowest mean" not in shell.parent().data.tags["mlflow.note.content"]
