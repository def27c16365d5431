"""Charts of loss over what was swept, as Vega-Lite, from plain rows."""

from attnscale.figures.report import LOG, Rows, Spec, rounded, top


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
    return top(
        {
            "data": {"values": rounded(kept)},
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
                "data": {"values": rounded(mine)},
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
    return top({"concat": panels, "columns": 3})
