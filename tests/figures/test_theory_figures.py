"""Every chart is drawn, and draws a mark for each row that it was given."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import vl_convert

from attnscale.figures import theory as charts

Rows = list[dict[str, Any]]


def values_of(spec: Any) -> Iterator[dict[str, Any]]:
    """Yield every row of data in a specification, wherever Altair put it."""
    if isinstance(spec, list):
        for part in spec:
            yield from values_of(part)
    elif isinstance(spec, dict):
        for rows in spec.get("datasets", {}).values():
            yield from rows
        data = spec.get("data")
        if isinstance(data, dict):
            yield from data.get("values", [])
        for key, part in spec.items():
            if key not in ("data", "datasets"):
                yield from values_of(part)


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

CASES: dict[str, tuple[tuple[Rows, ...], dict[str, int]]] = {
    "growth": ((GROWTH,), {"point": 12, "rule mark": 12}),
    "histograms": ((BARS, LINES), {"bar": 20}),
    "score_row": ((ROW,), {"bar": 20}),
    "largest_weight": ((LARGEST,), {"line mark": 2}),
    "sharpness": ((SHARPNESS,), {"point": 12, "line mark": 4}),
    "places": ((PLACES,), {"point": 6, "line mark": 3}),
    "initial": ((INITIAL,), {"point": 8, "rule mark": 8, "tick": 8}),
}
"""Chart's name -> its rows, and how many marks of each kind they make."""


@cache
def drawn(name: str) -> charts.Spec:
    spec: charts.Spec = getattr(charts, name)(*CASES[name][0])
    return spec


def rows_of(name: str) -> Rows:
    return [row for rows in CASES[name][0] for row in rows]


@pytest.mark.parametrize("name", CASES)
def test_a_chart_holds_and_draws_every_row(name: str) -> None:
    spec, rows, wanted = drawn(name), rows_of(name), CASES[name][1]
    held = frozen(values_of(spec))
    assert set(held) == set(frozen(rows))
    assert all(held[row] % count == 0 for row, count in frozen(rows).items())
    found = marks(spec)
    assert {kind: found[kind] for kind in wanted} == wanted, found


@pytest.mark.parametrize("name", CASES)
def test_a_specification_is_plain_and_whole(name: str) -> None:
    spec, rows = drawn(name), rows_of(name)
    assert json.loads(json.dumps(spec, allow_nan=False)) == spec
    assert "url" not in json.dumps([spec.get("data"), *spec.get("datasets", {}).values()])
    # Every field that is drawn or shown is a column of the data.
    columns = {column for row in rows for column in row}
    assert set(re.findall(r'"field": "([^"]*)"', json.dumps(spec))) <= columns


def test_panels_are_in_the_order_of_the_rows() -> None:
    for name, titles in (
        ("growth", ["A", "B <b>"]),
        ("sharpness", ["entropy", "p_max"]),
        ("initial", ["autoencoder", "Transformer"]),
        ("histograms", [f"{s}, d_k = {d}" for s in ("sqrt", "none") for d in (16, 64)]),
    ):
        panels = drawn(name)["concat"]
        found = [panel.get("title") or panel["layer"][0].get("title") for panel in panels]
        assert found == titles


def test_limits_are_lines_and_only_what_was_simulated_sets_the_axis() -> None:
    far = {"statistic": "entropy", "n": "8", "beta": 2.0, "kind": "small β", "value": 50.0}
    (panel, _) = charts.sharpness([*SHARPNESS, far])["concat"]
    domains = re.findall(r'"domain": \[0, ([0-9.]+)\]', json.dumps(panel))
    assert domains
    assert [float(top) for top in domains] == pytest.approx([1.05 * 0.2] * len(domains))


def test_modes_stand_in_the_order_of_the_registry() -> None:
    orders = re.findall(r'"sort": (\[[^\]]*\])', json.dumps(drawn("places")))
    assert {tuple(json.loads(order)) for order in orders} == {("sqrt", "none", "cosine")}
