"""The doctor's page as a reader has it."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnscale.doctor import examine
from tests.doctor.attention import WAYS, Block, batch


def test_the_page_opens_from_disk_with_its_chart_and_tables(browser: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    names = ("eager", "fused, default", "eager, no factor")
    report = examine(nn.Sequential(*(Block(WAYS[name][0]) for name in names)), batch())
    page = report.page(tmp_path / "doctor.html")
    browser.size(1280)
    browser.media()
    browser.problems()
    browser.open(page)
    assert browser.problems() == []
    assert len(browser.all(".chart svg.marks")) == 1
    assert browser.undrawn() == []
    text = browser.script("return document.body.innerText")
    assert "NOTE 2.attention: no factor" in text
    browser.shot(tmp_path / "wide.png")
    browser.size(390)
    browser.shot(tmp_path / "narrow.png")
    assert browser.script("return document.documentElement.scrollWidth - innerWidth") <= 1
