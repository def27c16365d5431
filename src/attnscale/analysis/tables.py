"""Rows as tables: of a page, and in Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

from attnscale.figures.page import Table


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
