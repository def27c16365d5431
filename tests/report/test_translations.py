"""Translations of two settings: which runs are compared, and how many comparisons count."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from attnscale.analysis.comparison import Difference
from attnscale.analysis.estimate import Interval
from attnscale.report import translations
from attnscale.report.page import make_report
from tests.support.runs import PlantedHistory


class Files(PlantedHistory):
    """A store whose runs have translated two sentences, each in its own words."""

    def __init__(self, folder: Path, signatures: Mapping[str, str]) -> None:
        self.folder, self.signatures = folder, signatures

    def artifact(self, run_id: str, path: str, folder: Path) -> Path:
        file = self.folder / f"{run_id} {path}"
        if path == translations.SIGNATURES:
            signature = self.signatures.get(run_id, "nrefs:1|case:mixed|eff:no|tok:13a")
            file.write_text(json.dumps({"bleu": signature}))
            return file
        lines = [
            {"source": f"s{i}", "reference": "r", "translation": f"{run_id} {i}"} for i in range(2)
        ]
        file.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
        return file


def difference(p: float) -> Difference:
    interval = Interval(0.5, 1.5)
    return Difference(1.0, interval, "paired bootstrap", 2, 2, 0, p, p, lower_is_better=False)


@pytest.fixture
def options() -> list[dict[str, Any]]:
    """How BLEU was computed in each comparison."""
    return []


@pytest.fixture
def signatures() -> dict[str, str]:
    """BLEU's signature by run, where it is not the usual one."""
    return {}


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch, options: list[dict[str, Any]]) -> list[str]:
    """The runs whose translations were compared; their p values are 0.03, 0.04, 0.001."""
    runs: list[str] = []
    p_values: Iterator[float] = iter((0.03, 0.04, 0.001))

    def bootstrap(a: list[str], b: list[str], references: list[str], **how: Any) -> Difference:
        options.append(how)
        runs.extend((a[0].split()[0], b[0].split()[0]))
        return difference(next(p_values))

    monkeypatch.setattr(translations, "paired_bootstrap_bleu", bootstrap)
    return runs


@pytest.fixture
def rows(
    undrawn: None, tmp_path: Path, signatures: dict[str, str]
) -> Callable[[Any], list[dict[str, str]]]:
    """The page's table of translations."""

    def table(runs: Any) -> list[dict[str, str]]:
        make_report(runs, Files(tmp_path, signatures), tmp_path / "page", title="t")
        with (tmp_path / "page/translations.csv").open(encoding="utf-8") as file:
            return list(csv.DictReader(file))

    return table


def test_the_bootstraps_of_a_report_are_a_family(
    plant: Any, compared: list[str], rows: Any
) -> None:
    names = ("sqrt", "none", "folded", "cosine")
    table = rows(plant.runs({f"scale={name}": (0.5,) for name in names}))
    # Holm: 0.001 · 3, 0.03 · 2, and not less for the larger 0.04 · 1.
    assert [(row["setting"], row["verdict"]) for row in table] == [
        ("scale=cosine", "within noise"),
        ("scale=folded", "within noise"),
        ("scale=none", "higher"),
    ]
    assert [float(row["Holm p"]) for row in table] == pytest.approx([0.06, 0.06, 0.003])


def test_the_same_seeds_of_weights_and_data_are_compared(
    plant: Any, compared: list[str], rows: Any
) -> None:
    runs = [
        plant.run("scale=sqrt", 0, data__seed="1"),
        plant.run("scale=sqrt", 1, data__seed="1"),
        plant.run("scale=none", 0, data__seed="0"),
        plant.run("scale=none", 1, data__seed="1"),
    ]
    (row,) = rows(runs)
    assert (row["seed"], row["verdict"]) == ("1", "higher")
    assert compared == [runs[3].run_id, runs[1].run_id]


def test_translations_of_swept_rates_are_those_of_each_one_s_best(
    plant: Any, compared: list[str], rows: Any
) -> None:
    losses = {"none lr=0.1": 0.1, "none lr=0.2": 0.2, "sqrt lr=0.1": 0.4, "sqrt lr=0.2": 0.3}
    runs = [plant.run(f"scale={name}", 0, loss) for name, loss in losses.items()]
    (row,) = rows(runs)
    assert (row["setting"], row["reference"]) == ("scale=none lr=0.1", "scale=sqrt lr=0.2")
    assert compared == [runs[0].run_id, runs[3].run_id]


@pytest.mark.parametrize(
    ("case", "tok", "wanted"),
    [
        ("lc", "13a", {"lowercase": True, "tokenize": "13a"}),
        ("mixed", "char", {"lowercase": False, "tokenize": "char"}),
        ("mixed", "ja-mecab-0.996-IPA", {"lowercase": False, "tokenize": "ja-mecab"}),
    ],
)
def test_translations_are_compared_as_they_were_scored(
    plant: Any,
    compared: list[str],
    rows: Any,
    options: list[dict[str, Any]],
    signatures: dict[str, str],
    *,
    case: str,
    tok: str,
    wanted: dict[str, Any],
) -> None:
    runs = plant.runs({"scale=none": (0.5,), "scale=sqrt": (0.5,)})
    signatures |= {run.run_id: f"nrefs:1|case:{case}|eff:no|tok:{tok}|smooth:exp" for run in runs}
    rows(runs)
    assert options == [wanted]


def test_what_was_scored_in_two_ways_is_not_compared(
    plant: Any, undrawn: None, tmp_path: Path, compared: list[str]
) -> None:
    runs = plant.runs({"scale=none": (0.5,), "scale=sqrt": (0.5,)})
    files = Files(tmp_path, {runs[0].run_id: "case:mixed|tok:char"})
    make_report(runs, files, tmp_path / "page", title="t")
    assert compared == []


def test_what_must_be_known_to_read_bleu_stands_under_the_table(
    plant: Any, undrawn: None, tmp_path: Path, compared: list[str]
) -> None:
    figures = {"test/bleu": 0.0, "test/bleu_ceiling": 0.0, "test/bleu_references": 0.0}
    runs = [plant.run("scale=none", metrics=figures), plant.run("scale=sqrt", metrics=figures)]
    report = make_report(runs, Files(tmp_path, {}), tmp_path / "page", title="t")
    (remark,) = report.result["remarks"]
    assert remark.startswith("BLEU: 0 whatever the model")
    assert remark in report.page.read_text(encoding="utf-8")
