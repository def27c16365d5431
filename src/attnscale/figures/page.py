"""A page: one self-contained HTML file, with each figure also as PNG and each table as CSV.

Figures are Vega-Lite specifications; the libraries that draw them are in the file, so that it opens
from disk without a network. The same specification gives the PNG, without a browser. All text is
escaped: names and sentences of people are shown as they are, never taken for HTML.
"""

import csv
import html
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LONGEST_OPEN = 30
"""A table of more rows is folded until someone opens it."""

MOST_SHOWN = 1000
"""A table of more rows is in its CSV file only."""

Spec = Mapping[str, Any]
"""A Vega-Lite specification as plain values."""

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de;
  --paper: #ffffff; --panel: #f6f8fa; --good: #1a7f37; --bad: #cf222e; --open: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9198a1; --line: #3d444d;
  --paper: #0d1117; --panel: #151b23; --good: #3fb950; --bad: #f85149; --open: #d29922; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 68rem; background: var(--paper);
  color: var(--ink); font: 16px/1.55 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; padding-top: .5rem;
  border-top: 1px solid var(--line); }
p { margin: .5rem 0; max-width: 50rem; } .lead { font-size: 1.1rem; }
.soft, figcaption, caption { color: var(--soft); font-size: .9rem; }
figure { margin: 1rem 0; } figcaption { max-width: 50rem; }
.chart { background: #ffffff; color: #1b1f24; color-scheme: light; border: 1px solid var(--line);
  border-radius: 6px; padding: .5rem; overflow-x: auto; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .3rem; max-width: calc(100vw - 2rem); }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem; text-align: left;
  vertical-align: top; overflow-wrap: normal; }
td { unicode-bidi: plaintext; white-space: pre-wrap; }
th { position: sticky; top: 0; background: var(--panel); }
th button { all: unset; cursor: pointer; font-weight: 600; white-space: nowrap; }
th button:focus-visible { outline: 2px solid currentColor; }
th[aria-sort=ascending] button::after { content: " ↑"; }
th[aria-sort=descending] button::after { content: " ↓"; }
.holds { color: var(--good); } .fails { color: var(--bad); } .depends { color: var(--open); }
code { background: var(--panel); padding: .1rem .3rem; border-radius: 4px; font-size: .88em; }
details { margin: .5rem 0; } summary { cursor: pointer; color: var(--soft); }
@media print { body { max-width: none; padding: 0; } .chart, table, figure { break-inside: avoid; }
  h2 { break-after: avoid; } th { position: static; } th button { white-space: normal; }
  table { font-size: .55rem; } th, td { padding: .15rem .25rem; }
  .chart svg { max-width: 100%; height: auto; } .vega-bindings, .chart details { display: none; } }
"""

SCRIPT = """
const specs = JSON.parse(document.getElementById("specs").textContent);
const options = { renderer: "svg", actions: { export: true, source: false, compiled: false,
  editor: false } };
window.drawn = Promise.all(Object.entries(specs).map(([id, spec]) =>
  vegaEmbed("#" + id, spec, options)));
for (const table of document.querySelectorAll("table.sortable")) {
  table.tHead.addEventListener("click", event => {
    const button = event.target.closest("button");
    if (!button) return;
    const head = button.parentElement;
    const column = [...head.parentElement.children].indexOf(head);
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of head.parentElement.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = row => row.cells[column].dataset.value;
    const body = table.tBodies[0];
    [...body.rows].sort((a, b) => {
      const x = key(a), y = key(b);
      if (x === "" || y === "") return (x === "") - (y === "");
      const numbers = !isNaN(x) && !isNaN(y);
      const order = numbers ? x - y : x.localeCompare(y);
      return up ? order : -order;
    }).forEach(row => body.append(row));
  });
}
"""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table.

    Attributes:
        name: Name of its CSV file, without the ending.
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
        name: Name of its PNG file, without the ending.
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
    notes: Sequence[str] = field(default_factory=tuple)


def shown(value: Any) -> str:
    """Return a cell's text: numbers with four digits or whole, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e9 else f"{value:.4g}"
    return str(value)


def _cell(value: Any) -> str:
    key = "" if value is None else value
    mark = f' class="{value}"' if value in ("holds", "fails", "depends") else ""
    return f'<td{mark} data-value="{html.escape(str(key))}">{html.escape(shown(value))}</td>'


def table_html(table: Table) -> str:
    """Return a table as HTML that can be sorted by a click on a heading."""
    if len(table.rows) > MOST_SHOWN:
        file = f"<code>{html.escape(table.name)}.csv</code>"
        named = html.escape(table.caption or table.name)
        return f'<p class="soft">{named}: {len(table.rows)} rows, in {file}</p>'
    heads = "".join(
        f'<th scope="col"><button type="button">{html.escape(c)}</button></th>'
        for c in table.columns
    )
    rows = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.rows)
    made = (
        f'<div class="scroll"><table class="sortable"><caption>{html.escape(table.caption)} '
        f"(<code>{html.escape(table.name)}.csv</code>)</caption><thead><tr>{heads}</tr></thead>"
        f"<tbody>\n{rows}\n</tbody></table></div>"
    )
    if len(table.rows) <= LONGEST_OPEN:
        return made
    summary = html.escape(f"{table.caption or table.name}: {len(table.rows)} rows")
    return f"<details><summary>{summary}</summary>{made}</details>"


def write_csv(table: Table, path: Path) -> None:
    """Write a table as CSV; numbers keep all their digits, text comes back as it was."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(table.columns)
        writer.writerows(table.rows)


def _section_html(section: Section, number: int) -> tuple[str, dict[str, Spec]]:
    parts = [f"<h2>{html.escape(section.title)}</h2>"]
    parts += [f"<p>{html.escape(text)}</p>" for text in section.text]
    specs: dict[str, Spec] = {}
    for index, figure in enumerate(section.figures):
        place = f"figure-{number}-{index}"
        specs[place] = figure.spec
        parts.append(
            f'<figure><div class="chart"><div id="{place}"></div></div><figcaption>'
            f"{html.escape(figure.caption)}</figcaption></figure>"
        )
    parts += [table_html(table) for table in section.tables]
    parts += [f'<p class="soft">{html.escape(note)}</p>' for note in section.notes]
    return "\n".join(parts), specs


def page_html(title: str, lead: Sequence[str], sections: Sequence[Section]) -> str:
    """Return the whole page as one text."""
    import vl_convert

    bodies, specs = [], {}
    for number, section in enumerate(sections):
        body, found = _section_html(section, number)
        bodies.append(f"<section>\n{body}\n</section>")
        specs.update(found)
    # A specification may hold people's text: "</script>" in it must not end the element.
    data = json.dumps(specs, ensure_ascii=False).replace("<", "\\u003c")
    leads = "\n".join(f'<p class="lead">{html.escape(text)}</p>' for text in lead)
    library = f'<script type="module">\n{vl_convert.javascript_bundle(SCRIPT)}\n</script>'
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{html.escape(title)}</h1>\n{leads}\n" + "\n".join(bodies) + "\n"
        f'<script type="application/json" id="specs">{data}</script>\n{library}\n'
        "</body>\n</html>\n"
    )


def write_page(
    folder: Path,
    *,
    title: str,
    lead: Sequence[str],
    sections: Sequence[Section],
    file: str = "index.html",
    draw: Callable[[Spec], bytes] | None = None,
) -> Path:
    """Write a page, its figures as PNG and its tables as CSV, into a folder.

    Args:
        folder: Where; made if it is not there.
        title: Heading.
        lead: Paragraphs under the heading.
        sections: The page's parts. Names of figures and of tables must differ.
        file: Name of the page.
        draw: Specification to PNG; vl-convert if not given.

    Returns:
        Path of the page.

    Raises:
        ValueError: If two figures, or two tables, have the same name.
    """
    figures = [figure for section in sections for figure in section.figures]
    tables = [table for section in sections for table in section.tables]
    for named in (figures, tables):
        names = [thing.name for thing in named]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"names occur twice: {', '.join(twice)}")
    folder.mkdir(parents=True, exist_ok=True)
    for figure in figures:
        (folder / f"{figure.name}.png").write_bytes((draw or to_png)(figure.spec))
    for table in tables:
        write_csv(table, folder / f"{table.name}.csv")
    path = folder / file
    path.write_text(page_html(title, lead, sections), encoding="utf-8")
    return path


def to_png(spec: Spec) -> bytes:
    """Draw a specification, twice as large as on the page."""
    import vl_convert

    drawn: bytes = vl_convert.vegalite_to_png(json.dumps(spec), scale=2)
    return drawn
