"""Charts of loss over what was swept, from plain rows."""

from attnscale.figures.chart import (
    LOG,
    RUNS,
    Rows,
    Spec,
    data,
    nominal,
    ordinal,
    panels,
    quantitative,
    rounded,
    top,
)


def against(rows: Rows, x_title: str, *, log_y: bool) -> Spec:
    """Draw loss against a swept number, a line per other setting, seeds as bars.

    Args:
        rows: ``group``, ``x``, ``value``, ``low``, ``high``; None where a run diverged.
        x_title: Title of the axis.
        log_y: Whether the loss has a logarithmic axis.
    """
    points = [row for row in rows if row["value"] is not None]
    positive = all(row["x"] > 0 for row in points)
    x_scale = {**LOG, "padding": 20} if positive else {"zero": False}
    y_scale = LOG if log_y else {"zero": False}
    numbers = {"format": "~g"}
    loss = quantitative("value", title="best validation loss", scale=y_scale, axis=numbers)
    body = {
        "data": data(rounded(points)),
        "width": 620,
        "height": 260,
        "encoding": {
            "x": quantitative("x", title=x_title, scale=x_scale, axis=numbers),
            "color": nominal("group", title=None),
        },
        "layer": [
            {
                "mark": "rule",
                "encoding": {
                    "y": quantitative("low", title="", scale=y_scale),
                    "y2": {"field": "high"},
                },
            },
            {"mark": {"type": "line", "point": True}, "encoding": {"y": loss}},
        ],
    }
    return top(body, RUNS)


def heat(rows: Rows, x_title: str, y_title: str) -> Spec:
    """Draw loss over two swept numbers, a panel per other setting.

    Args:
        rows: ``group``, ``x``, ``y``, ``value`` (None where runs diverged).
        x_title: Title of the horizontal axis.
        y_title: Title of the vertical axis.
    """
    colors = {"scheme": "viridis", "reverse": True}
    cells = {
        "width": {"step": 64},
        "height": {"step": 34},
        "encoding": {
            "x": ordinal("x", title=x_title),
            "y": ordinal("y", title=y_title, sort="descending"),
        },
        "layer": [
            {
                "mark": "rect",
                "encoding": {"color": quantitative("value", title="best val loss", scale=colors)},
            },
            {
                "mark": {"type": "text", "fontSize": 11},
                "encoding": {
                    "text": quantitative("value", format=".3g"),
                    "color": {"value": "#d11507"},
                },
            },
        ],
    }

    def draw(group: Rows) -> Spec:
        return {"data": data(rounded(group)), **cells}

    return top(panels(rows, "group", draw, columns=3), RUNS)
