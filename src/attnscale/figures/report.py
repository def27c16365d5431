"""Charts of a report, as Vega-Lite, from plain rows."""

from collections.abc import Mapping, Sequence
from typing import Any

from attnscale.figures.attention import SCHEMA

Rows = Sequence[Mapping[str, Any]]
Spec = dict[str, Any]

LOG: Spec = {"type": "log", "nice": False}
"""Up to the values, not to the next powers of ten."""

FOUND: Spec = {"type": "point", "filled": True, "size": 90, "opacity": 0}
"""What the mouse finds of a line; a line itself would show the values of its first point."""

TOOLTIP = (
    {"field": "setting", "type": "nominal"},
    {"field": "step", "type": "quantitative"},
    {"field": "value", "type": "quantitative", "format": ".4g"},
)

AXES = {"step": "optimizer steps", "epoch": "epochs", "tokens": "tokens", "seconds": "seconds"}


def top(body: Spec) -> Spec:
    """Return a whole specification: a body with what all charts share."""
    config = {"legend": {"labelLimit": 400, "columns": 3, "orient": "bottom"}}
    return {"$schema": SCHEMA, "config": config, **body}


def rounded(rows: Rows) -> list[dict[str, Any]]:
    """Shorten numbers: a page of hundreds of runs is mostly digits."""
    return [
        {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in row.items()}
        for row in rows
    ]


def _line_layers(y: Spec, *, band: bool) -> list[Spec]:
    color = {"field": "setting", "type": "nominal", "title": None}
    x = {"field": "x", "type": "quantitative", "axis": {"title": {"expr": "axisTitle"}}}
    layers: list[Spec] = []
    if band:
        layers.append(
            {
                "mark": "area",
                "encoding": {
                    "x": x,
                    "y": {**y, "field": "low"},
                    "y2": {"field": "high"},
                    "color": color,
                    # Not opacity: the legend would take it over, and no longer hear clicks.
                    "fillOpacity": {"condition": {"param": "shown", "value": 0.18}, "value": 0.02},
                },
            }
        )
    layers.append(
        {
            "mark": {"type": "line", "strokeWidth": 1.6, "clip": True},
            "encoding": {
                "x": x,
                "y": {**y, "field": "value"},
                "color": color,
                "opacity": {"condition": {"param": "shown", "value": 1}, "value": 0.08},
            },
            "params": [
                {
                    "name": "shown",
                    "select": {"type": "point", "fields": ["setting"]},
                    "bind": "legend",
                }
            ],
        }
    )
    tooltip = [*TOOLTIP, {"field": "n", "type": "quantitative", "title": "seeds"}]
    layers.append(
        {"mark": FOUND, "encoding": {"x": x, "y": {**y, "field": "value"}, "tooltip": tooltip}}
    )
    return layers


def curve(rows: Rows, title: str, *, log: bool) -> Spec:
    """Draw a metric over steps, epochs, tokens or seconds (a menu), seeds as bands.

    Args:
        rows: ``setting``, ``step``, ``epoch``, ``tokens``, ``seconds``, ``value``, ``low``,
            ``high``, ``n``; an axis that no row knows is not offered.
        title: What is drawn.
        log: Whether the value's axis is logarithmic; values that are not positive are left out.
    """
    kept = [row for row in rows if not log or row["low"] > 0]
    offered = [axis for axis in AXES if any(row[axis] is not None for row in kept)] or ["step"]
    scale: Spec = LOG if log else {"zero": False}
    y: Spec = {
        "type": "quantitative",
        "title": title,
        "scale": scale,
        "axis": {"format": "~g", "tickCount": 6},
    }
    names = {axis: AXES[axis] for axis in offered}
    titles = " : ".join(f"against == '{axis}' ? '{name}'" for axis, name in names.items())
    return top(
        {
            "data": {"values": rounded(kept)},
            "width": 620,
            "height": 260,
            "params": [
                {
                    "name": "against",
                    "value": offered[0],
                    "bind": {"input": "select", "options": offered, "name": "against "},
                },
                {"name": "axisTitle", "expr": f"{titles} : ''"},
            ],
            "transform": [{"calculate": "datum[against]", "as": "x"}],
            "layer": _line_layers(y, band=any(row["n"] > 1 for row in kept)),
        }
    )


def small_multiples(rows: Rows, facet: str, y_title: str, *, log: bool, columns: int = 2) -> Spec:
    """Draw a panel per value of ``facet``, a line per setting, over optimizer steps.

    Args:
        rows: As for :func:`curve`, with the column that ``facet`` names.
        facet: Column.
        y_title: Title of the value's axis.
        log: Whether the value's axis is logarithmic.
        columns: Panels side by side.
    """
    panels = []
    for name in dict.fromkeys(row[facet] for row in rows):
        mine = [
            {column: row[column] for column in ("setting", "step", "value")}
            for row in rows
            if row[facet] == name and (not log or row["value"] > 0)
        ]
        panels.append(
            {
                "title": str(name),
                "data": {"values": rounded(mine)},
                "width": 300,
                "height": 180,
                "encoding": {
                    "x": {"field": "step", "type": "quantitative", "title": AXES["step"]},
                    "y": {
                        "field": "value",
                        "type": "quantitative",
                        "title": y_title,
                        "scale": LOG if log else {"zero": False},
                        "axis": {"format": "~g", "tickCount": 5},
                    },
                },
                "layer": [
                    {
                        "mark": {"type": "line", "strokeWidth": 1.5, "clip": True},
                        "encoding": {
                            "color": {"field": "setting", "type": "nominal", "title": None}
                        },
                    },
                    {"mark": FOUND, "encoding": {"tooltip": TOOLTIP}},
                ],
            }
        )
    return top({"concat": panels, "columns": columns})


def growth(rows: Rows) -> Spec:
    """Draw the growth exponent of the scores over training, ½ and 1 marked.

    Args:
        rows: ``group``, ``path``, ``step``, ``exponent``.
    """
    marks = [
        {"y": 0.5, "what": "½: independent"},
        {"y": 1.0, "what": "1: aligned"},
    ]
    panels = []
    for path in dict.fromkeys(row["path"] for row in rows):
        mine = [dict(row) for row in rows if row["path"] == path]
        panels.append(
            {
                "title": str(path),
                "width": 300,
                "height": 170,
                "layer": [
                    {
                        "data": {"values": marks},
                        "mark": {"type": "rule", "strokeDash": [4, 3], "color": "#777777"},
                        "encoding": {"y": {"field": "y", "type": "quantitative"}},
                    },
                    {
                        "data": {"values": rounded(mine)},
                        "mark": {"type": "line", "point": True, "strokeWidth": 1.5},
                        "encoding": {
                            "x": {"field": "step", "type": "quantitative", "title": AXES["step"]},
                            "y": {
                                "field": "exponent",
                                "type": "quantitative",
                                "title": "growth exponent",
                            },
                            "color": {"field": "group", "type": "nominal", "title": None},
                        },
                    },
                ],
            }
        )
    return top({"concat": panels, "columns": 2})
