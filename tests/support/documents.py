"""Reading generated documents as a reader does."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


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
