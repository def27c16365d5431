"""Curves of several runs side by side."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

MOST_POINTS = 300
Curve = Sequence[tuple[int, float]]


def thin(curve: Curve, most: int = MOST_POINTS) -> list[tuple[int, float]]:
    """Return at most ``most`` points of a curve: every n-th, and the last; none is averaged."""
    if len(curve) <= most:
        return list(curve)
    stride = math.ceil(len(curve) / (most - 1))
    kept = list(curve[::stride])
    return kept if kept[-1] == curve[-1] else [*kept, curve[-1]]


def draw_curves(
    curves: Mapping[str, Mapping[str, Curve]], path: Path, *, title: str, columns: int = 2
) -> None:
    """Draw a panel per metric with a line per run, on logarithmic axes, and write it as PNG.

    Args:
        curves: Metric name to (run name to its curve); points that are not finite and positive are
            left out, a logarithmic axis has no place for them.
        path: Where to write.
        title: Title of the whole figure.
        columns: Panels side by side.

    Raises:
        ValueError: If there is nothing to draw.
    """
    import altair as alt
    import vl_convert

    rows = [
        {"metric": metric, "run": run, "step": step, "value": value}
        for metric, runs in curves.items()
        for run, curve in runs.items()
        for step, value in thin(curve)
        if math.isfinite(value) and value > 0
    ]
    if not rows:
        raise ValueError("there is no point to draw")
    names = list(dict.fromkeys(run for runs in curves.values() for run in runs))
    drawn = [metric for metric in curves if any(row["metric"] == metric for row in rows)]
    panels = [
        alt.Chart(
            alt.InlineData(values=[row for row in rows if row["metric"] == metric]), title=metric
        )
        .mark_line(strokeWidth=1.5, opacity=0.85, clip=True)
        .encode(
            x=alt.X("step:Q", title="optimizer steps"),
            y=alt.Y(
                "value:Q",
                title=None,
                scale=alt.Scale(type="log", nice=False),
                axis=alt.Axis(format="~g", tickCount=6),
            ),
            color=alt.Color(
                "run:N", sort=names, title=None, legend=alt.Legend(orient="bottom", columns=2)
            ),
            strokeDash=alt.StrokeDash("run:N", sort=names, legend=None),
        )
        .properties(width=360, height=220)
        for metric in drawn
    ]
    figure = alt.concat(*panels, columns=columns, title=alt.TitleParams(title, anchor="start"))
    figure = figure.configure_legend(labelLimit=400)
    path.write_bytes(vl_convert.vegalite_to_png(figure.to_json(), scale=2))
