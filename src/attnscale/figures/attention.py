"""Pictures of attention: maps with tokens, histograms, entropy over time; from saved arrays too."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attnscale.figures.chart import Spec, data, finite, nominal, ordinal, quantitative, thin, top

CELL = 15
MAX_TOKENS = 40
MAX_HEADS = 8
MAX_ATTENTIONS = 12
MAX_POINTS = 200
FONTS = "Liberation Sans, DejaVu Sans, Noto Sans, Arial Unicode MS, sans-serif"
CONFIG: Spec = {"font": FONTS, "view": {"stroke": "#c8ccd1"}}


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


def _with_title(title: str, body: Spec) -> Spec:
    return top({"title": {"text": title, "anchor": "start", "fontSize": 13}, **body}, CONFIG)


def _token_axis(tokens: Sequence[str], **options: Any) -> Spec:
    """Return an axis that shows at a position its token; any text is only text."""
    names = f"{json.dumps(list(tokens), ensure_ascii=True)}[datum.value]"
    look: Spec = {"title": None, "labelLimit": 110, "ticks": False, "domain": False}
    return {**look, "labelExpr": names, **options}


def _panel(one: Map, head: int, *, first: bool) -> Spec:
    queries, keys = one.queries[:MAX_TOKENS], one.keys[:MAX_TOKENS]
    weights = [
        {"q": q, "k": k, "w": finite(round(float(one.weights[head, q, k]), 4))}
        for q in range(len(queries))
        for k in range(len(keys))
    ]
    x_axis = _token_axis(keys, labelAngle=-60, orient="bottom") if first else None
    y_axis = _token_axis(queries) if first else None
    colors = {
        "domain": [0, 1],
        "range": ["#ffffff", "#0b3d78"],
        "interpolate": "rgb",
        "clamp": True,
    }
    return {
        "title": f"{one.path}, head {head}",
        "data": data(weights),
        "width": {"step": CELL},
        "height": {"step": CELL},
        "mark": "rect",
        "encoding": {
            "x": ordinal("k", axis=x_axis),
            "y": ordinal("q", axis=y_axis),
            "color": quantitative("w", title="weight", scale=colors),
        },
    }


def maps(examples: Sequence[Map], title: str) -> Spec:
    """Draw weights as heat maps, a row per attention and a column per head.

    The tokens stand at the first map of a row, for the whole row: text is what drawing costs most.
    Long sentences are cut, and of many attentions or heads some are taken, evenly.
    """
    rows = []
    for one in thin(examples, MAX_ATTENTIONS):
        heads = thin(range(one.weights.shape[0]), MAX_HEADS)
        panels = [_panel(one, head, first=head == heads[0]) for head in heads]
        rows.append({"hconcat": panels, "spacing": 12})
    return _with_title(title, {"vconcat": rows, "spacing": 14})


def _bars(one: Histogram, y_title: str | None) -> Spec:
    density = one.counts / max(1, int(one.counts.sum())) / np.diff(one.edges)
    bars = [
        {"low": float(low), "high": float(high), "y": float(y)}
        for low, high, y in zip(one.edges, one.edges[1:], density, strict=False)
    ]
    return {
        "data": data(bars),
        "mark": {"type": "bar", "color": "#0b5cad", "opacity": 0.5},
        "encoding": {
            "x": quantitative("low", bin="binned", title=None, axis={"tickCount": 4}),
            "x2": {"field": "high"},
            "y": quantitative("y", title=y_title, axis={"tickCount": 3}),
        },
    }


def _normal(edges: npt.NDArray[np.floating[Any]], std: float) -> Spec:
    x = np.linspace(float(edges[0]), float(edges[-1]), 81)
    density = np.exp(-0.5 * (x / std) ** 2) / (std * math.sqrt(2 * math.pi))
    line = [{"x": float(a), "y": float(b)} for a, b in zip(x, density, strict=True)]
    return {
        "data": data(line),
        "mark": {"type": "line", "color": "#c2410c", "strokeWidth": 1.5},
        "encoding": {"x": quantitative("x"), "y": quantitative("y")},
    }


def histograms(examples: Sequence[Histogram], title: str) -> Spec:
    """Draw logits over the normal density of the predicted deviation, a row per attention."""
    paths = thin(list(dict.fromkeys(one.path for one in examples)), MAX_ATTENTIONS)
    rows: dict[str, list[Spec]] = {path: [] for path in paths}
    for one in examples:
        if one.path not in rows:
            continue
        panels = rows[one.path]
        layers = [_bars(one, None if panels else "density")]
        heading = f"{one.path}, {one.when}"
        if one.predicted and math.isfinite(one.predicted):
            layers.append(_normal(one.edges, one.predicted))
            heading += f" (line: predicted, {one.predicted:.3g})"
        panels.append({"title": heading, "width": 260, "height": 110, "layer": layers})
    body = {
        "vconcat": [{"hconcat": panels} for panels in rows.values()],
        "resolve": {"scale": {"x": "independent"}},
    }
    return _with_title(title, body)


def entropy(history: Mapping[str, Sequence[tuple[int, Sequence[float]]]], title: str) -> Spec:
    """Draw the normalised entropy of every head over steps, a panel per attention.

    Args:
        history: Path -> (step, value of each head) in order.
        title: Heading.
    """
    panels = []
    for path in thin(list(history), MAX_ATTENTIONS):
        points = [
            {"step": step, "head": str(head), "v": finite(value)}
            for step, heads in thin(history[path], MAX_POINTS)
            for head, value in enumerate(heads)
        ]
        panels.append(
            {
                "title": path,
                "width": 250,
                "height": 130,
                "data": data(points),
                "mark": {"type": "line", "strokeWidth": 1.5},
                "encoding": {
                    "x": quantitative("step", title="optimizer steps"),
                    "y": quantitative("v", title="entropy ÷ ln n", scale={"domain": [0, 1]}),
                    "color": nominal("head", title="head"),
                },
            }
        )
    return _with_title(title, {"concat": panels, "columns": 3})


def _paths(arrays: Mapping[str, Any]) -> list[str]:
    """Return the attentions of a file of saved arrays, in order."""
    return [key.removeprefix("weights/") for key in arrays if key.startswith("weights/")]


def maps_in(arrays: Mapping[str, Any], example: int) -> list[Map]:
    """Return the maps of one example, padding cut off."""
    examples = []
    for path in _paths(arrays):
        queries = json.loads(str(arrays[f"queries/{path}"]))[example]
        keys = json.loads(str(arrays[f"keys/{path}"]))[example]
        weights = arrays[f"weights/{path}"][example][:, : len(queries), : len(keys)]
        examples.append(Map(path=path, weights=weights, queries=queries, keys=keys))
    return examples


def histograms_in(arrays: Mapping[str, Any], when: str) -> list[Histogram]:
    """Return the histograms of a file."""
    return [
        Histogram(
            path=path,
            when=when,
            counts=arrays[f"counts/{path}"],
            edges=arrays[f"edges/{path}"],
            predicted=float(arrays[f"predicted/{path}"]) or None,
        )
        for path in _paths(arrays)
    ]


def drawings(
    files: Mapping[int, Path], entropies: Mapping[str, Sequence[tuple[int, Sequence[float]]]]
) -> dict[str, Spec]:
    """Return the pictures of a run by name: maps at the end, histograms, entropy over time.

    Args:
        files: Step -> file that ``Pictures`` saved.
        entropies: Path -> (step, value of each head).
    """
    first, last = min(files), max(files)
    specs: dict[str, Spec] = {}
    with np.load(files[last]) as arrays:
        examples = maps_in(arrays, 0)
    if examples:
        title = f"Attention weights of a validation example, step {last}"
        specs["maps"] = maps(examples, title)
    logits: list[Histogram] = []
    for step in dict.fromkeys((first, last)):
        with np.load(files[step]) as arrays:
            logits += histograms_in(arrays, f"step {step}")
    if logits:
        title = "Logits of validation examples, less their row's mean"
        specs["histograms"] = histograms(logits, title)
    if entropies:
        specs["entropy"] = entropy(entropies, "Entropy of the attention weights, by head")
    return specs
