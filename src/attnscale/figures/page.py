"""A page: one self-contained HTML file, with each figure also as PNG and each table as CSV.

Figures are Vega-Lite specifications; the libraries that draw them are in the file, so that it opens
from disk without a network. The same specification gives the PNG, without a browser. Template,
stylesheet and script are the files in ``templates/``. All text is escaped there: names and
sentences of people are shown as they are, never taken for HTML.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscale.figures.chart import Spec
from attnscale.files import write_bytes, write_text

if TYPE_CHECKING:
    from jinja2 import Environment

MAX_OPEN_ROWS = 30
"""A table of more rows is folded until someone opens it."""

MAX_SHOWN_ROWS = 1000
"""A table of more rows is in its CSV file only."""

TEMPLATES = "templates"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table.

    Attributes:
        name: Name of its CSV file, without the ending; empty on a page that is a single file.
        columns: Headings.
        rows: Plain values: text, numbers, None for an empty cell.
        caption: What it shows.
    """

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure.

    Attributes:
        name: Name of its PNG file, without the ending; no other figure of the page has it.
        spec: Vega-Lite.
        caption: What it shows.
    """

    name: str
    spec: Spec
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a page, in the order: text, figures, tables, notes."""

    title: str
    text: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()


def table_of(name: str, rows: Sequence[Mapping[str, Any]], caption: str) -> Table:
    """Return a table with the columns of the first row; rows have the same keys."""
    columns = list(rows[0]) if rows else []
    return Table(
        name=name,
        columns=columns,
        rows=[[row[column] for column in columns] for row in rows],
        caption=caption,
    )


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table in Markdown; a bar in a cell is escaped."""

    def line(cells: Sequence[object]) -> str:
        texts = ["" if cell is None else str(cell) for cell in cells]
        return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"

    return "\n".join([line(columns), "|" + "---|" * len(columns), *map(line, rows)])


def cell_text(value: Any) -> str:
    """Return a cell's text: numbers with four digits or whole, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e9 else f"{value:.4g}"
    return str(value)


def place(section: int, figure: int) -> str:
    """Return the id of the element that a figure is drawn into."""
    return f"figure-{section}-{figure}"


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(__package__, TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell_text"] = cell_text
    environment.globals |= {
        "place": place,
        "max_open_rows": MAX_OPEN_ROWS,
        "max_shown_rows": MAX_SHOWN_ROWS,
    }
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False}
    return environment


def table_html(table: Table) -> str:
    """Return a table as HTML that can be sorted by a click on a heading."""
    macros: Any = _environment().get_template("table.html.j2").module
    return str(macros.table_html(table)).strip()


def page_html(title: str, lead: Sequence[str], sections: Sequence[Section]) -> str:
    """Return the whole page as one text."""
    import vl_convert

    script = (files(__package__) / TEMPLATES / "page.js").read_text(encoding="utf-8")
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            title=title,
            lead=lead,
            sections=sections,
            specs={
                place(number, index): figure.spec
                for number, section in enumerate(sections)
                for index, figure in enumerate(section.figures)
            },
            script=vl_convert.javascript_bundle(script),
        )
    )


def write_csv(table: Table, path: Path) -> None:
    """Write a table as CSV; numbers keep all their digits, text comes back as it was."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(table.columns)
    writer.writerows(table.rows)
    write_text(path, text.getvalue())


def write_page(
    folder: Path,
    *,
    title: str,
    lead: Sequence[str],
    sections: Sequence[Section],
) -> Path:
    """Write a page, its figures as PNG and its tables as CSV, into a folder.

    Args:
        folder: Where; made if it is not there.
        title: Heading.
        lead: Paragraphs under the heading.
        sections: The page's parts. Names of figures and of tables must differ.

    Returns:
        Path of the page.

    Raises:
        ValueError: If two figures, or two tables, have the same name.
    """
    figures = [figure for section in sections for figure in section.figures]
    tables = [table for section in sections for table in section.tables]
    for names in ([figure.name for figure in figures], [table.name for table in tables]):
        duplicates = sorted({name for name in names if names.count(name) > 1})
        if duplicates:
            raise ValueError(f"names occur twice: {', '.join(duplicates)}")
    folder.mkdir(parents=True, exist_ok=True)
    for figure in figures:
        write_bytes(folder / f"{figure.name}.png", to_png(figure.spec))
    for table in tables:
        write_csv(table, folder / f"{table.name}.csv")
    path = folder / "index.html"
    write_text(path, page_html(title, lead, sections))
    return path


def to_png(spec: Spec) -> bytes:
    """Draw a specification, twice as large as on the page."""
    import vl_convert

    png: bytes = vl_convert.vegalite_to_png(json.dumps(spec), scale=2)
    return png
