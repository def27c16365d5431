"""Pictures of attention, from plain arrays: maps with tokens, histograms, entropy over time.

The specifications are written out as Vega-Lite: building them through a library took longer than
drawing them.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Spec = dict[str, Any]

CELL = 15
MOST_TOKENS = 40
MOST_HEADS = 8
MOST_ATTENTIONS = 12
MOST_POINTS = 200
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
FONTS = "Liberation Sans, DejaVu Sans, Noto Sans, Arial Unicode MS, sans-serif"


@dataclass(frozen=True, kw_only=True)
class Map:
    """The weights of one attention for one example.

    Attributes:
        path: The attention's path.
        weights: (head, query, key).
        queries: Token of each query.
        keys: Token of each key.
    """

    path: str
    weights: npt.NDArray[np.floating[Any]]
    queries: Sequence[str]
    keys: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Logits of one attention, each row less its mean.

    Attributes:
        path: The attention's path.
        when: Such as "step 0".
        counts: Per bin.
        edges: One more than counts.
        predicted: Standard deviation that theory gives, or None.
    """

    path: str
    when: str
    counts: npt.NDArray[np.integer[Any]]
    edges: npt.NDArray[np.floating[Any]]
    predicted: float | None


def _top(body: Spec, title: str) -> Spec:
    return {
        "$schema": SCHEMA,
        "title": {"text": title, "anchor": "start", "fontSize": 13},
        "config": {"font": FONTS, "view": {"stroke": "#c8ccd1"}},
        **body,
    }


def _number(value: float) -> float | None:
    """Return a number for a specification, which as JSON has neither NaN nor infinity."""
    return float(value) if math.isfinite(value) else None


def spread(things: Sequence[Any], most: int) -> list[Any]:
    """Return at most ``most`` of some things, the first and last among them, evenly taken."""
    if len(things) <= most:
        return list(things)
    chosen = np.linspace(0, len(things) - 1, most).round().astype(int)
    return [things[i] for i in chosen]


def _labels(tokens: Sequence[str]) -> str:
    """Return an expression that turns a position into its token; any text is only text."""
    return f"{json.dumps(list(tokens), ensure_ascii=True)}[datum.value]"


def _panel(one: Map, head: int, *, first: bool) -> Spec:
    queries, keys = list(one.queries[:MOST_TOKENS]), list(one.keys[:MOST_TOKENS])
    values = [
        {"q": q, "k": k, "w": _number(round(float(one.weights[head, q, k]), 4))}
        for q in range(len(queries))
        for k in range(len(keys))
    ]
    axis = {"title": None, "labelLimit": 110, "ticks": False, "domain": False}
    return {
        "title": f"{one.path}, head {head}",
        "data": {"values": values},
        "width": {"step": CELL},
        "height": {"step": CELL},
        "mark": "rect",
        "encoding": {
            "x": {
                "field": "k",
                "type": "ordinal",
                "axis": {
                    **axis,
                    "labelExpr": _labels(keys),
                    "labelAngle": -60,
                    "orient": "bottom",
                }
                if first
                else None,
            },
            "y": {
                "field": "q",
                "type": "ordinal",
                "axis": {**axis, "labelExpr": _labels(queries)} if first else None,
            },
            "color": {
                "field": "w",
                "type": "quantitative",
                "title": "weight",
                "scale": {
                    "domain": [0, 1],
                    "range": ["#ffffff", "#0b3d78"],
                    "interpolate": "rgb",
                    "clamp": True,
                },
            },
        },
    }


def maps(found: Sequence[Map], title: str) -> Spec:
    """Draw weights as heat maps, a row per attention and a column per head.

    The tokens stand at the first map of a row, for the whole row: text is what drawing costs most.
    Long sentences are cut, and of many attentions or heads some are taken, evenly.
    """
    rows = []
    for one in spread(found, MOST_ATTENTIONS):
        heads = spread(range(one.weights.shape[0]), MOST_HEADS)
        panels = [_panel(one, head, first=head == heads[0]) for head in heads]
        rows.append({"hconcat": panels, "spacing": 12})
    return _top({"vconcat": rows, "spacing": 14}, title)


def histograms(found: Sequence[Histogram], title: str) -> Spec:
    """Draw logits over the normal density of the predicted deviation, a row per attention."""
    rows: dict[str, list[Spec]] = {}
    paths = spread(list(dict.fromkeys(one.path for one in found)), MOST_ATTENTIONS)
    for one in found:
        if one.path not in paths:
            continue
        widths = np.diff(one.edges)
        total = max(1, int(one.counts.sum()))
        bars = [
            {"low": float(a), "high": float(b), "y": float(n / total / w)}
            for a, b, n, w in zip(one.edges, one.edges[1:], one.counts, widths, strict=False)
        ]
        layers: list[Spec] = [
            {
                "data": {"values": bars},
                "mark": {"type": "bar", "color": "#0b5cad", "opacity": 0.5},
                "encoding": {
                    "x": {
                        "field": "low",
                        "type": "quantitative",
                        "bin": "binned",
                        "title": None,
                        "axis": {"tickCount": 4},
                    },
                    "x2": {"field": "high"},
                    "y": {
                        "field": "y",
                        "type": "quantitative",
                        "title": "density" if one.path not in rows else None,
                        "axis": {"tickCount": 3},
                    },
                },
            }
        ]
        known = one.predicted is not None and math.isfinite(one.predicted)
        if one.predicted and known:
            x = np.linspace(float(one.edges[0]), float(one.edges[-1]), 81)
            density = np.exp(-0.5 * (x / one.predicted) ** 2) / (
                one.predicted * math.sqrt(2 * math.pi)
            )
            line = [{"x": float(a), "y": float(b)} for a, b in zip(x, density, strict=True)]
            layers.append(
                {
                    "data": {"values": line},
                    "mark": {"type": "line", "color": "#c2410c", "strokeWidth": 1.5},
                    "encoding": {
                        "x": {"field": "x", "type": "quantitative"},
                        "y": {"field": "y", "type": "quantitative"},
                    },
                }
            )
        shown = f" (line: predicted, {one.predicted:.3g})" if one.predicted and known else ""
        rows.setdefault(one.path, []).append(
            {
                "title": f"{one.path}, {one.when}{shown}",
                "width": 260,
                "height": 110,
                "layer": layers,
            }
        )
    body = [{"hconcat": panels} for panels in rows.values()]
    return _top({"vconcat": body, "resolve": {"scale": {"x": "independent"}}}, title)


def entropy(history: Mapping[str, Sequence[tuple[int, Sequence[float]]]], title: str) -> Spec:
    """Draw the normalised entropy of every head over steps, a panel per attention.

    Args:
        history: Path -> (step, value of each head) in order.
        title: Heading.
    """
    panels = []
    for path in spread(list(history), MOST_ATTENTIONS):
        values = [
            {"step": step, "head": str(head), "v": _number(value)}
            for step, heads in spread(list(history[path]), MOST_POINTS)
            for head, value in enumerate(heads)
        ]
        panels.append(
            {
                "title": path,
                "width": 250,
                "height": 130,
                "data": {"values": values},
                "mark": {"type": "line", "strokeWidth": 1.5},
                "encoding": {
                    "x": {"field": "step", "type": "quantitative", "title": "optimizer steps"},
                    "y": {
                        "field": "v",
                        "type": "quantitative",
                        "title": "entropy ÷ ln n",
                        "scale": {"domain": [0, 1]},
                    },
                    "color": {"field": "head", "type": "nominal", "title": "head"},
                },
            }
        )
    return _top({"concat": panels, "columns": 3}, title)
