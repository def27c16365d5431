"""The theory app as a person starts it."""

import csv
import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from attnscale.attention import SCALES
from attnscale.claims.list import CLAIMS

pytestmark = pytest.mark.slow

TINY = ("draws=50", "pairs=200", "replicates=2", "models=2", "threads=1")
FIGURES = {
    *("score_variance", "logit_histograms", "one_row", "largest_weight", "sharpness"),
    *("mode_places", "initial_deviation"),
}
TABLES = {*FIGURES, "exponents", "shift_invariance", "initial_table", "claims"}


def artifacts(shell: Any, run_id: str) -> set[str]:
    return {item.path for item in MlflowClient(shell.uri).list_artifacts(run_id, "theory")}


@pytest.fixture(scope="module")
def done(module_shell: Any) -> str:
    """Run the app once, and return what it printed."""
    made = module_shell(*TINY, f"docs={module_shell.path}/docs", app="src.theory")
    assert made.returncode == 0, made.stderr
    assert made.stderr == ""
    printed: str = made.stdout
    return printed


def test_it_writes_a_page_with_figures_and_tables(module_shell: Any, done: str) -> None:
    folder = module_shell.folder() / "theory"
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "index.html",
        *(f"{name}.png" for name in FIGURES),
        *(f"{name}.csv" for name in TABLES),
    }
    assert f"Page: {folder / 'index.html'}" in done
    for name in FIGURES:
        png = (folder / f"{name}.png").read_bytes()
        assert png[:8] == b"\x89PNG\r\n\x1a\n"
        width, height = struct.unpack(">II", png[16:24])
        assert min(width, height) > 300
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert [int(x) for x in re.findall(r"<h2>(\d)\.", page)] == [1, 2, 3, 4, 5, 6]
    found = re.search(r'<script type="application/json" id="specs">(.*?)</script>', page)
    assert found is not None
    assert len(json.loads(found[1])) == len(FIGURES)


def test_it_prints_a_verdict_for_every_claim(module_shell: Any, done: str) -> None:
    shown = re.findall(r"^ *(\d+) .* (holds|fails|depends|open) ", done, re.MULTILINE)
    assert [int(number) for number, _ in shown] == [claim.number for claim in CLAIMS]
    with (module_shell.folder() / "theory" / "claims.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row[""].isdigit()]
    assert [row["claim"] for row in rows] == [claim.text for claim in CLAIMS]
    assert [row["verdict"] for row in rows] == [verdict for _, verdict in shown]
    # Settled by computation, whatever the seed; nothing was trained in this store.
    verdicts = {int(row[""]): row["verdict"] for row in rows}
    assert {verdicts[n] for n in (1, 6, 7, 14)} == {"fails"}
    assert verdicts[2] == verdicts[12] == "open"


def test_it_records_a_run_with_the_files(module_shell: Any, done: str) -> None:
    (run,) = module_shell.jobs()
    client = MlflowClient(module_shell.uri)
    assert client.get_experiment(run.info.experiment_id).name == "theory"
    assert run.info.status == "FINISHED"
    assert run.data.tags["mlflow.runName"] == "theory"
    assert run.data.tags["kind"] == "run"
    assert (run.data.params["draws"], run.data.params["seed"]) == ("50", "0")
    folder = module_shell.folder() / "theory"
    assert artifacts(module_shell, run.info.run_id) == {
        f"theory/{path.name}" for path in folder.iterdir()
    }
    assert 0.3 < run.data.metrics["theory/exponent_row"] < 0.7
    assert run.data.metrics["theory/gradient_ratio_64"] > 1
    outcome = json.loads((module_shell.folder() / "job.json").read_text())
    assert outcome["status"] == "FINISHED"
    assert outcome["result"]["objective"] == run.data.metrics["theory/exponent_row"]
    last = done.strip().splitlines()[-1]
    assert (
        last == f"Recorded: mlflow ui --backend-store-uri {module_shell.uri}  (experiment: theory)"
    )


def test_it_writes_the_documents(module_shell: Any, done: str) -> None:
    docs = Path(module_shell.path) / "docs"
    assert {path.name for path in docs.iterdir()} == {"modes.md", "claims.md"}
    assert all(f"Written: {path}" in done for path in docs.iterdir())
    modes = (docs / "modes.md").read_text(encoding="utf-8")
    for name in SCALES:
        # In the registry, and measured.
        assert len(re.findall(rf"^\| `{name}` \|", modes, re.MULTILINE)) == 2
        assert re.search(
            rf"^\| `{name}` \| [\d.e-]+ \([\d.e-]+ to [\d.e-]+\) \|", modes, re.MULTILINE
        )
    claims = (docs / "claims.md").read_text(encoding="utf-8")
    parts = sum(len(claim.parts) for claim in CLAIMS if len(claim.parts) > 1)
    assert claims.count("\n| ") == len(CLAIMS) + parts + 1


def test_bad_values_are_one_line(shell: Any) -> None:
    done = shell("draws=0", app="src.theory")
    assert done.returncode == 1
    assert done.stderr.strip() == "draws=0: must be at least 2"
    assert "Traceback" not in done.stdout
    assert not (shell.folder() / "theory").exists()
    assert not Path(shell.path, "mlflow.db").exists() or shell.runs() == []


def test_a_sweep_of_bad_values_fails_job_by_job(shell: Any, module_shell: Any, done: str) -> None:
    # The store is there already: making another takes seconds.
    same = {"MLFLOW_TRACKING_URI": module_shell.uri}
    failed = shell("-m", "seed=0,1", "draws=0", app="src.theory", extra=same)
    assert failed.returncode == 1
    parent = module_shell.parent()
    assert parent.info.status == "FAILED"
    assert "0 of 2" in parent.data.tags["mlflow.note.content"]
    for seed in (0, 1):
        assert re.search(rf"^{seed} .*seed={seed} .*failed: draws=0", failed.stdout, re.MULTILINE)
    assert "Traceback" not in failed.stdout + failed.stderr


@pytest.mark.slow
def test_seeds_sweep_under_a_parent(shell: Any) -> None:
    done = shell("-m", "seed=0,1", *TINY, app="src.theory")
    assert done.returncode == 0, done.stderr
    jobs, parent = shell.jobs(), shell.parent()
    assert [run.data.params["seed"] for run in jobs] == ["0", "1"]
    assert {run.info.status for run in (*jobs, parent)} == {"FINISHED"}
    assert {run.data.tags["mlflow.parentRunId"] for run in jobs} == {parent.info.run_id}
    assert [run.data.tags["job"] for run in jobs] == ["0", "1"]
    assert len({run.info.experiment_id for run in (*jobs, parent)}) == 1
    assert all("theory/index.html" in artifacts(shell, run.info.run_id) for run in jobs)
    exponents = {run.data.metrics["theory/exponent_row"] for run in jobs}
    assert len(exponents) == 2, "a seed changes nothing"
