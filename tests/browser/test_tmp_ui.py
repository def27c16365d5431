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
def trained(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(Path("/tmp/bscr/m"))


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
        cells = f"[role=gridcell][col-id*='{name}']"
        expected = sorted(run.data.params[name] for run in jobs)
        ui.wait(
            lambda cells=cells, expected=expected: (
                sorted(text for text in ui.texts(cells) if text not in ("", "-")) == expected
            ),
            f"{name} does not show {expected}",
            PATIENCE,
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
