"""MLflow's pages on a trained sweep, as someone finds them who gives the printed command."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Run

from attnscale.tracking.record import Record
from attnscale.tracking.store import find_store
from attnscale.tracking.ui import LOCAL, save_view
from tests.apps.conftest import Shell

pytestmark = pytest.mark.slow

PATIENCE = 60
VARIED = ("attention.scale", "model.d_k")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Shell, str]:
    """Train a sweep, and keep what it printed."""
    shell = Shell(tmp_path_factory.mktemp("sweep"))
    done = shell(
        *("-m", "attention.scale=sqrt,none", "model.d_k=16,64", "trainer.max_epochs=3"),
        *("threads=1", "trainer.accelerator=cpu", "trainer.limit_train_batches=20"),
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert f"mlflow ui --backend-store-uri {shell.uri}" in done.stdout
    return shell, done.stdout


@pytest.fixture(scope="module")
def trained(printed: tuple[Shell, str]) -> Shell:
    return printed[0]


@pytest.fixture(scope="module")
def address(trained: Shell) -> Iterator[str]:
    """Start the printed command on a port of its own."""
    port = _free_port()
    program = Path(sys.executable).with_name("mlflow")
    command = [str(program), "ui", "--backend-store-uri", trained.uri, "--port", str(port)]
    with (trained.path / "ui.log").open("wb") as log:
        server = subprocess.Popen(
            [*command, "--workers", "1"],
            env=trained.environment(),
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=trained.path,
            start_new_session=True,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(PATIENCE)


@pytest.fixture
def ui(browser: Any, address: str) -> Any:
    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    browser.wait(answers, "mlflow ui does not start", PATIENCE)
    # Wide: what is out of view is not in the page.
    browser.size(2800, 1000)
    return browser


def _open(ui: Any, address: str, route: str) -> None:
    ui.driver.get("about:blank")
    ui.driver.get(f"{address}/#{route}")


def _runs_page(trained: Shell) -> str:
    # Without the last part MLflow opens on traces of language models.
    experiment = trained.parent().info.experiment_id
    return f"/experiments/{experiment}/runs?workflowType=machine_learning"


def _values(jobs: list[Run], name: str) -> list[str]:
    return sorted(run.data.params[name] for run in jobs)


def _cells(ui: Any, name: str) -> list[str]:
    """Return what a parameter's column has, sorted; a sweep's own run has none."""
    texts = ui.texts(f"[role=gridcell][col-id*='{name}']")
    return sorted(text for text in texts if text not in ("", "-"))


def _row_ids(ui: Any) -> set[str]:
    found: list[str] = ui.script(
        "return [...document.querySelectorAll('[role=row][row-id]')].map(r => "
        "r.getAttribute('row-id'))"
    )
    return set(found)


def _strokes(ui: Any) -> set[str]:
    """Return the colours of the curves that are drawn; a run has one, smoothed or not."""
    found: list[str] = ui.script(
        "return [...document.querySelectorAll('.scatterlayer path.js-line')]"
        ".map(p => getComputedStyle(p).stroke)"
    )
    return set(found)


def _charts(ui: Any, n: int) -> int:
    """Return how many charts draw curves in so many colours; a run has one, smoothed or not."""
    drawn: list[list[str]] = ui.script(
        "return [...document.querySelectorAll('.js-plotly-plot')].map(plot => "
        "[...plot.querySelectorAll('.scatterlayer path.js-line')]"
        ".map(p => getComputedStyle(p).stroke))"
    )
    return sum(len(set(colors)) == n for colors in drawn)


@pytest.mark.parametrize("server", [False, True], ids=["file", "server"])
def test_a_sweeps_address_opens_on_its_comparison(
    ui: Any, address: str, printed: tuple[Shell, str], tmp_path: Path, server: bool
) -> None:
    """First in this file: the browser's profile is new."""
    trained, output = printed
    lines = {line.strip() for line in output.splitlines()}
    (where,) = (line for line in lines if line.startswith(LOCAL))
    parent, jobs = trained.parent(), trained.jobs()
    if server:
        record = Record.attach(find_store(address, tmp_path), parent.info.run_id)
        sweep = parent.data.tags["sweep"]
        where = save_view(record, "attnscale", sweep=sweep, described="all", swept=VARIED)
    ui.driver.get("about:blank")
    ui.driver.get(where.replace(LOCAL, address))
    ids = {run.info.run_id for run in jobs}
    ui.wait(lambda: _row_ids(ui) == ids, "the runs are not listed", PATIENCE)
    listed = ui.one(".ag-root").text
    assert all(run.data.tags["mlflow.runName"] in listed for run in jobs)
    ui.wait(lambda: _charts(ui, len(ids)) >= 4, "not four charts of all runs", PATIENCE)
    ui.shot(tmp_path / "opened.png", whole=False)
    text = ui.one("body").text
    names = ("train/loss", "val/loss", "grad_norm/total", "layers.0.attention/entropy_norm")
    assert [name for name in names if name not in text] == []
    # As a table it has what was swept.
    ui.script("document.querySelector('input[value=TABLE]').click()")
    ui.wait(lambda: all(_cells(ui, name) == _values(jobs, name) for name in VARIED), "columns")


def test_a_sweep_folds_its_runs_and_varied_parameters_are_columns(
    ui: Any, address: str, trained: Shell, tmp_path: Path
) -> None:
    _open(ui, address, _runs_page(trained))
    parent, jobs = trained.parent(), trained.jobs()
    ids = {run.info.run_id for run in jobs}
    ui.wait(lambda: parent.info.run_id in _row_ids(ui), "the sweep is not listed", PATIENCE)
    # Folded at first; the sign before the name opens it.
    assert _row_ids(ui) == {parent.info.run_id}
    assert ui.one(".ag-root").text.count("sweep scale=sqrt,none d_k=16,64") == 1
    ui.click(ui.one("[role=gridcell] button[data-component-type=button]"))
    ui.wait(lambda: _row_ids(ui) == ids | {parent.info.run_id}, "its runs do not appear", PATIENCE)
    shown = ui.one(".ag-root").text
    assert all(run.data.tags["mlflow.runName"] in shown for run in jobs)
    (menu,) = [button for button in ui.all("button") if button.text.strip() == "Columns"]
    ui.click(menu)
    for name in VARIED:
        ui.wait(lambda name=name: ui.all(f"[title='{name}']"), f"{name} is no column", PATIENCE)
        ui.click(ui.one(f"[title='{name}']"))
    ui.shot(tmp_path / "runs.png", whole=False)
    for name in VARIED:
        ui.wait(
            lambda name=name: _cells(ui, name) == _values(jobs, name), f"column {name}", PATIENCE
        )


def test_charts_are_in_groups_and_draw_a_line_per_run(
    ui: Any, address: str, trained: Shell, tmp_path: Path
) -> None:
    # Sorted by anything but their time, runs are a plain list; folded ones have no curve.
    sweep = trained.parent().data.tags["sweep"]
    asked = {
        "orderByKey": "metrics.`val/best_loss`",
        "orderByAsc": "true",
        "searchFilter": f"tags.sweep = '{sweep}' and tags.kind = 'run'",
    }
    _open(ui, address, f"{_runs_page(trained)}&{urllib.parse.urlencode(asked)}")
    ids = {run.info.run_id for run in trained.jobs()}
    ui.wait(lambda: _row_ids(ui) == ids, "the runs are not listed", PATIENCE)
    # What the button does, whose input is hidden. Charts are made of the runs that are listed then.
    ui.script("document.querySelector('input[value=CHART]').click()")
    ui.wait(lambda: _strokes(ui), "no charts", PATIENCE)
    assert "attention/layers.0.attention (" in " ".join(ui.one("body").text.split())
    ui.one("input[placeholder='Search metric charts']").send_keys("train/loss")
    ui.wait(
        lambda: len(ui.all(".js-plotly-plot")) == 1 and len(_strokes(ui)) == len(ids),
        "no line per run",
        PATIENCE,
    )
    ui.shot(tmp_path / "charts.png", whole=False)


def test_compare_offers_what_was_swept(
    ui: Any, address: str, trained: Shell, tmp_path: Path
) -> None:
    jobs = trained.jobs()
    ids = json.dumps([run.info.run_id for run in jobs])
    experiment = json.dumps([jobs[0].info.experiment_id])
    _open(ui, address, f"/compare-runs?runs={ids}&experiments={experiment}")
    ui.wait(lambda: ui.all(".js-plotly-plot"), "no plot", PATIENCE)
    ui.shot(tmp_path / "compare.png", whole=False)
    _, _, text = ui.one("body").text.partition("Parameters:")
    drawn, _, text = text.partition("Metrics:")
    assert drawn.split() == list(VARIED)
    assert text.split()[0].endswith("loss")
    assert "folder" not in {key.rpartition(".")[2] for key in jobs[0].data.params}


def test_two_runs_compare(ui: Any, address: str, trained: Shell, tmp_path: Path) -> None:
    pair = [run for run in trained.jobs() if run.data.params["model.d_k"] == "64"]
    ids = json.dumps([run.info.run_id for run in pair])
    experiment = json.dumps([pair[0].info.experiment_id])
    _open(ui, address, f"/compare-runs?runs={ids}&experiments={experiment}")
    ui.wait(lambda: "Comparing 2 Runs" in ui.one("body").text, "no comparison", PATIENCE)
    switch = "button[role=switch][aria-label^=Parameters]"
    ui.wait(lambda: ui.all(switch), "no switch", PATIENCE)
    ui.shot(tmp_path / "compare_all.png", whole=False)
    ui.click(ui.one(switch))

    def parameters() -> dict[str, list[str]]:
        rows: list[list[str]] = ui.script(
            "return [...document.querySelectorAll('table tr')].map(r => "
            "[...r.children].map(c => c.textContent.trim()))"
        )
        return {row[0]: row[1:] for row in rows if len(row) == 3}

    ui.wait(lambda: "seed" not in parameters(), "equal parameters stay", PATIENCE)
    ui.shot(tmp_path / "compare.png", whole=False)
    assert parameters()["attention.scale"] == ["sqrt", "none"]
    assert "model.d_k" not in parameters()

    def link() -> str | None:
        """Scroll down the metrics, of which a few are in the page at a time."""
        ui.script("document.querySelector('.ReactVirtualized__Grid').scrollTop += 200")
        found = ui.all("a[href*='/metric?']")
        return next((a.get_attribute("href") for a in found if a.text == "train/loss"), None)

    target = ui.wait(link, "no link to the loss", PATIENCE)
    ui.driver.get("about:blank")
    ui.driver.get(target)
    ui.wait(lambda: len(_strokes(ui)) == 2, "no curve per run", PATIENCE)
    ui.shot(tmp_path / "loss.png", whole=False)
