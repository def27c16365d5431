"""What every chart is made of: Vega-Lite as plain values, its channels, panels and inline data.

A chart is a function from rows to a whole specification that is written out, without a library
between the two (``docs/adr/0006-one-chart-idiom.md``).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
Rows = Sequence[Mapping[str, Any]]
"""A table: rows with named values."""

Spec = dict[str, Any]
"""A Vega-Lite specification, or a part of one, as plain values."""

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"

LOG: Spec = {"type": "log", "nice": False}
"""Up to the values, not to the next powers of ten."""

RUNS: Spec = {"legend": {"labelLimit": 400, "columns": 3, "orient": "bottom"}}
"""What is set for all charts of runs: their names are long."""


def top(body: Spec, config: Spec) -> Spec:
    """Return a whole specification: a chart, and what is set for all of its parts."""
    return {"$schema": SCHEMA, "config": config, **body}


def quantitative(field: str, **options: Any) -> Spec:
    """Return the channel of a number."""
    return {"field": field, "type": "quantitative", **options}


def nominal(field: str, **options: Any) -> Spec:
    """Return the channel of a name."""
    return {"field": field, "type": "nominal", **options}


def ordinal(field: str, **options: Any) -> Spec:
    """Return the channel of a value that has an order and no distance."""
    return {"field": field, "type": "ordinal", **options}


def data(rows: Rows) -> Spec:
    """Return rows as the data of a chart."""
    return {"values": [dict(row) for row in rows]}


def rounded(rows: Rows) -> list[dict[str, Any]]:
    """Shorten numbers: a page of hundreds of runs is mostly digits."""
    return [
        {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in row.items()}
        for row in rows
    ]


def finite(value: float) -> float | None:
    """Return a number for a specification, which as JSON has neither NaN nor infinity."""
    return float(value) if math.isfinite(value) else None


def panels(rows: Rows, column: str, draw: Callable[[Rows], Spec], *, columns: int) -> Spec:
    """Return a panel for each value of a column, in the order in which they first occur."""
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row[column], []).append(row)
    charts = [{"title": str(value), **draw(group)} for value, group in groups.items()]
    return {"concat": charts, "columns": columns}


def thin(items: Sequence[T], max_items: int) -> list[T]:
    """Return at most ``max_items`` of some items, evenly taken, the first and the last too."""
    if len(items) <= max_items:
        return list(items)
    chosen = np.linspace(0, len(items) - 1, max_items).round().astype(int)
    return [items[i] for i in chosen]
