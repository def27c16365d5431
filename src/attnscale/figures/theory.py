"""Charts of what theory predicts, each from plain tables: a list of rows with named values."""

from collections.abc import Mapping, Sequence
from typing import Any

Rows = Sequence[Mapping[str, Any]]
Spec = dict[str, Any]

MEASURED, PREDICTED = "#0b5cad", "#c2410c"
NUMBER_AXIS = "~g"


def _data(rows: Rows) -> Any:
    import altair as alt

    return alt.InlineData(values=[dict(row) for row in rows])


def _finish(chart: Any) -> Spec:
    spec: Spec = (
        chart.configure_legend(labelLimit=360, titleLimit=360)
        .configure_title(anchor="start", fontSize=13)
        .to_dict()
    )
    return spec


def growth(rows: Rows) -> Spec:
    """Draw variances of scores against d_k, a panel per setting, on logarithmic axes.

    Args:
        rows: ``setting``, ``kind`` (what is measured), ``d_k``, ``value``, ``low``, ``high``,
            ``predicted``.
    """
    import altair as alt

    settings = list(dict.fromkeys(row["setting"] for row in rows))
    x = alt.X("d_k:Q", title="d_k", scale=alt.Scale(type="log", base=2))
    scale = alt.Scale(type="log", domain=[0.3, 1e6], nice=False)
    axis = alt.Axis(format="~e", values=[10**power for power in range(7)])
    y = alt.Y("value:Q", title="variance of q·k", scale=scale, axis=axis)
    color = alt.Color("kind:N", title=None, legend=alt.Legend(orient="bottom"))
    panels = []
    for setting in settings:
        base = alt.Chart(
            _data([row for row in rows if row["setting"] == setting]), title=setting
        ).properties(width=250, height=190)
        band = base.mark_rule().encode(
            x=x, y=alt.Y("low:Q", title="", scale=scale, axis=axis), y2="high", color=color
        )
        line = base.mark_line(strokeDash=[5, 3], opacity=0.8).encode(
            x=x, y=alt.Y("predicted:Q", title="", scale=scale), color=color
        )
        points = base.mark_point(size=60, strokeWidth=1.6).encode(
            x=x,
            y=y,
            color=color,
            shape=alt.Shape("kind:N", title=None, legend=alt.Legend(orient="bottom")),
            tooltip=["setting:N", "kind:N", "d_k:Q", "value:Q", "low:Q", "high:Q", "predicted:Q"],
        )
        panels.append(line + band + points)
    return _finish(alt.concat(*panels, columns=3))


def histograms(bars: Rows, lines: Rows) -> Spec:
    """Draw densities of logits, a row per scale and a column per d_k, with what is predicted.

    Args:
        bars: ``scale``, ``d_k``, ``low``, ``high`` (bin edges), ``density``.
        lines: ``scale``, ``d_k``, ``kind`` (which prediction), ``x``, ``density``.
    """
    import altair as alt

    scales = list(dict.fromkeys(row["scale"] for row in bars))
    sizes = list(dict.fromkeys(row["d_k"] for row in bars))
    panels = []
    for scale in scales:
        for d_k in sizes:
            mine = [r for r in bars if (r["scale"], r["d_k"]) == (scale, d_k)]
            theirs = [r for r in lines if (r["scale"], r["d_k"]) == (scale, d_k)]
            bar = (
                alt.Chart(_data(mine), title=f"{scale}, d_k = {d_k}")
                .mark_bar(color=MEASURED, opacity=0.45)
                .encode(
                    x=alt.X("low:Q", title="logit", bin="binned"),
                    x2="high",
                    y=alt.Y("density:Q", title="density"),
                    tooltip=["low:Q", "high:Q", "density:Q"],
                )
            )
            line = (
                alt.Chart(_data(theirs))
                .mark_line(strokeWidth=1.5)
                .encode(
                    x="x:Q",
                    y="density:Q",
                    color=alt.Color(
                        "kind:N",
                        title="predicted",
                        scale=alt.Scale(range=[PREDICTED, "#111111"]),
                        legend=alt.Legend(orient="bottom"),
                    ),
                    strokeDash=alt.StrokeDash("kind:N", legend=None),
                )
            )
            panels.append((bar + line).properties(width=185, height=130))
    return _finish(alt.concat(*panels, columns=len(sizes)))


def score_row(rows: Rows) -> Spec:
    """Draw one row of scores as logits and as weights, a column of panels per scale.

    Args:
        rows: ``scale``, ``key``, ``logit``, ``weight``.
    """
    import altair as alt

    panels = []
    for field, title in (("logit", "logit"), ("weight", "weight")):
        for scale in dict.fromkeys(row["scale"] for row in rows):
            mine = [row for row in rows if row["scale"] == scale]
            panels.append(
                alt.Chart(_data(mine), title=f"{scale}: {title}s of one row, d_k = 128")
                .mark_bar(color=MEASURED)
                .encode(
                    x=alt.X("key:O", title="key", axis=alt.Axis(labelAngle=0)),
                    y=alt.Y(f"{field}:Q", title=title),
                    tooltip=["key:N", "logit:Q", "weight:Q"],
                )
                .properties(width=340, height=150)
            )
    return _finish(alt.concat(*panels, columns=2))


def largest_weight(rows: Rows) -> Spec:
    """Draw the largest weight of softmax([a, a, 2a]), and its slope, against a.

    Args:
        rows: ``a``, ``value``, ``kind``.
    """
    import altair as alt

    chart = (
        alt.Chart(_data(rows))
        .mark_line()
        .encode(
            x=alt.X("a:Q", title="a"),
            y=alt.Y("value:Q", title=None),
            color=alt.Color("kind:N", title=None, legend=alt.Legend(orient="bottom")),
            tooltip=["kind:N", "a:Q", "value:Q"],
        )
        .properties(width=620, height=240)
    )
    return _finish(chart)


def sharpness(rows: Rows) -> Spec:
    """Draw statistics of a softmax against the deviation of its logits, a panel for each.

    Args:
        rows: ``statistic``, ``n``, ``beta``, ``value``, ``kind`` ("simulated", or a limit).
    """
    import altair as alt

    panels = []
    for statistic in dict.fromkeys(row["statistic"] for row in rows):
        mine = [row for row in rows if row["statistic"] == statistic]
        sizes = sorted({row["n"] for row in mine}, key=int)
        color = alt.Color("n:N", sort=sizes, title="keys n", legend=alt.Legend(orient="bottom"))
        x = alt.X(
            "beta:Q",
            title="β, standard deviation of the logits",
            scale=alt.Scale(type="log", base=2),
            axis=alt.Axis(format=NUMBER_AXIS),
        )
        top = 1.05 * max(row["value"] for row in mine if row["kind"] == "simulated")
        y = alt.Y("value:Q", title=None, scale=alt.Scale(domain=[0, top]))
        base = alt.Chart(_data(mine), title=statistic).encode(x=x, y=y, color=color)
        simulated = base.transform_filter("datum.kind == 'simulated'").mark_point(
            filled=True, size=22
        )
        simulated = simulated.encode(tooltip=["statistic:N", "n:N", "beta:Q", "value:Q"])
        limits = (
            base.transform_filter("datum.kind != 'simulated'")
            .mark_line(clip=True)
            .encode(
                strokeDash=alt.StrokeDash(
                    "kind:N", title="limit", legend=alt.Legend(orient="bottom")
                )
            )
        )
        panels.append((simulated + limits).properties(width=250, height=180))
    return _finish(alt.concat(*panels, columns=3))


def places(rows: Rows) -> Spec:
    """Draw where each mode starts on the axis of sharpness, over d_k.

    Args:
        rows: ``mode``, ``d_k``, ``beta``.
    """
    import altair as alt

    order = list(dict.fromkeys(row["mode"] for row in rows))
    base = alt.Chart(_data(rows)).encode(
        y=alt.Y("mode:N", sort=order, title=None),
        x=alt.X(
            "beta:Q",
            title="standard deviation of the logits at the start, q and k of unit variance",
            scale=alt.Scale(type="log", base=2),
            axis=alt.Axis(format=NUMBER_AXIS),
        ),
    )
    line = base.mark_line(color="#9aa4af").encode(detail="mode:N")
    points = base.mark_point(filled=True, size=55).encode(
        color=alt.Color(
            "d_k:O",
            title="d_k",
            scale=alt.Scale(scheme="viridis"),
            legend=alt.Legend(orient="bottom"),
        ),
        tooltip=["mode:N", "d_k:Q", "beta:Q"],
    )
    return _finish((line + points).properties(width=620, height=22 * len(order)))


def initial(rows: Rows) -> Spec:
    """Draw the deviation of logits that each initialisation gives, by layer.

    Args:
        rows: ``model``, ``attention`` (path), ``init``, ``value``, ``low``, ``high``,
            ``predicted``.
    """
    import altair as alt

    panels = []
    for model in dict.fromkeys(row["model"] for row in rows):
        mine = [row for row in rows if row["model"] == model]
        order = list(dict.fromkeys(row["attention"] for row in mine))
        offset = alt.YOffset("init:N")
        y = alt.Y("attention:N", sort=order, title=None)
        scale = alt.Scale(type="log")
        color = alt.Color("init:N", title="init", legend=alt.Legend(orient="bottom"))
        base = alt.Chart(_data(mine), title=model)
        bars = base.mark_rule(strokeWidth=2).encode(
            y=y, yOffset=offset, x=alt.X("low:Q", title="", scale=scale), x2="high", color=color
        )
        points = base.mark_point(filled=True, size=40).encode(
            y=y,
            yOffset=offset,
            x=alt.X(
                "value:Q",
                title="standard deviation of the logits in a row (tick: predicted)",
                scale=scale,
                axis=alt.Axis(format=NUMBER_AXIS),
            ),
            color=color,
            tooltip=["attention:N", "init:N", "value:Q", "low:Q", "high:Q", "predicted:Q"],
        )
        ticks = base.mark_tick(thickness=2, color="#111111", size=9).encode(
            y=y, yOffset=offset, x=alt.X("predicted:Q", title="", scale=scale)
        )
        panels.append((bars + points + ticks).properties(width=330, height=34 * len(order)))
    return _finish(alt.concat(*panels, columns=2))
