"""Charts of what theory predicts, from plain rows."""

from attnscale.figures.chart import Rows, Spec, data, nominal, ordinal, panels, quantitative, top

MEASURED, PREDICTED = "#0b5cad", "#c2410c"
CONFIG: Spec = {
    "legend": {"orient": "bottom", "labelLimit": 360, "titleLimit": 360},
    "title": {"anchor": "start", "fontSize": 13},
}
BINARY: Spec = {"type": "log", "base": 2}
NUMBERS: Spec = {"format": "~g"}


def growth(rows: Rows) -> Spec:
    """Draw variances of scores against d_k, a panel per setting, on logarithmic axes.

    Args:
        rows: ``setting``, ``kind`` (what is measured), ``d_k``, ``value``, ``low``, ``high``,
            ``predicted``.
    """
    scale = {"type": "log", "domain": [0.3, 1e6], "nice": False}
    axis = {"format": "~e", "values": [10**power for power in range(7)]}
    kind = nominal("kind", title=None)
    numbers = ("d_k", "value", "low", "high", "predicted")

    def draw(group: Rows) -> Spec:
        return {
            "data": data(group),
            "width": 250,
            "height": 190,
            "encoding": {"x": quantitative("d_k", title="d_k", scale=BINARY), "color": kind},
            "layer": [
                {
                    "mark": {"type": "line", "strokeDash": [5, 3], "opacity": 0.8},
                    "encoding": {"y": quantitative("predicted", title="", scale=scale)},
                },
                {
                    "mark": "rule",
                    "encoding": {
                        "y": quantitative("low", title="", scale=scale, axis=axis),
                        "y2": {"field": "high"},
                    },
                },
                {
                    "mark": {"type": "point", "size": 60, "strokeWidth": 1.6},
                    "encoding": {
                        "y": quantitative("value", title="variance of q·k", scale=scale, axis=axis),
                        "shape": kind,
                        "tooltip": [
                            *map(nominal, ("setting", "kind")),
                            *map(quantitative, numbers),
                        ],
                    },
                },
            ],
        }

    return top(panels(rows, "setting", draw, columns=3), CONFIG)


def histograms(bars: Rows, lines: Rows) -> Spec:
    """Draw densities of logits, a row per scale and a column per d_k, with what is predicted.

    Args:
        bars: ``scale``, ``d_k``, ``low``, ``high`` (bin edges), ``density``.
        lines: ``scale``, ``d_k``, ``kind`` (which prediction), ``x``, ``density``.
    """
    sizes = list(dict.fromkeys(row["d_k"] for row in bars))
    places = [
        (scale, d_k) for scale in dict.fromkeys(row["scale"] for row in bars) for d_k in sizes
    ]

    def at(rows: Rows, place: tuple[str, int]) -> Spec:
        return data([row for row in rows if (row["scale"], row["d_k"]) == place])

    charts = [
        {
            "title": f"{place[0]}, d_k = {place[1]}",
            "width": 185,
            "height": 130,
            "layer": [
                {
                    "data": at(bars, place),
                    "mark": {"type": "bar", "color": MEASURED, "opacity": 0.45},
                    "encoding": {
                        "x": quantitative("low", title="logit", bin="binned"),
                        "x2": {"field": "high"},
                        "y": quantitative("density", title="density"),
                        "tooltip": [*map(quantitative, ("low", "high", "density"))],
                    },
                },
                {
                    "data": at(lines, place),
                    "mark": {"type": "line", "strokeWidth": 1.5},
                    "encoding": {
                        "x": quantitative("x"),
                        "y": quantitative("density"),
                        "color": nominal(
                            "kind", title="predicted", scale={"range": [PREDICTED, "#111111"]}
                        ),
                        "strokeDash": nominal("kind", title="predicted"),
                    },
                },
            ],
        }
        for place in places
    ]
    return top({"concat": charts, "columns": len(sizes)}, CONFIG)


def score_row(rows: Rows) -> Spec:
    """Draw one row of scores as logits and as weights, a column of panels per scale.

    Args:
        rows: ``scale``, ``key``, ``logit``, ``weight``.
    """
    charts = [
        {
            "title": f"{scale}: {quantity}s of one row, d_k = 128",
            "data": data([row for row in rows if row["scale"] == scale]),
            "width": 340,
            "height": 150,
            "mark": {"type": "bar", "color": MEASURED},
            "encoding": {
                "x": ordinal("key", title="key", axis={"labelAngle": 0}),
                "y": quantitative(quantity, title=quantity),
                "tooltip": [nominal("key"), *map(quantitative, ("logit", "weight"))],
            },
        }
        for quantity in ("logit", "weight")
        for scale in dict.fromkeys(row["scale"] for row in rows)
    ]
    return top({"concat": charts, "columns": 2}, CONFIG)


def largest_weight(rows: Rows) -> Spec:
    """Draw the largest weight of softmax([a, a, 2a]), and its slope, against a.

    Args:
        rows: ``a``, ``value``, ``kind``.
    """
    body = {
        "data": data(rows),
        "width": 620,
        "height": 240,
        "mark": "line",
        "encoding": {
            "x": quantitative("a", title="a"),
            "y": quantitative("value", title=None),
            "color": nominal("kind", title=None),
            "tooltip": [nominal("kind"), *map(quantitative, ("a", "value"))],
        },
    }
    return top(body, CONFIG)


def sharpness(rows: Rows) -> Spec:
    """Draw statistics of a softmax against the deviation of its logits, a panel for each.

    Args:
        rows: ``statistic``, ``n``, ``beta``, ``value``, ``kind`` ("simulated", or a limit).
    """

    def draw(group: Rows) -> Spec:
        highest = max(row["value"] for row in group if row["kind"] == "simulated")
        sizes = sorted({row["n"] for row in group}, key=int)
        title = "β, standard deviation of the logits"
        tooltip = [*map(nominal, ("statistic", "n")), *map(quantitative, ("beta", "value"))]
        return {
            "data": data(group),
            "width": 250,
            "height": 180,
            "encoding": {
                "x": quantitative("beta", title=title, scale=BINARY, axis=NUMBERS),
                "y": quantitative("value", title=None, scale={"domain": [0, 1.05 * highest]}),
                "color": nominal("n", title="keys n", sort=sizes),
            },
            "layer": [
                {
                    "transform": [{"filter": "datum.kind == 'simulated'"}],
                    "mark": {"type": "point", "filled": True, "size": 22},
                    "encoding": {"tooltip": tooltip},
                },
                {
                    "transform": [{"filter": "datum.kind != 'simulated'"}],
                    "mark": {"type": "line", "clip": True},
                    "encoding": {"strokeDash": nominal("kind", title="limit")},
                },
            ],
        }

    return top(panels(rows, "statistic", draw, columns=3), CONFIG)


def places(rows: Rows) -> Spec:
    """Draw where each mode starts on the axis of sharpness, over d_k.

    Args:
        rows: ``mode``, ``d_k``, ``beta``.
    """
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    title = "standard deviation of the logits at the start, q and k of unit variance"
    body = {
        "data": data(rows),
        "width": 620,
        "height": 22 * len(modes),
        "encoding": {
            "x": quantitative("beta", title=title, scale=BINARY, axis=NUMBERS),
            "y": nominal("mode", title=None, sort=modes),
        },
        "layer": [
            {
                "mark": {"type": "line", "color": "#9aa4af"},
                "encoding": {"detail": nominal("mode")},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 55},
                "encoding": {
                    "color": ordinal("d_k", title="d_k", scale={"scheme": "viridis"}),
                    "tooltip": [nominal("mode"), *map(quantitative, ("d_k", "beta"))],
                },
            },
        ],
    }
    return top(body, CONFIG)


def initial(rows: Rows) -> Spec:
    """Draw the deviation of logits that each initialisation gives, by layer.

    Args:
        rows: ``model``, ``attention`` (path), ``init``, ``value``, ``low``, ``high``,
            ``predicted``.
    """
    scale = {"type": "log"}
    title = "standard deviation of the logits in a row (tick: predicted)"
    init = nominal("init", title="init")
    numbers = ("value", "low", "high", "predicted")

    def draw(group: Rows) -> Spec:
        paths = list(dict.fromkeys(row["attention"] for row in group))
        return {
            "data": data(group),
            "width": 330,
            "height": 34 * len(paths),
            "encoding": {
                "y": nominal("attention", title=None, sort=paths),
                "yOffset": nominal("init"),
            },
            "layer": [
                {
                    "mark": {"type": "rule", "strokeWidth": 2},
                    "encoding": {
                        "x": quantitative("low", title="", scale=scale),
                        "x2": {"field": "high"},
                        "color": init,
                    },
                },
                {
                    "mark": {"type": "point", "filled": True, "size": 40},
                    "encoding": {
                        "x": quantitative("value", title=title, scale=scale, axis=NUMBERS),
                        "color": init,
                        "tooltip": [
                            *map(nominal, ("attention", "init")),
                            *map(quantitative, numbers),
                        ],
                    },
                },
                {
                    "mark": {"type": "tick", "thickness": 2, "color": "#111111", "size": 9},
                    "encoding": {"x": quantitative("predicted", title="", scale=scale)},
                },
            ],
        }

    return top(panels(rows, "model", draw, columns=2), CONFIG)
