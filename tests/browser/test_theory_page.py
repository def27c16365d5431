"""The theory page as a reader has it, made with as little effort as it takes."""

from pathlib import Path
from typing import Any

import pytest

from attnscale.attention.scale import all_options
from attnscale.figures.page import write_page
from attnscale.report.theory import make_theory

pytestmark = pytest.mark.slow


def test_every_figure_is_drawn_and_the_page_is_read_anywhere(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"draws": 50, "pairs": 200, "replicates": 2, "models": 2}
    sections = make_theory(all_options(), **few, n=14, seed=0).sections
    monkeypatch.setattr("attnscale.figures.page.to_png", lambda spec: b"")
    page = write_page(tmp_path / "theory", title="Theory", lead=(), sections=sections)
    figures = [figure for section in sections for figure in section.figures]
    browser.size(1280)
    browser.media()
    browser.problems()
    browser.open(page)
    assert browser.problems() == []
    assert len(browser.all(".chart svg.marks")) == len(figures) > 5
    assert browser.undrawn() == []
    browser.shot(tmp_path / "wide.png")
    browser.size(390)
    browser.shot(tmp_path / "narrow.png")
    assert browser.script("return document.documentElement.scrollWidth - innerWidth") <= 1
