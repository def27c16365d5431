"""The report as a reader has it: opened from disk, clicked, narrowed, printed."""

from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.support.ui import Select

import attnscale.figures.page
from attnscale.report.page import make_report
from tests.browser.sweep import HOSTILE, recorded_sweep

FIGURES = {
    *("train_loss", "val_loss", "val_explained_variance", "train_lr", "gradient_norms"),
    *("attention_statistics", "score_growth", "attention_maps", "attention_histograms"),
    "loss_over_d_k",
}
TITLE = f"Sweep of {HOSTILE}"
LOSS = "#figure-1-0"
SETTINGS = "section:first-of-type > .scroll:first-of-type"
PAPER = 718
"""CSS pixels between the margins of A4."""

CONTRAST = """
const light = text => { const parts = text.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255);
  const [r, g, b] = parts.map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b; };
const behind = e => { const color = getComputedStyle(e).backgroundColor;
  return color !== "rgba(0, 0, 0, 0)" ? color : behind(e.parentElement); };
return arguments[0].map(selector => { const e = document.querySelector(selector);
  const [a, b] = [light(getComputedStyle(e).color), light(behind(e))];
  return (Math.max(a, b) + .05) / (Math.min(a, b) + .05); });
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    runs, history = recorded_sweep(folder)
    with pytest.MonkeyPatch.context() as patch:
        # The pictures beside the page take long to draw, and a browser does not open them.
        patch.setattr(attnscale.figures.page, "to_png", lambda spec: b"")
        return make_report(runs, history, folder / "report", title=TITLE).page


@pytest.fixture
def report(browser: Any, page: Path) -> Any:
    browser.size(1280)
    browser.media()
    browser.problems()
    browser.open(page)
    return browser


def test_every_figure_is_drawn_and_names_are_text(report: Any, page: Path) -> None:
    assert report.problems("SEVERE", "WARNING") == []
    assert {path.stem for path in page.parent.glob("*.png")} == FIGURES
    assert len(report.all(".chart svg.marks")) == len(FIGURES)
    assert report.undrawn() == []
    assert len(report.all(f"{LOSS} .mark-line.role-mark path")) == 4
    assert report.script("return window.hit") is None
    assert report.one("h1").text == report.driver.title == TITLE
    assert len(report.all("script")) == 2
    cells = [text for text in report.texts("td") if HOSTILE in text]
    assert cells == [f"ValueError: no such file: {HOSTILE}", f"train {HOSTILE}", HOSTILE]
    # A token of a map; a long label is cut.
    assert any(text.startswith("<script>") for text in report.texts(".role-axis-label text"))


def test_a_click_on_a_heading_sorts_numbers_as_numbers(report: Any) -> None:
    heads = report.all(f"{SETTINGS} th")
    place = [head.text for head in heads].index("logit std")

    def column() -> list[str]:
        texts: list[str] = report.texts(f"{SETTINGS} td:nth-child({place + 1})")
        return texts

    ordered = sorted(column(), key=float)
    assert ordered != sorted(column())
    button = heads[place].find_element("css selector", "button")
    for state, expected in (("ascending", ordered), ("descending", ordered[::-1])):
        report.click(button)
        assert column() == expected
        sorts = [head.get_attribute("aria-sort") for head in heads]
        assert sorts == [state if i == place else None for i in range(len(heads))]
    report.click(heads[0].find_element("css selector", "button"))
    assert report.texts(f"{SETTINGS} td:first-child") == ["none", "none", "sqrt", "sqrt"]
    assert heads[place].get_attribute("aria-sort") is None


def test_a_curve_answers_to_menu_mouse_and_legend(report: Any) -> None:
    titles = f"{LOSS} .role-axis-title text"
    assert report.texts(titles) == ["optimizer steps", "training loss"]
    menu = Select(report.one(f"{LOSS} select"))
    assert [option.text for option in menu.options] == ["step", "epoch", "tokens", "seconds"]
    menu.select_by_value("epoch")
    report.wait(lambda: report.texts(titles)[0] == "epochs", "the axis keeps its title")
    labels = report.texts(f"{LOSS} .role-axis-label text")
    assert {"0.0", "6.0"} <= set(labels)
    assert "120" not in labels
    # A point in the middle: a line itself would show what its first point is.
    point = report.all(f"{LOSS} .mark-symbol.role-mark path")[7]
    report.hover(point)
    report.wait(lambda: report.all("#vg-tooltip-element.visible"), "no tooltip")
    shown = dict(
        zip(
            report.texts("#vg-tooltip-element .key"),
            report.texts("#vg-tooltip-element .value"),
            strict=True,
        )
    )
    assert shown["setting"] == "scale=none d_k=16"
    # The third run failed.
    assert (shown["step"], shown["seeds"]) == ("35", "2")
    assert 0.6 < float(shown["value"]) < 0.7
    entry = report.one(f"{LOSS} .role-legend-symbol path")
    color = entry.get_attribute("stroke")
    report.click(entry)

    def faded() -> dict[str, str]:
        lines = report.all(f"{LOSS} .mark-line.role-mark path")
        return {line.get_attribute("stroke"): line.get_attribute("opacity") for line in lines}

    report.wait(lambda: "0.08" in faded().values(), "a click on the legend does nothing")
    assert faded()[color] != "0.08"
    assert list(faded().values()).count("0.08") == 3
    bands = report.all(f"{LOSS} .mark-area.role-mark path")
    assert sorted(band.get_attribute("fill-opacity") for band in bands) == ["0.02"] * 3 + ["0.18"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_telephone_and_a_desk_by_day_and_night(
    report: Any, tmp_path: Path, scheme: str
) -> None:
    report.media(scheme=scheme)
    for width in (1280, 390):
        report.size(width)
        report.shot(tmp_path / f"{width}.png")
        wide = "return document.documentElement.scrollWidth - innerWidth"
        assert report.script(wide) <= 1
        rights = "return [...document.querySelectorAll('caption')].map(c => c.clientWidth)"
        assert max(report.script(rights)) <= width
    texts = ("h1", ".lead", "td", "th", "caption", "figcaption", "summary", ".vega-bindings")
    found = dict(zip(texts, report.script(CONTRAST, texts), strict=True))
    assert {name: ratio for name, ratio in found.items() if ratio < 4.5} == {}
    paper = report.script("return getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")


def test_paper_shows_all_of_it(report: Any, tmp_path: Path) -> None:
    report.media("print")
    report.size(PAPER)
    report.shot(tmp_path / "paper.png")
    cut = """
    return [...document.querySelectorAll(".scroll, .chart")]
      .filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1)
      .map(e => e.textContent.slice(0, 60));
    """
    assert report.script(cut) == []
    hidden = """
    return [...document.querySelectorAll("h1, h2, p, figcaption, summary, svg.marks, table")]
      .filter(e => !e.checkVisibility() && !e.closest("details:not([open])"))
      .map(e => e.textContent.slice(0, 60));
    """
    assert report.script(hidden) == []
    assert report.texts("section > details > summary")[0].startswith("Points of ")
    assert not report.one(".vega-bindings").is_displayed()
