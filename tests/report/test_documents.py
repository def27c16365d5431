"""The generated documents: complete, and those of the repository up to date."""

import re
from pathlib import Path

import pytest

from attnscale.attention import SCALES, Scale
from attnscale.attention.scale import options_of
from attnscale.config.build import compose
from attnscale.report.claims import judge_all
from attnscale.report.documents import (
    LEFT_OUT,
    ModeFigures,
    claims_document,
    kind,
    markdown_table,
    modes_document,
    registry_table,
)
from attnscale.report.trained import TrainedRun
from attnscale.theory.claims import CLAIMS, DEPENDS, FAILS, HOLDS, OPEN
from tests.theory.conftest import EVIDENCE

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def options() -> dict[str, dict[str, float]]:
    """Return the options as a configuration has them."""
    return compose([], folder=ROOT).attention.options


def cells(line: str) -> list[str]:
    """Split a line of a Markdown table as a reader does: at bars that are not escaped."""
    assert line.startswith("| ")
    assert line.endswith(" |")
    parts = re.split(r"(?<!\\)\|", line)[1:-1]
    return [part.strip().replace("\\|", "|") for part in parts]


def rows_of(table: str) -> list[dict[str, str]]:
    head, rule, *lines = table.splitlines()
    columns = cells(head)
    assert rule == "|" + "---|" * len(columns)
    return [dict(zip(columns, cells(line), strict=True)) for line in lines]


def table_after(document: str, heading: str) -> list[dict[str, str]]:
    part = document[document.index(heading) :]
    return rows_of(part[part.index("| ") :].partition("\n\n")[0].rstrip())


def test_a_bar_does_not_end_a_cell() -> None:
    table = markdown_table(["a|b", "c"], [["|x| | y", None], [1.5, "z|"]])
    assert rows_of(table) == [{"a|b": "|x| | y", "c": ""}, {"a|b": "1.5", "c": "z|"}]


def test_the_registry_is_there_as_a_whole(options: dict[str, dict[str, float]]) -> None:
    rows = rows_of(registry_table(options))
    assert [row["attention.scale"] for row in rows] == [f"`{name}`" for name in SCALES]
    for row, (name, mode) in zip(rows, SCALES.items(), strict=True):
        assert row["logit"] == mode.formula
        assert row["source"] == mode.source
        given = {key: float(x) for key, x in re.findall(r"`(\w+)=([^`]+)`", row["options"])}
        assert given.keys() == options_of(mode).keys()
        assert given == options.get(name, {})
        expected = "q/k" if mode.logits is Scale.logits else "score"
        if mode.weights is not Scale.weights:
            expected = "normaliser"
        assert row["function"] == kind(mode) == expected
    assert {row["function"] for row in rows} == {"normaliser", "q/k", "score"}


def test_modes_document(options: dict[str, dict[str, float]]) -> None:
    figures = {
        "sqrt": ModeFigures(start="0.3 (0.2 to 0.4)", cost=1.0, milliseconds=45.67),
        "none": ModeFigures(start="9"),
    }
    runs = [
        TrainedRun(
            scale="sqrt", d_k=64, lr=0.1, seed=0, loss=1.23456, bleu=30.456, steps_per_second=8
        ),
        TrainedRun(scale="inverse", d_k=64, lr=0.1, seed=0, loss=None),
    ]
    document = modes_document(options, figures, runs)
    assert registry_table(options) in document
    assert "python -m src.theory docs=docs" in document
    measured = {row["mode"].strip("`"): row for row in table_after(document, "## Measured")}
    assert list(measured) == list(SCALES)
    assert list(measured["sqrt"].values())[1:] == [
        *("0.3 (0.2 to 0.4)", "45.7", "1.00", "1.2346", "30.46")
    ]
    assert list(measured["none"].values())[1:] == ["9", "", "", "", ""]
    assert list(measured["inverse"].values())[1:] == [""] * 5
    left_out = table_after(document, "## Left out")
    assert {row["method"]: row["why"] for row in left_out} == LEFT_OUT


def test_claims_document() -> None:
    runs = [
        TrainedRun(scale=scale, d_k=64, lr=lr, seed=seed, loss=loss, start_loss=1.0)
        for scale in ("sqrt", "inverse")
        for lr, loss in ((0.01, 0.5), (0.1, None))
        for seed in (0, 1)
    ]
    results = {"claim_width": [], "claim_inverse": runs}
    settled = judge_all(EVIDENCE, results)
    document = claims_document(settled, results)
    rows = table_after(document, "# Claims")
    assert len(rows) == len(CLAIMS)
    for row, one in zip(rows, settled, strict=True):
        assert list(row.values()) == [
            str(one.claim.number),
            one.claim.text,
            f"**{one.judgement.verdict}**",
            one.claim.statistic,
            one.judgement.value,
        ]
    assert "`experiment=claim_width`" not in document
    assert " 8 runs: `python -m src.train -m experiment=claim_inverse`." in document
    table = table_after(document, "## `experiment=claim_inverse`")
    assert [row["scale"] for row in table] == ["sqrt", "inverse"]
    assert [(row["lr 0.01"], row["lr 0.1"], row["best rate"]) for row in table] == [
        ("0.5", "–", "0.01")
    ] * 2
    assert table[0]["diverged"] == "2 of 4"
    assert document.endswith("|\n")


def test_the_modes_of_the_repository_are_up_to_date(options: dict[str, dict[str, float]]) -> None:
    text = (ROOT / "docs" / "modes.md").read_text(encoding="utf-8")
    hint = "run `python -m src.theory docs=docs`"
    assert registry_table(options) in text, hint
    measured = table_after(text, "## Measured")
    assert [row["mode"] for row in measured] == [f"`{name}`" for name in SCALES], hint
    assert all(row["initial deviation"] for row in measured), hint
    assert table_after(text, "## Left out") == [
        {"method": method, "why": why} for method, why in LEFT_OUT.items()
    ], hint


def test_the_claims_of_the_repository_are_up_to_date() -> None:
    text = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    hint = "run `python -m src.theory docs=docs`"
    rows = table_after(text, "# Claims")
    assert [(row[""], row["claim"], row["statistic"]) for row in rows] == [
        (str(claim.number), claim.text, claim.statistic) for claim in CLAIMS
    ], hint
    verdicts = {row["verdict"].strip("*") for row in rows}
    assert verdicts <= {HOLDS, FAILS, DEPENDS, OPEN}
    assert all(row["value"] for row in rows)
