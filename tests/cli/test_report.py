"""What a sweep's end prints, and that it breaks nothing."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnscale.cli import report as module
from attnscale.cli.report import _valid, finish, fitted_table
from attnscale.sweep.state import Launch

COLUMNS = ("scale", "d_k", "runs", "best val loss", "verdict", "ms/step")
ROWS: list[list[Any]] = [
    ["none", "64", "5 finished", "0.1235 ± 0.0012", "better", 1.23456],
    ["sqrt", "512", "4 finished, 1 diverged", None, "within noise", None],
]


def widest(table: str) -> int:
    return max(map(len, table.splitlines()))


@pytest.mark.parametrize("width", [20, 30, 40, 50, 60, 80, 120])
def test_a_table_is_never_wider_than_asked(width: int) -> None:
    table = fitted_table(COLUMNS, ROWS, width, 2)
    assert widest(table) <= width
    head, _, none, sqrt = table.splitlines()
    # What names the setting stays.
    assert head.split()[:2] == ["scale", "d_k"]
    assert none.split()[:2] == ["none", "64"]
    assert sqrt.split()[:2] == ["sqrt", "512"]


def test_columns_go_from_the_right_and_no_sooner_than_needed() -> None:
    whole = fitted_table(COLUMNS, ROWS, 1000, 2)
    assert "ms/step" in whole
    assert "1.235" in whole
    assert fitted_table(COLUMNS, ROWS, widest(whole), 2) == whole
    less = fitted_table(COLUMNS, ROWS, widest(whole) - 1, 2)
    assert "ms/step" not in less
    assert "verdict" in less


def test_names_that_are_too_long_are_cut_not_dropped() -> None:
    keys = [f"key{i}" for i in range(5)]
    rows = [[f"{'long' * 10}{i}" for i in range(5)]]
    table = fitted_table([*keys, "runs"], [[*rows[0], "1 finished"]], 60, 5)
    assert widest(table) <= 60
    assert table.split()[:5] == keys
    assert table.count("…") == 5


def test_an_empty_table() -> None:
    assert fitted_table([], [], 60, 0) == ""
    assert fitted_table(["runs"], [["3 finished"]], 60, 0).split() == [
        "runs",
        "-" * 10,
        "3",
        "finished",
    ]


def test_what_json_cannot_hold_is_left_empty() -> None:
    given = {
        "a": math.nan,
        1: [math.inf, -math.inf, 2.5, None, "NaN"],
        "c": {"d": (math.nan, True)},
    }
    made = _valid(given)
    assert made == {"a": None, "1": [None, None, 2.5, None, "NaN"], "c": {"d": [None, True]}}
    assert json.loads(json.dumps(made, allow_nan=False)) == made


def test_the_end_of_a_sweep(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "name" / "report" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text("page")
    (page.parent / "arrays").mkdir()
    answer = SimpleNamespace(sentences=("First.", "Second."))
    made = SimpleNamespace(
        page=page, answer=answer, columns=COLUMNS, rows=ROWS, result={"keys": ["a", "b"]}
    )
    asked: list[Any] = []

    def write(store: Any, wanted: Any, folder: Path, **more: Any) -> Any:
        asked.append((wanted.sweep, wanted.experiment, folder, more["title"]))
        return made

    kept: list[Any] = []
    record: Any = SimpleNamespace(store=None, file=lambda path, folder: kept.append((path, folder)))
    monkeypatch.setattr(module, "write", write)
    launch = Launch(
        parent="",
        name="name",
        swept=[],
        allow=[],
        experiment="group",
        described="scale=sqrt,none",
    )
    assert finish(record, tmp_path / "name", launch) == "First."
    assert asked == [("name", "group", page.parent, "Sweep of scale=sqrt,none")]
    assert kept == [(page, "report")]
    out = capsys.readouterr().out
    places = [out.index(text) for text in ("best val loss", "First.", "Second.", "Report: ")]
    assert places == sorted(places)
    assert out.rstrip().endswith("index.html")
