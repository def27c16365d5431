"""Charts of settings and of runs, from plain rows: over training, and over what was swept."""

import math
from collections.abc import Mapping, Sequence

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
    thin,
    top,
)

MAX_POINTS = 300
HIT: Spec = {"type": "point", "filled": True, "size": 90, "opacity": 0}
"""What the mouse hits of a line; a line itself would show the values of its first point."""

TOOLTIP = (nominal("setting"), quantitative("step"), quantitative("value", format=".4g"))
AXES = {"step": "optimizer steps", "epoch": "epochs", "tokens": "tokens", "seconds": "seconds"}
STEPS = quantitative("step", title=AXES["step"])


def _value(field: str, title: str | None, *, log: bool, ticks: int) -> Spec:
    scale = LOG if log else {"zero": False}
    return quantitative(field, title=title, scale=scale, axis={"format": "~g", "tickCount": ticks})


def curve(rows: Rows, title: str, *, log: bool) -> Spec:
    """Draw a metric over steps, epochs, tokens or seconds (a menu), seeds as bands.

    Args:
        rows: ``setting``, ``step``, ``epoch``, ``tokens``, ``seconds``, ``value``, ``low``,
            ``high``, ``n``; an axis that no row knows is not offered.
        title: What is drawn.
        log: Whether the value's axis is logarithmic; values that are not positive are left out.
    """
    points = [row for row in rows if not log or row["low"] > 0]
    axes = [axis for axis in AXES if any(row[axis] is not None for row in points)] or ["step"]
    titles = " : ".join(f"against == '{axis}' ? '{AXES[axis]}'" for axis in axes)
    setting = nominal("setting", title=None)
    band = {
        "mark": "area",
        "encoding": {
            "y": _value("low", title, log=log, ticks=6),
            "y2": {"field": "high"},
            "color": setting,
            # Not opacity: the legend would take it over, and no longer hear clicks.
            "fillOpacity": {"condition": {"param": "shown", "value": 0.18}, "value": 0.02},
        },
    }
    line = {
        "mark": {"type": "line", "strokeWidth": 1.6, "clip": True},
        "encoding": {
            "y": _value("value", title, log=log, ticks=6),
            "color": setting,
            "opacity": {"condition": {"param": "shown", "value": 1}, "value": 0.08},
        },
        "params": [
            {"name": "shown", "select": {"type": "point", "fields": ["setting"]}, "bind": "legend"}
        ],
    }
    hits = {
        "mark": HIT,
        "encoding": {
            "y": _value("value", title, log=log, ticks=6),
            "tooltip": [*TOOLTIP, quantitative("n", title="seeds")],
        },
    }
    several = any(row["n"] > 1 for row in points)
    menu = {"input": "select", "options": axes, "name": "against "}
    body = {
        "data": data(rounded(points)),
        "width": 620,
        "height": 260,
        "params": [
            {"name": "against", "value": axes[0], "bind": menu},
            {"name": "axisTitle", "expr": f"{titles} : ''"},
        ],
        "transform": [{"calculate": "datum[against]", "as": "x"}],
        "encoding": {"x": quantitative("x", axis={"title": {"expr": "axisTitle"}})},
        "layer": [band, line, hits] if several else [line, hits],
    }
    return top(body, RUNS)


def small_multiples(rows: Rows, facet: str, y_title: str, *, log: bool, columns: int = 2) -> Spec:
    """Draw a panel per value of ``facet``, a line per setting, over optimizer steps.

    Args:
        rows: As for :func:`curve`, with the column that ``facet`` names.
        facet: Column.
        y_title: Title of the value's axis.
        log: Whether the value's axis is logarithmic.
        columns: Panels side by side.
    """

    def draw(group: Rows) -> Spec:
        points = [
            {column: row[column] for column in ("setting", "step", "value")}
            for row in group
            if not log or row["value"] > 0
        ]
        return {
            "data": data(rounded(points)),
            "width": 300,
            "height": 180,
            "encoding": {"x": STEPS, "y": _value("value", y_title, log=log, ticks=5)},
            "layer": [
                {
                    "mark": {"type": "line", "strokeWidth": 1.5, "clip": True},
                    "encoding": {"color": nominal("setting", title=None)},
                },
                {"mark": HIT, "encoding": {"tooltip": [*TOOLTIP]}},
            ],
        }

    return top(panels(rows, facet, draw, columns=columns), RUNS)


def growth(rows: Rows) -> Spec:
    """Draw the growth exponent of the scores over training, ½ and 1 marked.

    Args:
        rows: ``setting``, ``attention``, ``keys`` (whose), ``step``, ``exponent``.
    """
    marks = {
        "data": data([{"y": 0.5, "what": "½: untrained"}, {"y": 1.0, "what": "1: aligned"}]),
        "mark": {"type": "rule", "strokeDash": [4, 3], "color": "#777777"},
        "encoding": {"y": quantitative("y")},
    }

    def draw(group: Rows) -> Spec:
        line = {
            "data": data(rounded(group)),
            "mark": {"type": "line", "point": True, "strokeWidth": 1.5},
            "encoding": {
                "x": STEPS,
                "y": quantitative("exponent", title="growth exponent"),
                "color": nominal("setting", title=None),
                "strokeDash": nominal("keys", title="keys"),
            },
        }
        return {"width": 300, "height": 170, "layer": [marks, line]}

    return top(panels(rows, "attention", draw, columns=2), RUNS)


def run_curves(curves: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]], title: str) -> Spec:
    """Draw a panel per metric with a line per run, on logarithmic axes.

    Args:
        curves: Metric name to (run name to its curve); points that are not finite and positive are
            left out, a logarithmic axis has no place for them.
        title: Title of the whole figure.

    Raises:
        ValueError: If there is nothing to draw.
    """
    rows = [
        {"metric": metric, "run": run, "step": step, "value": value}
        for metric, by_run in curves.items()
        for run, points in by_run.items()
        for step, value in thin(points, MAX_POINTS)
        if math.isfinite(value) and value > 0
    ]
    if not rows:
        raise ValueError("there is no point to draw")
    names = list(dict.fromkeys(run for by_run in curves.values() for run in by_run))
    legend = {"orient": "bottom", "columns": 2}
    line = {
        "width": 360,
        "height": 220,
        "mark": {"type": "line", "strokeWidth": 1.5, "opacity": 0.85, "clip": True},
        "encoding": {
            "x": STEPS,
            "y": _value("value", None, log=True, ticks=6),
            "color": nominal("run", title=None, sort=names, legend=legend),
            "strokeDash": nominal("run", sort=names, legend=None),
        },
    }

    def draw(group: Rows) -> Spec:
        return {"data": data(group), **line}

    body = panels(rows, "metric", draw, columns=2)
    return top({"title": {"text": title, "anchor": "start"}, **body}, RUNS)


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
