"""The generated documents: complete, and those of the repository up to date."""

import re

import pytest

from attnscale.attention import SCALES, Scale
from attnscale.attention.scale import options_of
from attnscale.config.build import compose
from attnscale.report.modes import LEFT_OUT, Figures, kind, modes_document, registry_table
from tests.support.documents import ROOT, rows_of, table_after
from tests.support.runs import trained_run


@pytest.fixture(scope="module")
def options() -> dict[str, dict[str, float]]:
    """Return the options as a configuration has them."""
    return compose([], folder=ROOT).attention.options


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
    figures: dict[str, Figures] = {
        "sqrt": ("0.3 (0.2 to 0.4)", 45.67, 1.0),
        "none": ("9", None, None),
    }
    runs = [
        trained_run(scale="sqrt", loss=1.23456, test_bleu=30.456),
        trained_run(scale="inverse", loss=None),
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
