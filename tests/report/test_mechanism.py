"""Growth of the scores and statistics of attentions, from planted curves."""

from collections.abc import Callable
from typing import Any

import pytest

from attnscale.analysis.curves import MAX_POINTS
from attnscale.analysis.settings import make_grid
from attnscale.report.sections import (
    growth_ends,
    growth_rows,
    loss_rows,
    paths_of,
    statistic_rows,
)

PATHS = ["encoder.0.self", "decoder.0.cross"]


def keys(path: str) -> list[str]:
    names = ("entropy_norm", "live_rows", "logit_std_row", "score_std_row")
    return [f"attention/{path}/{name}" for name in names]


def grown(
    plant: Any,
    history: Any,
    law: Callable[[str, int, int], float],
    sizes: tuple[int, ...] = (16, 64, 256),
    scales: tuple[str, ...] = ("sqrt", "none"),
) -> list[Any]:
    """Return runs whose scores have the deviation ``law(scale, d_k, step)``."""
    runs = []
    for scale in scales:
        for size in sizes:
            for seed in range(2):
                metrics = {key: 1.0 for path in PATHS for key in keys(path)}
                runs.append(plant.run(f"scale={scale} d_k={size}", seed, metrics=metrics))
                for path in PATHS:
                    score = f"attention/{path}/score_std_row"
                    history.plant(
                        runs[-1], score, {step: law(scale, size, step) for step in (0, 50, 100)}
                    )
    return runs


def test_growth_exponents_of_planted_power_laws(plant: Any, history: Any) -> None:
    # At the start ½ everywhere; at the end the unscaled scores are aligned.
    def law(scale: str, size: int, step: int) -> float:
        power = 1.0 if scale == "none" and step == 100 else 0.5
        return float(3.0 * size**power)

    rows = growth_rows(make_grid(grown(plant, history, law)), PATHS, MAX_POINTS)
    assert len(rows) == 2 * 2 * 3
    found = {(row["group"], row["path"], row["step"]): row for row in rows}
    for path in PATHS:
        assert found["scale=sqrt", path, 0]["exponent"] == pytest.approx(0.5)
        assert found["scale=sqrt", path, 100]["exponent"] == pytest.approx(0.5)
        assert found["scale=none", path, 50]["exponent"] == pytest.approx(0.5)
        assert found["scale=none", path, 100]["exponent"] == pytest.approx(1.0)
        end = found["scale=none", path, 100]
        assert (end["low"], end["high"]) == pytest.approx((1.0, 1.0))
        assert end["n"] == 6
    ends = growth_ends(rows)
    assert len(ends) == 2 * 2 * 2
    assert {(row[0], row[2]) for row in ends} == {
        *(("scale=sqrt", 0), ("scale=sqrt", 100)),
        *(("scale=none", 0), ("scale=none", 100)),
    }
    assert ["scale=none", PATHS[0], 100, pytest.approx(1.0)] == next(
        row[:4] for row in ends if row[0] == "scale=none" and row[2] == 100
    )


def test_growth_needs_two_sizes_and_steps_in_common(plant: Any, history: Any) -> None:
    def law(scale: str, size: int, step: int) -> float:
        return float(size)

    runs = grown(plant, history, law, sizes=(16,))
    assert growth_rows(make_grid(runs), PATHS, MAX_POINTS) == []
    runs = grown(plant, history, law, sizes=(16, 64), scales=("sqrt",))
    history.plant(runs[0], f"attention/{PATHS[0]}/score_std_row", {0: 16.0, 33: 16.0})
    rows = growth_rows(make_grid(runs), PATHS[:1], MAX_POINTS)
    assert [(row["group"], row["step"]) for row in rows] == [("all", 0)]
    # One row is a start and an end.
    assert len(growth_ends(rows)) == 1


def test_only_finished_runs_and_positive_deviations_are_fitted(plant: Any, history: Any) -> None:
    def law(scale: str, size: int, step: int) -> float:
        return float(size) if step else 0.0

    runs = grown(plant, history, law, sizes=(16, 64), scales=("sqrt",))
    bad = plant.run("scale=sqrt d_k=64", 9, outcome="diverged", metrics=runs[0].metrics)
    history.plant(bad, f"attention/{PATHS[0]}/score_std_row", {50: 1e9, 100: 1e9})
    rows = growth_rows(make_grid([*runs, bad]), PATHS[:1], MAX_POINTS)
    assert [row["step"] for row in rows] == [50, 100]
    assert [row["exponent"] for row in rows] == pytest.approx([1.0, 1.0])


def test_two_points_have_no_interval(plant: Any, history: Any) -> None:
    runs = grown(plant, history, lambda *_: 2.0, sizes=(16, 64), scales=("sqrt",))[::2]
    rows = growth_rows(make_grid(runs), PATHS[:1], MAX_POINTS)
    assert {(row["exponent"], row["low"], row["high"], row["n"]) for row in rows} == {
        (0.0, None, None, 2)
    }


def test_attentions_come_from_the_metrics_once_and_without_heads(plant: Any) -> None:
    heads = {"attention/encoder.0.self/head0/logit_std_row": 1.0}
    other = {"attention/encoder.1.self/entropy_norm": 1.0, "grad_norm/encoder.0.self/q": 1.0}
    metrics = {key: 1.0 for path in PATHS for key in keys(path)}
    runs = [
        plant.run("scale=none"),
        plant.run("scale=sqrt", 0, metrics={**metrics, **heads, **other}),
        plant.run("scale=sqrt", 1, metrics=metrics),
    ]
    assert paths_of(make_grid(runs)) == PATHS
    assert paths_of(make_grid(runs[:1])) == []


def test_statistics_of_each_attention(plant: Any, history: Any) -> None:
    run = plant.run(metrics={key: 1.0 for path in PATHS for key in keys(path)})
    history.plant(run, f"attention/{PATHS[0]}/entropy_norm", {0: 0.9, 10: 0.8})
    history.plant(run, f"attention/{PATHS[1]}/logit_std_row", {0: 1.5})
    rows = statistic_rows(make_grid([run]), PATHS, MAX_POINTS)
    shown = [(row["path"], row["statistic"], row["step"], row["value"]) for row in rows]
    assert shown == [
        (PATHS[0], "entropy ÷ ln n", 0, 0.9),
        (PATHS[0], "entropy ÷ ln n", 10, 0.8),
        (PATHS[1], "logit std within rows", 0, 1.5),
    ]


def test_loss_over_a_swept_number(plant: Any) -> None:
    runs = [
        *plant.runs({"scale=sqrt lr=1e-3": (0.5, 0.75), "scale=sqrt lr=0.01": (0.25,)}),
        plant.run("scale=sqrt lr=1", 0, None, outcome="diverged"),
        *plant.runs({"scale=none lr=1e-3": (0.125,)}),
    ]
    rows = loss_rows(make_grid(runs), "optimizer.lr")
    none, *sqrt = rows
    assert none == {
        "group": "scale=none",
        "x": 0.001,
        "value": 0.125,
        "low": 0.125,
        "high": 0.125,
        "diverged": 0,
    }
    assert [(r["x"], r["value"], r["low"], r["high"], r["diverged"]) for r in sqrt] == [
        (0.001, 0.625, 0.5, 0.75, 0),
        (0.01, 0.25, 0.25, 0.25, 0),
        (1.0, None, None, None, 1),
    ]
    assert {r["group"] for r in sqrt} == {"scale=sqrt"}
