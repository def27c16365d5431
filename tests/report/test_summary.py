"""The table: each cell against what was planted."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from attnscale.analysis.settings import make_grid
from attnscale.report.answer import make_answer
from attnscale.report.summary import attention_mean, common_loss, failures, summary, with_spread

LOSS = "val/loss"
SQRT, NONE = (0.50, 0.52, 0.48), (0.30, 0.33, 0.29)


def table(runs: Any, history: Any) -> dict[str, dict[str, Any]]:
    """Return the table by setting's label and column."""
    grid = make_grid(runs)
    columns, rows = summary(grid, make_answer(grid))
    assert len(columns) == len(set(columns))
    assert all(len(row) == len(columns) for row in rows)
    labels = [setting.label for setting in grid.settings]
    return {
        label: dict(zip(columns, row, strict=True)) for label, row in zip(labels, rows, strict=True)
    }


def test_a_row_per_setting(plant: Any, history: Any) -> None:
    runs = plant.runs(
        {"scale=sqrt d_k=8": SQRT, "scale=none d_k=8": NONE, "scale=none d_k=64": (1.0,)}
    )
    rows = table(runs, history)
    assert list(rows) == ["scale=none d_k=8", "scale=none d_k=64", "scale=sqrt d_k=8"]
    none, alone, sqrt = rows.values()
    assert list(none)[:5] == ["scale", "d_k", "runs", "best val loss", "− sqrt (interval)"]
    assert (none["scale"], none["d_k"], none["runs"]) == ("none", "8", "3 finished")
    assert none["best val loss"] == f"{np.mean(NONE):.4g} ± {np.std(NONE, ddof=1):.2g}"
    test = stats.ttest_rel(NONE, SQRT)
    low, high = test.confidence_interval(0.95)
    value = np.mean(NONE) - np.mean(SQRT)
    assert none["− sqrt (interval)"] == f"{value:+.3g} ({low:.3g} to {high:.3g})"
    assert none["verdict"] == "better"
    # The reference has nothing to be compared with, a single seed no spread.
    assert (sqrt["− sqrt (interval)"], sqrt["verdict"]) == (None, None)
    assert (alone["best val loss"], alone["verdict"]) == ("1", None)


@pytest.mark.parametrize(
    ("none", "word"),
    [((0.8, 0.83, 0.79), "worse"), ((0.49, 0.53, 0.49), "within noise"), ((0.3,), "one seed")],
)
def test_the_word(plant: Any, history: Any, none: tuple[float, ...], word: str) -> None:
    rows = table(plant.runs({"scale=sqrt": SQRT, "scale=none": none}), history)
    assert rows["scale=none"]["verdict"] == word
    if word == "one seed":
        assert rows["scale=none"]["− sqrt (interval)"] == "-0.2"


def test_columns_that_nobody_fills_are_left_out(plant: Any, history: Any) -> None:
    (row,) = table([plant.run()], history).values()
    assert list(row) == ["runs", "best val loss", "diverged"]
    metrics = {"test/bleu": 30.0, "val/accuracy": 0.5, "time/steps_per_second": 250.0}
    (row,) = table([plant.run(metrics=metrics)], history).values()
    assert (row["test BLEU"], row["accuracy"], row["ms/step"]) == ("30", "0.5", 4.0)
    assert "test loss" not in row


def test_outcomes_are_counted(plant: Any, history: Any) -> None:
    states = ("finished", "finished", "diverged", "failed", "killed", "running")
    runs = [
        plant.run(seed=i, loss=0.5 if s == "finished" else None, outcome=s, reason=f"why {i}")
        for i, s in enumerate(states)
    ]
    (row,) = table(runs, history).values()
    assert row["runs"] == "2 finished, 1 diverged, 1 failed, 1 killed, 1 running"
    assert row["diverged"] == "1 of 6"
    assert [line[:4] for line in failures(make_grid(runs))] == [
        ["all runs", 2, "diverged", "why 2 at step ?"],
        ["all runs", 3, "failed", "why 3"],
        ["all runs", 4, "killed", "why 4"],
        ["all runs", 5, "running", "still running"],
    ]
    assert {line[4] for line in failures(make_grid(runs))} == {run.run_id for run in runs[2:]}


def test_steps_and_seconds_to_a_loss_that_all_reach(plant: Any, history: Any) -> None:
    planted = (
        ("sqrt", 0, 0.5, {0: 2.0, 10: 0.9, 30: 0.5}),
        ("sqrt", 1, 0.6, {0: 2.0, 20: 0.6}),
        ("none", 0, 0.3, {0: 2.0, 4: 0.6, 30: 0.3}),
        ("none", 1, 0.2, {8: 0.2}),
    )
    runs = []
    for scale, seed, loss, curve in planted:
        runs.append(plant.run(f"scale={scale}", seed, loss, metrics={LOSS: 0.0}))
        history.plant(runs[-1], LOSS, curve)
    # The worst of all: each run of each setting gets there.
    assert common_loss(make_grid(runs)) == 0.6
    rows = table(runs, history)
    assert rows["scale=sqrt"]["steps to common loss"] == (30 + 20) / 2
    assert rows["scale=none"]["steps to common loss"] == (4 + 8) / 2
    # Seconds count from each curve's first point, a second per step.
    assert rows["scale=sqrt"]["seconds to common loss"] == (30 + 20) / 2
    assert rows["scale=none"]["seconds to common loss"] == (4 + 0) / 2


def test_a_setting_that_never_gets_there_has_no_steps(plant: Any, history: Any) -> None:
    runs = [plant.run(f"scale={s}", metrics={LOSS: 0.9}, loss=0.5) for s in ("sqrt", "none")]
    history.plant(runs[0], LOSS, {0: 2.0, 10: 0.5})
    history.plant(runs[1], LOSS, {0: 2.0, 10: 0.9})
    rows = table(runs, history)
    assert rows["scale=sqrt"]["steps to common loss"] == 10
    assert rows["scale=none"]["steps to common loss"] is None


def test_what_diverged_sets_no_common_loss(plant: Any) -> None:
    runs = plant.runs({"scale=sqrt": (0.5,), "scale=none": (0.25,), "scale=cosine": (9.0,)})
    runs.append(plant.run("scale=cosine", 1, None, outcome="diverged"))
    assert common_loss(make_grid(runs)) == 0.5
    # With one setting there is nothing in common.
    assert common_loss(make_grid(runs[:1])) is None
    assert common_loss(make_grid([])) is None


def test_statistics_are_means_over_attentions_and_finished_runs(plant: Any, history: Any) -> None:
    def metrics(a: float, b: float) -> dict[str, float]:
        return {
            "attention/encoder.0.self/entropy_norm": a,
            "attention/decoder.0.cross/entropy_norm": b,
            "attention/decoder.0.cross/head0/entropy_norm": 99.0,
            "attention/decoder.0.cross/entropy_norm_of_more": 99.0,
        }

    runs = [
        plant.run(seed=0, metrics=metrics(0.25, 0.75)),
        plant.run(seed=1, metrics=metrics(0.5, 1.0)),
        plant.run(seed=2, metrics=metrics(99.0, 99.0), outcome="diverged"),
        plant.run(seed=3),
    ]
    (setting,) = make_grid(runs).settings
    assert attention_mean(setting, "entropy_norm") == 0.625
    assert attention_mean(setting, "never") is None
    (row,) = table(runs, history).values()
    assert row["entropy ÷ ln n"] == 0.625


def test_spread_as_text(plant: Any) -> None:
    (setting,) = make_grid(plant.runs({"": (0.25, 0.75)})).settings
    assert with_spread(setting.estimate("val/best_loss")) == f"0.5 ± {math.sqrt(0.125):.2g}"
    assert with_spread(None) is None


def test_no_runs_make_an_empty_table(history: Any) -> None:
    grid = make_grid([])
    assert summary(grid, make_answer(grid)) == ([], [])
    assert failures(grid) == []
