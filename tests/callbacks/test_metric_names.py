"""``docs/metrics.md`` and what runs really record are the same names."""

import itertools
import re
from pathlib import Path
from typing import Any

from attnscale.attention.stats import STATISTICS
from tests.callbacks.conftest import AUTOENCODER, TRANSFORMER

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
PATH = re.compile(r"(?<=/)(layers\.\d+\.attention|(en|de)coder\.\d+\.(self|cross))(?=/)")
ELSEWHERE = {
    "grad_norm/skipped": "trainer.precision=16-mixed, on a GPU",
    "test/loss_length_<from>_<to>": "task.length_edges, in tests/experiment/test_translation.py",
}
"""Names that no run here records, and the setting that brings them."""
LIGHT = ("callbacks.pictures=null", "trainer.max_epochs=1", "trainer.gradient_clip_val=1.0")


def tables() -> list[list[list[str]]]:
    """Return the tables of the document, each as rows of cells, without their heads."""
    found: list[list[list[str]]] = [[]]
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        elif found[-1]:
            found.append([])
    return [table[2:] for table in found if table]


def expanded(name: str) -> set[str]:
    """Return the names that ``{a,b}`` stands for."""
    parts = [part.split(",") for part in re.split(r"[{}]", name)]
    return {"".join(chosen) for chosen in itertools.product(*parts)}


def documented() -> set[str]:
    spans = [re.findall(r"`([^`]+)`", row[0]) for row in tables()[0]]
    return {name for row in spans for span in row for name in expanded(span)}


def pattern(key: str) -> str:
    """Return a recorded name as the document writes it."""
    key = re.sub(r"/head\d+/", "/head<i>/", PATH.sub("<module path>", key))
    front, _, last = key.rpartition("/")
    statistic = front.startswith("attention/") and last in STATISTICS
    return f"{front}/<statistic>" if statistic else key


def test_names_are_documented_and_documented_names_are_recorded(lab: Any) -> None:
    names: set[str] = set()
    for base in (AUTOENCODER, TRANSFORMER):
        lab.run(*base, *LIGHT, "attention.scale=learned")
        recorded = {pattern(key) for key in lab.last().data.metrics}
        assert "attention/<module path>/head<i>/<statistic>" in recorded
        assert recorded <= documented(), sorted(recorded - documented())
        names |= recorded
    assert documented() - names == set(ELSEWHERE)


def test_the_statistics_are_those_of_the_registry() -> None:
    rows = [[f"`{name}`", x.formula, x.unit, x.source] for name, x in STATISTICS.items()]
    assert tables()[1] == rows, "regenerate the table from STATISTICS"


def test_the_tags_of_the_watchdog_are_documented() -> None:
    _, _, tags = DOCUMENT.read_text(encoding="utf-8").partition("Tags of a run:")
    assert "`alarms`" in tags
    assert "`unusual`" in tags
