"""A page as a browser would read it: parsed, never searched as text alone."""

import csv
import json
import math
import re
import struct
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import vl_convert

import attnscale.figures.page
from attnscale.figures.page import (
    MAX_OPEN_ROWS,
    MAX_SHOWN_ROWS,
    TEMPLATES,
    Figure,
    Section,
    Table,
    page_html,
    table_html,
    to_png,
    write_csv,
    write_page,
)

PLAIN = "plain"
FOLDER = Path(attnscale.figures.page.__file__).with_name(TEMPLATES)
STYLE = (FOLDER / "page.css").read_text(encoding="utf-8")
HOSTILE = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "</title></style><b>bold</b>",
    '"><i>double</i> \' onclick="x" and `ticks`',
    "Tom & Jerry &lt;b&gt; &amp;amp; &#60;",
    "two\nlines\n\n  and an indent",
    "שלום עולם, مرحبا",
    "<!-- never closed",
    "]]> {{x}} ${y} \\u003c",
)
EMPTY = {"br", "img", "link", "meta"}


class Reader(HTMLParser):
    """Elements in order, each with its attributes and its text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []
        self.stack: list[int] = []
        self.parts: dict[int, str] = {}
        self.comments: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in EMPTY:
            self.stack.append(len(self.elements) - 1)
            self.parts[self.stack[-1]] = ""

    def handle_endtag(self, tag: str) -> None:
        assert self.elements[self.stack[-1]][0] == tag, f"</{tag}> closes another element"
        self.stack.pop()

    def handle_data(self, data: str) -> None:
        for index in self.stack:
            self.parts[index] += data

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def of(self, tag: str, **attributes: str) -> list[str]:
        """Return the texts of all elements of a kind."""
        return [
            self.parts[index]
            for index, (name, found) in enumerate(self.elements)
            if name == tag and attributes.items() <= found.items()
        ]

    def shape(self) -> list[tuple[str, list[str]]]:
        return [(tag, sorted(attributes)) for tag, attributes in self.elements]


def spec(text: str) -> dict[str, Any]:
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "title": text,
        "data": {"values": [{"name": text, "x": 1.5}, {"name": "other", "x": 2}]},
        "mark": "bar",
        "encoding": {"x": {"field": "x", "type": "quantitative"}, "y": {"field": "name"}},
    }


def section(text: str, name: str = "") -> Section:
    return Section(
        title=text,
        text=(text, text),
        figures=(Figure(name=f"figure{name}", spec=spec(text), caption=text),),
        tables=(
            Table(
                name=f"table{name}",
                columns=(text, "number"),
                rows=((text, 1 / 3), (None, 2), (text + "!", 10)),
                caption=text,
            ),
        ),
        notes=(text,),
    )


def stub(spec: Any) -> bytes:
    return b"png of " + json.dumps(spec).encode()


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the library, which takes seconds to bundle."""
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda snippet: snippet)


@pytest.fixture(scope="module")
def real() -> str:
    return page_html("Title", ["lead"], [section(text, str(i)) for i, text in enumerate(HOSTILE)])


def test_text_of_people_is_text_everywhere(no_library: None) -> None:
    shape = Reader(page_html(PLAIN, [PLAIN], [section(PLAIN)])).shape()
    for text in HOSTILE:
        read = Reader(page_html(text, [text], [section(text)]))
        assert read.shape() == shape, text
        assert read.comments == []
        assert read.of("title") == read.of("h1") == read.of("h2") == [text]
        assert read.of("p") == [text] * 4
        assert read.of("figcaption") == [text]
        assert read.of("caption") == [f"{text} (table.csv)"]
        assert read.of("button") == [text, "number"]
        assert read.of("td") == [text, "0.3333", "", "2", text + "!", "10"]
        keys = [attributes["data-value"] for tag, attributes in read.elements if tag == "td"]
        assert keys[0] == text
        (specs,) = read.of("script", id="specs")
        assert json.loads(specs) == {"figure-0-0": spec(text)}


def test_line_breaks_and_right_to_left_script_show_as_written() -> None:
    (rule,) = re.findall(r"^td \{([^}]*)\}", STYLE, re.MULTILINE)
    assert "white-space: pre-wrap" in rule
    assert "unicode-bidi: plaintext" in rule


def test_the_page_needs_nothing_but_itself(real: str) -> None:
    read = Reader(real)
    for tag, attributes in read.elements:
        assert tag in {"link", "meta"} or not attributes.keys() & {"src", "href", "srcset", "data"}
        assert not attributes.get("href", "data:").startswith(("http", "//", "/"))
        assert attributes.get("http-equiv") is None
    assert [tag for tag, _ in read.elements].count("script") == 2
    assert ("meta", {"charset": "utf-8"}) in read.elements
    (style,) = read.of("style")
    assert style.strip() == STYLE.strip()
    assert "@import" not in style
    assert "url(" not in style
    (library,) = read.of("script", type="module")
    assert not re.search(r"""\b(import|from)\b\s*\(?\s*["'](https?:)?/""", library)
    # The library is there as a whole: it is large, and knows Vega-Lite's own words.
    assert len(library) > 400_000
    assert all(word in library for word in ("vega-embed", "strokeDash", "table.sortable"))
    for word in ('src="http', 'href="http', "@import"):
        assert word not in real


def test_every_figure_has_its_place_and_its_specification(real: str) -> None:
    read = Reader(real)
    (text,) = read.of("script", id="specs")
    specs = json.loads(text)
    places = [found["id"] for tag, found in read.elements if tag == "div" and "id" in found]
    assert list(specs) == places
    assert [made["title"] for made in specs.values()] == list(HOSTILE)
    # The element's end tag cannot come early, whatever the parser.
    assert "<" not in text


def test_the_parts_of_a_section_are_in_order(no_library: None) -> None:
    made = page_html("T", ["L"], [section("S")])
    marks = ["<h1>T", ">L</p>", "<h2>S", "<p>S</p>", "<figure>", "<table", '<p class="soft">S']
    places = [made.index(mark) for mark in marks]
    assert places == sorted(places)


def test_a_csv_reads_back_as_it_was(tmp_path: Path) -> None:
    numbers = [0.1, 1 / 3, math.pi * 1e-300, 1.7976931348623157e308, -0.0, math.inf]
    whole = [2**63 + 1, 0, -7, True, False, 12345678901234567890]
    words = [*HOSTILE, "", " spaces ", "a,b;c\td", 'say "hi"', "'=1+1", "cr\rlf\r\nend\n", "日本語"]
    rows: list[list[Any]] = [
        *([PLAIN, x] for x in numbers),
        *([PLAIN, x] for x in whole),
        *([word, None] for word in words),
    ]
    columns = ['heading, with "comma"', "line\nbreak"]
    path = tmp_path / "t.csv"
    write_csv(Table(name="t", columns=columns, rows=rows), path)
    with path.open(newline="", encoding="utf-8") as file:
        head, *body = list(csv.reader(file))
    assert head == columns
    assert [row[0] for row in body] == [row[0] for row in rows]
    count = len(numbers)
    for text, number in zip([row[1] for row in body[:count]], numbers, strict=True):
        assert struct.pack("d", float(text)) == struct.pack("d", number)
    assert [row[1] for row in body[count : count + len(whole)]] == [str(x) for x in whole]
    assert {row[1] for row in body[count + len(whole) :]} == {""}


def test_a_page_with_its_files(
    tmp_path: Path, no_library: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attnscale.figures.page, "to_png", stub)
    sections = [section("one", "1"), section("two", "2")]
    # A figure and a table may share a name: their files have different endings.
    sections.append(
        Section(
            title="three",
            figures=(Figure(name="same", spec=spec("three")),),
            tables=(Table(name="same", columns=("a",), rows=((1.5,),)),),
        )
    )
    folder = tmp_path / "new" / "folder"
    path = write_page(folder, title="T", lead=("L",), sections=sections)
    assert path == folder / "index.html"
    assert path.read_text(encoding="utf-8") == page_html("T", ("L",), sections)
    names = {p.name for p in folder.iterdir()}
    assert names == {
        "index.html",
        *(f"{n}.png" for n in ("figure1", "figure2", "same")),
        *(f"{n}.csv" for n in ("table1", "table2", "same")),
    }
    assert (folder / "figure2.png").read_bytes() == stub(spec("two"))
    assert (folder / "same.csv").read_text() == "a\n1.5\n"
    # Once more into the same folder: replaced.
    write_page(folder, title="T", lead=(), sections=sections[:1])
    assert path.read_text(encoding="utf-8") == page_html("T", (), sections[:1])


@pytest.mark.parametrize(
    "sections",
    [
        [section("one", "1"), Section(title="", figures=section("x", "1").figures)],
        [Section(title="", tables=(*section("x", "1").tables, *section("y", "1").tables))],
    ],
    ids=["figures", "tables"],
)
def test_duplicate_names_are_refused_before_anything_is_written(
    sections: list[Section], tmp_path: Path
) -> None:
    sections = [*sections, section("another", "2")]
    with pytest.raises(ValueError, match=r"^names occur twice: (figure1|table1)$"):
        write_page(tmp_path / "p", title="", lead=(), sections=sections)
    assert not (tmp_path / "p").exists()


def test_a_png_is_drawn_without_a_browser_twice_as_large(tmp_path: Path, no_library: None) -> None:
    one = Section(title="", figures=(Figure(name="f", spec=spec("שלום <b>")),))
    write_page(tmp_path, title="", lead=(), sections=[one])
    drawn = (tmp_path / "f.png").read_bytes()
    once = vl_convert.vegalite_to_png(json.dumps(spec("שלום <b>")))
    assert drawn[:8] == once[:8] == b"\x89PNG\r\n\x1a\n"
    (width, height), (w, h) = (struct.unpack(">II", png[16:24]) for png in (drawn, once))
    assert (width, height) == (pytest.approx(2 * w, abs=2), pytest.approx(2 * h, abs=2))
    assert drawn == to_png(spec("שלום <b>"))


@pytest.mark.parametrize(("count", "folded"), [(MAX_OPEN_ROWS, False), (MAX_OPEN_ROWS + 1, True)])
def test_long_tables_are_folded(count: int, folded: bool) -> None:
    rows = [(i, "<b>") for i in range(count)]
    made = Table(name="<n>", columns=("i", "x"), rows=rows, caption="<i> & more")
    read = Reader(table_html(made))
    assert read.of("summary") == ([f"<i> & more: {count} rows"] if folded else [])
    assert [tag for tag, _ in read.elements].count("tr") == count + 1
    assert next(tag for tag, _ in read.elements) == ("details" if folded else "div")
    unnamed = Table(name="<n>", columns=("i", "x"), rows=rows)
    assert Reader(table_html(unnamed)).of("summary") == ([f"<n>: {count} rows"] if folded else [])


def test_cells_show_four_digits_and_sort_by_all_of_them() -> None:
    values = [1 / 3, 0.33333, 1e-7, 12345678, None, True, False, "10", "holds", "open", -1.5e300]
    read = Reader(table_html(Table(name="t", columns=("x",), rows=[(x,) for x in values])))
    shown = ["0.3333", "0.3333", "1e-07", "12345678", "", "yes", "no", "10", "holds", "open"]
    assert read.of("td") == [*shown, "-1.5e+300"]
    cells = [attributes for tag, attributes in read.elements if tag == "td"]
    keys = [cell["data-value"] for cell in cells]
    # An empty cell has an empty key, which the script puts last; numbers lose nothing.
    assert keys[4] == ""
    for key, value in zip(keys, values, strict=True):
        if isinstance(value, float):
            assert float(key) == value
    assert float(keys[0]) > float(keys[1])
    assert keys[3] == "12345678"
    assert keys[7] == "10"
    heads = [attributes for tag, attributes in read.elements if tag == "th"]
    assert heads == [{"scope": "col"}]
    assert ("button", {"type": "button"}) in read.elements


def test_only_verdicts_are_coloured() -> None:
    values = ["holds", "fails", "depends", "open", "fails here", True]
    read = Reader(table_html(Table(name="t", columns=("x",), rows=[(x,) for x in values])))
    classes = [attributes.get("class") for tag, attributes in read.elements if tag == "td"]
    assert classes == ["holds", "fails", "depends", None, None, None]
    assert all(f".{verdict} {{ color:" in STYLE for verdict in classes[:3])


def test_a_very_long_table_is_named_only() -> None:
    rows = [(i,) for i in range(MAX_SHOWN_ROWS + 1)]
    named = Table(name="<n>", columns=("i",), rows=rows, caption="<i> & more")
    read = Reader(table_html(named))
    assert read.of("p") == [f"<i> & more: {MAX_SHOWN_ROWS + 1} rows, in <n>.csv"]
    assert [tag for tag, _ in read.elements] == ["p", "code"]
