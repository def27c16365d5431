"""The page of a small recorded sweep, read back as a person and a program would."""

import csv
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from attnscale.analysis.settings import Asked, make_grid
from attnscale.cli.report import write
from attnscale.report.page import Report, drawn_settings, make_report
from attnscale.tracking.history import History
from attnscale.tracking.record import FAILED, FINISHED, Record
from attnscale.tracking.store import Store

GROUP = "page"
SCRIPT = "<script>alert(1)</script>"
HOSTILE = f"""{SCRIPT} "double" 'single', a & b; שלום עולם
a second line"""
REASON = f"ValueError: {SCRIPT} \"x\", 'y' & مرحبا"
PATH = "encoder.0.self"
EMPTY = {"meta", "link", "br", "img"}


class Reader(HTMLParser):
    """What a browser sees: elements, the text of paragraphs and cells, addresses."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self.cells: list[str] = []
        self.paragraphs: list[str] = []
        self.addresses: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href", "action", "data")]
        assert not [k for k, _ in attrs if k.startswith("on")]
        if tag not in EMPTY:
            self.open.append(tag)
        for name, texts in (("td", self.cells), ("p", self.paragraphs), ("script", self.scripts)):
            if tag == name:
                texts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for name, texts in (("td", self.cells), ("p", self.paragraphs), ("script", self.scripts)):
            if name in self.open:
                texts[-1] += data


def _arrays(folder: Path) -> Path:
    import numpy as np

    tokens = json.dumps([[SCRIPT, "שלום", 'say "x", y'], ["a"]])
    path = folder / "step_000040.npz"
    weights = np.full((2, 2, 3, 3), 1 / 3)
    arrays = {
        f"weights/{PATH}": weights,
        f"queries/{PATH}": np.array(tokens),
        f"keys/{PATH}": np.array(tokens),
        f"counts/{PATH}": np.array([1, 5, 2]),
        f"edges/{PATH}": np.array([-1.0, -0.3, 0.3, 1.0]),
        f"predicted/{PATH}": np.array(1.0),
    }
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def _record(store: Store, job: int, cell: tuple[str, int, int], arrays: Path) -> None:
    scale, size, seed = cell
    tags = {"kind": "run", "sweep": "s", "job": str(job), "git.commit": "c" * 40}
    record = Record.start(store, experiment=GROUP, name=f"{HOSTILE} {job}", tags=tags)
    record.parameters(
        {
            "attention": {"scale": scale},
            "model": {"d_k": size},
            "seed": seed,
            "data": {"dir": HOSTILE},
        }
    )
    if job == 7:
        record.tags({"error": f"{REASON}\nTraceback"})
        record.end(FAILED)
        return
    for step in range(0, 50, 10):
        value = (1.0 if scale == "sqrt" else 1.5) * math.exp(-step / 40) + 0.01 * seed
        bad = job == 5 and step == 40
        figures = {
            "train/loss": math.inf if bad else value,
            "val/loss": math.nan if bad else value,
            "grad_norm/q": value,
            f"attention/{PATH}/logit_std_row": value,
            f"attention/{PATH}/entropy_norm": 0.9,
            f"attention/{PATH}/score_std_relative": float(size) ** 0.5 * (1 + seed / 100),
        }
        record.points(figures, step, timestamp=1_700_000_000_000 + 1000 * step)
    last = math.inf if job == 5 else value
    record.points({"val/best_loss": last, "progress/steps": 40.0}, 40)
    record.file(arrays, "attention")
    if job == 5:
        # As MLflow keeps an infinity.
        record.client.log_metric(record.run_id, "test/loss", math.inf)
        record.tags({"diverged": "true", "diverged.metric": "val/loss", "diverged.step": "40"})
    record.end(FINISHED)


@pytest.fixture(scope="module")
def report(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Two scales, two sizes, two seeds; one run diverged, one failed."""
    folder = tmp_path_factory.mktemp("page")
    arrays = _arrays(folder)
    cells = [
        (scale, size, seed) for scale in ("sqrt", HOSTILE) for size in (8, 64) for seed in (0, 1)
    ]
    for job, cell in enumerate(cells):
        _record(store, job, cell, arrays)
    return write(store, Asked("s", (), None, GROUP), folder / "out", title=f"Sweep of {HOSTILE}")


@pytest.fixture(scope="module")
def read(report: Report) -> Reader:
    return Reader(report.page.read_text(encoding="utf-8"))


def rows_of(report: Report, name: str) -> list[dict[str, str]]:
    with (report.page.parent / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_people_s_texts_are_shown_and_never_run(report: Report, read: Reader) -> None:
    page = report.page.read_text(encoding="utf-8")
    assert "<script>alert" not in page
    # The figures' data and the code that draws them, nothing else.
    assert len(read.scripts) == 2
    assert not {"img", "iframe", "object", "embed"} & set(read.tags)
    assert HOSTILE in read.cells
    assert REASON in read.cells
    assert any(HOSTILE in text for text in read.paragraphs)
    specs = json.loads(read.scripts[0])
    values = json.dumps(specs, ensure_ascii=False)
    assert "שלום" in values
    assert SCRIPT in values


def test_nothing_comes_from_elsewhere(read: Reader) -> None:
    assert [a for a in read.addresses if not a.startswith(("data:", "#"))] == []
    # What the figures load is in them: an address of data would be fetched.
    specs = json.loads(read.scripts[0])
    assert '"url"' not in json.dumps(specs)


def test_no_infinity_nor_what_became_of_one(report: Report, read: Reader) -> None:
    for file in report.page.parent.iterdir():
        if file.suffix in (".csv", ".json"):
            # A run's id may hold any such letters.
            text = re.sub(r"\b[0-9a-f]{32}\b", "", file.read_text(encoding="utf-8"))
            assert not re.search(r"e\+?30[0-9]|\bnan\b|NaN|Infinity|\binf\b", text), file.name
    assert not re.search(r"e\+?30[0-9]|NaN|Infinity", read.scripts[0])
    assert not [cell for cell in read.cells if re.search(r"e\+?30\d|^nan$|^inf$", cell)]


def test_the_table_comes_back_from_csv(report: Report) -> None:
    rows = rows_of(report, "settings")
    assert [(row["scale"], row["d_k"], row["runs"]) for row in rows] == [
        (HOSTILE, "8", "1 finished, 1 diverged"),
        (HOSTILE, "64", "1 finished, 1 failed"),
        ("sqrt", "8", "2 finished"),
        ("sqrt", "64", "2 finished"),
    ]
    assert [list(row.values()) for row in rows] == [
        ["" if value is None else str(value) for value in row] for row in report.rows
    ]
    bad = rows_of(report, "not_finished")
    assert [(row["seed"], row["state"], row["reason"]) for row in bad] == [
        ("1", "diverged", "val/loss at step 40"),
        ("1", "failed", REASON),
    ]


def test_curves_keep_what_was_recorded(report: Report) -> None:
    rows = rows_of(report, "train_loss")
    mine = [row for row in rows if row["setting"] == "scale=sqrt d_k=8"]
    assert [int(row["step"]) for row in mine] == [0, 10, 20, 30, 40]
    assert float(mine[0]["low"]) == 1.0
    assert float(mine[0]["high"]) == 1.01
    assert [float(row["seconds"]) for row in mine] == [0, 10, 20, 30, 40]
    assert {row["n"] for row in mine} == {"2"}
    # The run that diverged is drawn up to there.
    diverged = [row for row in rows if row["setting"] == f"scale={HOSTILE} d_k=8"]
    assert [row["n"] for row in diverged] == ["2", "2", "2", "2", "1"]


def test_each_figure_is_a_picture_too(report: Report, read: Reader) -> None:
    pictures = sorted(report.page.parent.glob("*.png"))
    specs = json.loads(read.scripts[0])
    names = {path.stem for path in pictures}
    assert len(names) == len(specs) == read.tags.count("figure")
    assert {
        *("train_loss", "val_loss", "gradient_norms", "attention_statistics", "score_growth"),
        *("attention_maps", "attention_histograms", "loss_over_d_k"),
    } <= names
    for path in pictures:
        assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n"), path.name
        assert path.stat().st_size > 2000, path.name


def test_the_result_is_valid_json(report: Report) -> None:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    text = (report.page.parent / "result.json").read_text(encoding="utf-8")
    result = json.loads(text, parse_constant=refuse)
    assert result["answer"] == list(report.answer.sentences)
    assert result["best"] == {"attention.scale": "sqrt", "model.d_k": "8"}
    assert result["keys"] == ["attention.scale", "model.d_k"]
    states = [sorted(setting["runs"].values()) for setting in result["settings"]]
    assert states[:2] == [["diverged", "finished"], ["failed", "finished"]]
    assert result["settings"][2]["losses"].keys() == {"0", "1"}
    assert result["table"]["columns"] == report.columns
    assert not (report.page.parent / "arrays").exists()


def test_the_answer_leads(report: Report, read: Reader) -> None:
    assert tuple(read.paragraphs[: len(report.answer.sentences)]) == report.answer.sentences
    assert report.answer.sentences[0].startswith(
        "Lowest mean of the best validation loss: scale=sq"
    )
    assert "1 of 8 runs diverged: scale=" in " ".join(report.answer.sentences)


def test_growth_of_the_planted_scores(report: Report) -> None:
    rows = rows_of(report, "score_growth")
    sqrt = [float(row["exponent"]) for row in rows if row["setting"] == "scale=sqrt"]
    assert sqrt == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize(
    "states", [(), ("running",), ("failed", "running"), ("finished", "running")]
)
def test_a_page_of_what_there_is_so_far(
    plant: Any, history: History, tmp_path: Path, states: tuple[str, ...]
) -> None:
    runs = [
        plant.run(f"scale={scale} lr=0.1", loss=0.5 if state == "finished" else None, outcome=state)
        for scale, state in zip(("sqrt", "none"), states, strict=False)
    ]
    made = make_report(runs, history, tmp_path / "r", title="Half")
    read = Reader(made.page.read_text(encoding="utf-8"))
    assert read.paragraphs[0] == made.answer.sentences[0]
    first = {0: "There is no run", 1: "No run has finished"}.get(len(states), "")
    assert read.paragraphs[0].startswith("Only" if "finished" in states else first or "No run has")
    assert ("running" in read.cells) == ("running" in states)


def test_two_keys_with_the_same_last_word(plant: Any, history: History, tmp_path: Path) -> None:
    runs = [
        plant.run(f"model.dropout={a} data.dropout={b}", loss=a + b)
        for a in (0.25, 0.5)
        for b in (0.125, 0.5)
    ]
    made = make_report(runs, history, tmp_path, title="t")
    assert len(set(made.columns)) == len(made.columns)
    assert len(list(tmp_path.glob("loss_over_*.csv"))) == 2


def test_curves_of_many_settings_are_those_of_the_best(plant: Any) -> None:
    runs = [plant.run(f"lr={i}", loss=abs(i - 30.1)) for i in range(40)]
    grid = make_grid(runs)
    shown = drawn_settings(grid)
    assert [setting.values["optimizer.lr"] for setting in shown.settings] == [
        str(i) for i in range(16, 40)
    ]
    assert len(grid.settings) == 40
    few = make_grid(runs[:3])
    assert drawn_settings(few) is few
