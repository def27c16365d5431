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


def _top(body: Spec) -> Spec:
    config = {"legend": {"labelLimit": 400, "columns": 3, "orient": "bottom"}}
    return {"$schema": SCHEMA, "config": config, **body}


def _rounded(rows: Rows) -> list[dict[str, Any]]:
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
    return _top(
        {
            "data": {"values": _rounded(kept)},
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
                "data": {"values": _rounded(mine)},
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
    return _top({"concat": panels, "columns": columns})


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
                        "data": {"values": _rounded(mine)},
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
    return _top({"concat": panels, "columns": 2})


def against(rows: Rows, x_title: str, *, log_y: bool) -> Spec:
    """Draw loss against a swept number, a line per other setting, seeds as bars.

    Args:
        rows: ``group``, ``x``, ``value``, ``low``, ``high``; None where a run diverged.
        x_title: Title of the axis.
        log_y: Whether the loss has a logarithmic axis.
    """
    kept = [row for row in rows if row["value"] is not None]
    logs = all(row["x"] > 0 for row in kept)
    x = {
        "field": "x",
        "type": "quantitative",
        "title": x_title,
        "scale": {**LOG, "padding": 20} if logs else {"zero": False},
        "axis": {"format": "~g"},
    }
    scale: Spec = LOG if log_y else {"zero": False}
    color = {"field": "group", "type": "nominal", "title": None}
    return _top(
        {
            "data": {"values": _rounded(kept)},
            "width": 620,
            "height": 260,
            "layer": [
                {
                    "mark": {"type": "rule"},
                    "encoding": {
                        "x": x,
                        "y": {"field": "low", "type": "quantitative", "scale": scale, "title": ""},
                        "y2": {"field": "high"},
                        "color": color,
                    },
                },
                {
                    "mark": {"type": "line", "point": True},
                    "encoding": {
                        "x": x,
                        "y": {
                            "field": "value",
                            "type": "quantitative",
                            "title": "best validation loss",
                            "scale": scale,
                            "axis": {"format": "~g"},
                        },
                        "color": color,
                    },
                },
            ],
        }
    )


def heat(rows: Rows, x_title: str, y_title: str) -> Spec:
    """Draw loss over two swept numbers, a panel per other setting.

    Args:
        rows: ``group``, ``x``, ``y``, ``value`` (None where runs diverged).
        x_title: Title of the horizontal axis.
        y_title: Title of the vertical axis.
    """
    panels = []
    for group in dict.fromkeys(row["group"] for row in rows):
        mine = [dict(row) for row in rows if row["group"] == group]
        base = {
            "x": {"field": "x", "type": "ordinal", "title": x_title},
            "y": {"field": "y", "type": "ordinal", "title": y_title, "sort": "descending"},
        }
        panels.append(
            {
                "title": str(group),
                "data": {"values": _rounded(mine)},
                "width": {"step": 64},
                "height": {"step": 34},
                "layer": [
                    {
                        "mark": "rect",
                        "encoding": {
                            **base,
                            "color": {
                                "field": "value",
                                "type": "quantitative",
                                "title": "best val loss",
                                "scale": {"scheme": "viridis", "reverse": True},
                            },
                        },
                    },
                    {
                        "mark": {"type": "text", "fontSize": 11},
                        "encoding": {
                            **base,
                            "text": {"field": "value", "type": "quantitative", "format": ".3g"},
                            "color": {"value": "#d11507"},
                        },
                    },
                ],
            }
        )
    return _top({"concat": panels, "columns": 3})
