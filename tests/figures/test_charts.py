"""Every chart is drawn, and draws a mark for each row that it was given."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import vl_convert

from attnscale.figures import attention, curves, theory
from attnscale.figures.chart import Spec, panels, thin

Rows = list[dict[str, Any]]


def values_of(spec: Any) -> Iterator[dict[str, Any]]:
    """Yield every row of data in a specification."""
    if isinstance(spec, list):
        for part in spec:
            yield from values_of(part)
    elif isinstance(spec, dict):
        yield from spec.get("data", {}).get("values", [])
        for key, part in spec.items():
            if key != "data":
                yield from values_of(part)


def words_of(spec: Any) -> Iterator[str]:
    """Yield every key of a specification, and the kinds of marks, channels and scales."""
    if isinstance(spec, list):
        for part in spec:
            yield from words_of(part)
    elif isinstance(spec, dict):
        for key, part in spec.items():
            yield key
            if key in ("mark", "type", "scheme", "orient", "bin") and isinstance(part, str):
                yield part
            if key != "values":
                yield from words_of(part)


@cache
def vocabulary() -> frozenset[str]:
    """Return the words that the library which draws has in its source."""
    library = vl_convert.javascript_bundle("vegaEmbed")
    return frozenset(re.findall(r"[A-Za-z$][A-Za-z0-9$]*", library))


def frozen(rows: Any) -> Counter[frozenset[tuple[str, Any]]]:
    return Counter(frozenset(row.items()) for row in rows)


def marks(spec: Any) -> Counter[str]:
    """Draw a specification and count its marks by kind."""
    svg = vl_convert.vegalite_to_svg(json.dumps(spec))
    assert "NaN" not in svg
    elements = re.findall(r'<\w+ aria-label="[^"]*" role="graphics-symbol"[^>]*>', svg)
    return Counter(re.findall(r'aria-roledescription="([^"]*)"', " ".join(elements)))


GROWTH: Rows = [
    {
        "setting": setting,
        "kind": kind,
        "d_k": d_k,
        "value": 1.1 * d_k,
        "low": 0.9 * d_k,
        "high": 1.3 * d_k,
        "predicted": float(d_k),
    }
    for setting in ("A", "B <b>")
    for kind in ("row", "total")
    for d_k in (16, 64, 257)
]
BARS: Rows = [
    {"scale": scale, "d_k": d_k, "low": float(low), "high": low + 1.0, "density": 0.2 + low / 50}
    for scale in ("sqrt", "none")
    for d_k in (16, 64)
    for low in range(5)
]
LINES: Rows = [
    {"scale": scale, "d_k": d_k, "kind": kind, "x": float(x), "density": 0.2 + x / 50}
    for scale in ("sqrt", "none")
    for d_k in (16, 64)
    for kind in ("exact", "normal")
    for x in range(4)
]
ROW: Rows = [
    {"scale": scale, "key": key, "logit": key - 2.5, "weight": key / 15}
    for scale in ("sqrt", "none")
    for key in range(1, 6)
]
LARGEST: Rows = [
    {"a": float(a), "kind": kind, "value": a / 10}
    for kind in ("largest weight", "its derivative")
    for a in range(7)
]
SHARPNESS: Rows = [
    {"statistic": statistic, "n": n, "beta": beta, "kind": kind, "value": beta / 10}
    for statistic in ("entropy", "p_max")
    for n in ("8", "64")
    for kind, betas in (("simulated", (0.5, 1.0, 2.0)), ("large β", (1.0, 2.0)))
    for beta in betas
]
PLACES: Rows = [
    {"mode": mode, "d_k": d_k, "beta": d_k / 8}
    for mode in ("sqrt", "none", "cosine")
    for d_k in (16, 64)
]
INITIAL: Rows = [
    {
        "model": model,
        "attention": attention,
        "init": init,
        "value": value,
        "low": 0.9 * value,
        "high": 1.2 * value,
        "predicted": 1.05 * value,
    }
    for model in ("autoencoder", "Transformer")
    for attention, value in (("layers.0", 0.3), ("layers.1", 1e-8))
    for init in ("torch", "unit")
]

SETTINGS: Rows = [
    {
        "setting": setting,
        "step": step,
        "epoch": step / 10,
        "tokens": None,
        "seconds": 0.5 * step,
        "value": 1.0 + step,
        "low": 0.5 + step,
        "high": 2.0 + step,
        "n": 3,
        "panel": panel,
    }
    for panel in ("A", "B <b>")
    for setting in ("sqrt", "none")
    for step in (0, 10, 20)
]
LINES_OF: Rows = [{name: row[name] for name in ("setting", "step", "value")} for row in SETTINGS]
EXPONENTS: Rows = [
    {"setting": group, "attention": path, "keys": keys, "step": step, "exponent": 0.5 + step / 20}
    for group in ("sqrt", "none")
    for path in ("A", "B")
    for keys in ("own", "of another")
    for step in (0, 5)
]
REFERENCES: Rows = [{"y": 0.5, "what": "½: untrained"}, {"y": 1.0, "what": "1: aligned"}]
LOSSES: Rows = [
    {"group": group, "x": x, "value": x / 10, "low": x / 20, "high": x / 5}
    for group in ("sqrt", "none")
    for x in (1.0, 4.0, 16.0)
]
CELLS: Rows = [
    {"group": group, "x": x, "y": y, "value": x * y}
    for group in ("sqrt", "none")
    for x in (1.0, 2.0)
    for y in (16.0, 64.0, 256.0)
]
POINTS: Rows = [
    {"metric": metric, "run": run, "step": step, "value": value}
    for metric in ("train/loss", "val/loss")
    for run in ("one", "two")
    for step, value in ((0, 2.0), (5, 0.5))
]
WRONG = [(6, math.nan), (7, math.inf), (8, 0.0), (9, -1.0)]
RUNS = {
    **{
        metric: {run: [(0, 2.0), (5, 0.5), *WRONG] for run in ("one", "two")}
        for metric in ("train/loss", "val/loss")
    },
    "nothing": {"one": WRONG, "two": []},
}
WEIGHTS: Rows = [{"q": q, "k": k, "w": 0.5} for q in range(2) for k in range(2)]
MAP = attention.Map(path="a", weights=np.full((2, 2, 2), 0.5), queries="xy", keys="xy")
BINS = attention.Histogram(
    path="a",
    when="step 0",
    counts=np.array([1, 2, 1]),
    edges=np.array([-1.5, -0.5, 0.5, 1.5]),
    predicted=None,
)
COUNTED: Rows = [
    {"low": low - 0.5, "high": low + 0.5, "y": y}
    for low, y in ((-1.0, 0.25), (0.0, 0.5), (1.0, 0.25))
]
HEADS: Rows = [
    {"step": step, "head": head, "v": value}
    for step in (0, 5)
    for head, value in (("0", 0.5), ("1", 1.0))
]

CASES: dict[str, tuple[Callable[[], Spec], Rows, dict[str, int]]] = {
    "theory.growth": (lambda: theory.growth(GROWTH), GROWTH, {"point": 12, "rule mark": 12}),
    "theory.histograms": (lambda: theory.histograms(BARS, LINES), BARS + LINES, {"bar": 20}),
    "theory.score_row": (lambda: theory.score_row(ROW), ROW, {"bar": 20}),
    "theory.largest_weight": (lambda: theory.largest_weight(LARGEST), LARGEST, {"line mark": 2}),
    "theory.sharpness": (
        lambda: theory.sharpness(SHARPNESS),
        SHARPNESS,
        {"point": 12, "line mark": 4},
    ),
    "theory.places": (lambda: theory.places(PLACES), PLACES, {"point": 6, "line mark": 3}),
    "theory.initial": (
        lambda: theory.initial(INITIAL),
        INITIAL,
        {"point": 8, "rule mark": 8, "tick": 8},
    ),
    "curves.curve": (
        lambda: curves.curve(SETTINGS[:6], "loss", log=True),
        SETTINGS[:6],
        {"line mark": 2, "area mark": 2, "point": 6},
    ),
    "curves.small_multiples": (
        lambda: curves.small_multiples(SETTINGS, "panel", "loss", log=False),
        LINES_OF,
        {"line mark": 4, "point": 12},
    ),
    "curves.growth": (
        lambda: curves.growth(EXPONENTS),
        EXPONENTS + REFERENCES,
        {"line mark": 8, "point": 16, "rule mark": 4},
    ),
    "curves.run_curves": (lambda: curves.run_curves(RUNS, "title"), POINTS, {"line mark": 4}),
    "curves.against": (
        lambda: curves.against(LOSSES, "rate", log_y=True),
        LOSSES,
        {"line mark": 2, "point": 6, "rule mark": 6},
    ),
    "curves.heat": (
        lambda: curves.heat(CELLS, "rate", "d_k"),
        CELLS,
        {"rect mark": 12, "text mark": 12},
    ),
    "attention.maps": (lambda: attention.maps([MAP], "title"), WEIGHTS, {"rect mark": 8}),
    "attention.histograms": (
        lambda: attention.histograms([BINS], "title"),
        COUNTED,
        {"bar": 3},
    ),
    "attention.entropy": (
        lambda: attention.entropy({"a": [(0, [0.5, 1.0]), (5, [0.5, 1.0])]}, "title"),
        HEADS,
        {"line mark": 2},
    ),
}
"""Chart's name -> how it is drawn, its rows, and how many marks of each kind they make."""


@cache
def drawn(name: str) -> Spec:
    return CASES[name][0]()


@pytest.mark.parametrize("name", CASES)
def test_a_chart_holds_and_draws_every_row(name: str) -> None:
    spec, (_, rows, expected) = drawn(name), CASES[name]
    held = frozen(values_of(spec))
    assert set(held) == set(frozen(rows))
    assert all(held[row] % count == 0 for row, count in frozen(rows).items())
    counts = marks(spec)
    assert {kind: counts[kind] for kind in expected} == expected, counts


@pytest.mark.parametrize("name", CASES)
def test_a_specification_is_plain_and_whole(name: str) -> None:
    spec, rows = drawn(name), CASES[name][1]
    assert json.loads(json.dumps(spec, allow_nan=False)) == spec
    assert "url" not in set(words_of(spec))
    # Every field that is drawn or shown is a column of the data, or calculated.
    columns = {column for row in rows for column in row}
    calculated = set(re.findall(r'"as": "([^"]*)"', json.dumps(spec)))
    assert set(re.findall(r'"field": "([^"]*)"', json.dumps(spec))) <= columns | calculated


@pytest.mark.parametrize("name", CASES)
def test_the_library_knows_every_word(name: str) -> None:
    """What is misspelt is drawn without a word, so that only this finds it."""
    assert set(words_of(drawn(name))) - vocabulary() == set()


@pytest.mark.parametrize(
    "part",
    [
        {"mark": {"type": "line", "strokWidth": 2}},
        {"mark": "lne"},
        {"encoding": {"colr": {"field": "a"}}},
        {"encoding": {"x": {"scale": {"typ": "log"}}}},
        {"encoding": {"x": {"type": "quantitatve"}}},
        {"encoding": {"color": {"scale": {"scheme": "virdis"}}}},
        {"config": {"legend": {"orient": "botom"}}},
    ],
    ids=str,
)
def test_a_misspelt_word_is_found(part: Spec) -> None:
    assert len(set(words_of(part)) - vocabulary()) == 1


def test_panels_are_in_the_order_of_the_rows() -> None:
    for name, titles in (
        ("theory.growth", ["A", "B <b>"]),
        ("theory.sharpness", ["entropy", "p_max"]),
        ("theory.initial", ["autoencoder", "Transformer"]),
        ("theory.histograms", [f"{s}, d_k = {d}" for s in ("sqrt", "none") for d in (16, 64)]),
        ("curves.small_multiples", ["A", "B <b>"]),
        ("curves.run_curves", ["train/loss", "val/loss"]),
    ):
        assert [panel["title"] for panel in drawn(name)["concat"]] == titles
    unsorted = [{"a": 3, "b": 1}, {"a": 1, "b": 2}, {"a": 3, "b": 3}]
    body = panels(unsorted, "a", lambda rows: {"b": [row["b"] for row in rows]}, columns=2)
    charts = [{"title": "3", "b": [1, 3]}, {"title": "1", "b": [2]}]
    assert body == {"concat": charts, "columns": 2}


def test_limits_are_lines_and_only_what_was_simulated_sets_the_axis() -> None:
    far = {"statistic": "entropy", "n": "8", "beta": 2.0, "kind": "small β", "value": 50.0}
    (panel, _) = theory.sharpness([*SHARPNESS, far])["concat"]
    domains = re.findall(r'"domain": \[0, ([0-9.]+)\]', json.dumps(panel))
    assert domains
    assert [float(top) for top in domains] == pytest.approx([1.05 * 0.2] * len(domains))


def test_modes_stand_in_the_order_of_the_registry() -> None:
    orders = re.findall(r'"sort": (\[[^\]]*\])', json.dumps(drawn("theory.places")))
    assert {tuple(json.loads(order)) for order in orders} == {("sqrt", "none", "cosine")}


def test_an_axis_that_no_row_knows_is_not_offered() -> None:
    (menu, _) = drawn("curves.curve")["params"]
    assert menu["bind"]["options"] == ["step", "epoch", "seconds"]
    unknown = [{**row, "epoch": None, "seconds": None} for row in SETTINGS]
    (menu, _) = curves.curve(unknown, "loss", log=True)["params"]
    assert menu["bind"]["options"] == ["step"]


def test_a_logarithmic_axis_leaves_out_what_it_has_no_place_for() -> None:
    rows = [*SETTINGS[:3], {**SETTINGS[3], "low": 0.0, "value": 0.0}]
    for log, count in ((True, 3), (False, 4)):
        assert len(list(values_of(curves.curve(rows, "", log=log)))) == count
        assert len(list(values_of(curves.small_multiples(rows, "panel", "", log=log)))) == count
    with pytest.raises(ValueError, match="there is no point to draw"):
        curves.run_curves({"nothing": {"one": WRONG}}, "title")


@pytest.mark.parametrize("count", [0, 1, 6, 7, 8, 12, 13, 1000])
def test_of_many_items_some_are_taken_evenly(count: int) -> None:
    items = list(range(count))
    taken = thin(items, 7)
    assert len(taken) == min(count, 7)
    assert taken == sorted(set(taken))
    assert taken[:1] == items[:1]
    assert taken[-1:] == items[-1:]
    steps = {b - a for a, b in pairwise(taken)}
    assert not steps or max(steps) - min(steps) <= 1
