"""The table: each cell against what was planted."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from attnscale.analysis.settings import make_grid
from attnscale.report.answer import make_answer
from attnscale.report.summary import failures, progress, summary, tuned, with_spread
from tests.support.runs import trained_run

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
    assert list(none)[:5] == ["scale", "d_k", "runs", "best val loss", "verdict"]
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
    [
        ((0.8, 0.83, 0.79), "worse"),
        ((0.49, 0.53, 0.49), "within noise"),
        ((0.501, 0.522, 0.481), "equivalent"),
        ((0.3,), "one seed"),
    ],
)
def test_the_word(plant: Any, history: Any, none: tuple[float, ...], word: str) -> None:
    rows = table(plant.runs({"scale=sqrt": SQRT, "scale=none": none}), history)
    assert rows["scale=none"]["verdict"] == word
    if word == "one seed":
        assert rows["scale=none"]["− sqrt (interval)"] == "-0.2"


def test_columns_that_nobody_fills_are_left_out(plant: Any, history: Any) -> None:
    (row,) = table([plant.run()], history).values()
    assert list(row) == ["runs", "best val loss", "diverged"]
    metrics = {"test/bleu": 30.0, "time/steps_per_second": 250.0}
    (row,) = table([plant.run(metrics=metrics)], history).values()
    assert (row["test BLEU"], row["ms/step"]) == ("30", 4.0)
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


def test_steps_to_shares_of_what_sqrt_improves_by_are_paired() -> None:
    def run(scale: str, seed: int, *curve: tuple[int, float]) -> Any:
        return trained_run(
            scale=scale, seed=seed, loss=min(loss for _, loss in curve), start_loss=1.0, curve=curve
        )

    runs = [
        run("sqrt", 0, (10, 0.0)),
        run("sqrt", 1, (20, 0.0)),
        run("none", 0, (20, 0.0)),
        run("none", 1, (40, 0.2)),
        # Learns nothing: it makes nobody's level.
        run("inverse", 0, (10, 0.9)),
    ]
    speeds = progress(make_answer(make_grid(runs)))
    assert speeds is not None
    columns, rows = speeds
    assert columns[2:] == [f"steps ÷ reference's to {share} %" for share in (50, 90, 99)]
    # Straight lines: twice the steps of seed 0; of seed 1 half is reached at 25, against 10.
    logs = [math.log(2), math.log(2.5)]
    low, high = np.exp(stats.ttest_1samp(logs, 0).confidence_interval(0.95))
    half = f"{math.sqrt(5):.2f} ({low:.2f} to {high:.2f})"
    missed = "2.00, 1 not reached"
    assert rows == [
        ["scale=inverse", "scale=sqrt", *["1 not reached"] * 3],
        ["scale=none", "scale=sqrt", half, missed, missed],
    ]


def test_steps_at_the_best_rates_come_first(plant: Any, history: Any) -> None:
    losses = {
        "scale=none lr=0.1": 0.1,
        "scale=none lr=0.2": 0.2,
        "scale=sqrt lr=0.1": 0.4,
        "scale=sqrt lr=0.2": 0.3,
    }
    runs = [
        plant.run(name, 0, x, metrics={"val/loss": x, "train/loss": x})
        for name, x in losses.items()
    ]
    for run in runs:
        history.plant(run, "train/loss", {0: 1.0})
        history.plant(run, "val/loss", {10: run.loss})
    speeds = progress(make_answer(make_grid(runs)))
    assert speeds is not None
    assert [row[:2] for row in speeds[1]] == [
        ["scale=none lr=0.1", "scale=sqrt lr=0.2"],
        ["scale=none lr=0.1", "scale=sqrt lr=0.1"],
        ["scale=none lr=0.2", "scale=sqrt lr=0.2"],
    ]
    # Half of 0.7 against 0.9 in the same steps.
    assert speeds[1][0][2] == f"{7 / 9:.2f}"


def test_a_row_s_figures_are_of_one_epoch_and_the_last_loss_beside_them(
    plant: Any, history: Any
) -> None:
    """The loss jumps up at the end: neither accuracy nor loss of that epoch stand for the best."""
    curves = {
        "val/loss": {10: 0.5, 20: 0.25, 30: 0.75},
        "val/accuracy": {10: 0.5, 20: 0.9, 30: 0.6},
    }
    run = plant.run("scale=none", 0, 0.25, metrics={name: c[30] for name, c in curves.items()})
    for name, curve in curves.items():
        history.plant(run, name, curve)
    # The same again, with another accuracy at its best: the seed counts once, with the mean.
    again = plant.run("scale=none", 0, 0.25, metrics={name: c[30] for name, c in curves.items()})
    history.plant(again, "val/loss", {10: 0.5, 20: 0.75, 30: 0.25})
    history.plant(again, "val/accuracy", {10: 0.5, 20: 0.9, 30: 0.6})
    (row,) = table([run], history).values()
    assert list(row)[1:3] == ["best val loss", "last val loss"]
    assert (row["best val loss"], row["last val loss"], row["accuracy"]) == ("0.25", "0.75", "0.9")
    other = plant.run("scale=none", 1, 0.3, metrics={"val/loss": 0.3, "val/accuracy": 1.0})
    history.plant(other, "val/loss", {10: 0.3})
    history.plant(other, "val/accuracy", {10: 1.0})
    (row,) = table([run, again, other], history).values()
    accuracies = [(0.9 + 0.6) / 2, 1.0]
    assert row["accuracy"] == f"{np.mean(accuracies):.4g} ± {np.std(accuracies, ddof=1):.2g}"


def test_each_arm_at_its_best_where_a_knob_was_swept(plant: Any) -> None:
    losses = {
        f"scale={scale} lr={lr}": tuple(loss + x for x in (0.01, 0.0, -0.02))
        for scale, by_rate in {"sqrt": (0.9, 0.5, 0.7), "none": (0.3, 0.4, 0.6)}.items()
        for lr, loss in zip(("0.1", "0.2", "0.4"), by_rate, strict=True)
    }
    losses["scale=none lr=0.1"] = (0.30, 0.33, 0.29)
    grid = make_grid(plant.runs(losses))
    answer = make_answer(grid)
    at_best = tuned(grid, answer)
    assert at_best is not None
    columns, rows = at_best
    test = stats.ttest_rel(losses["scale=none lr=0.1"], losses["scale=sqrt lr=0.2"])
    low, high = test.confidence_interval(0.95)
    value = np.mean(losses["scale=none lr=0.1"]) - np.mean(losses["scale=sqrt lr=0.2"])
    none, sqrt = (dict(zip(columns, row, strict=True)) for row in rows)
    assert none["setting at its best"] == "scale=none lr=0.1"
    assert (none["at an end of"], none["verdict"]) == ("lr", "better")
    assert none["− sqrt (interval)"] == f"{value:+.3g} ({low:.3g} to {high:.3g})"
    assert (sqrt["setting at its best"], sqrt["at an end of"]) == ("scale=sqrt lr=0.2", "")
    assert tuned(make_grid(plant.runs({"scale=sqrt": SQRT})), answer) is None


def with_statistics(plant: Any, history: Any, seed: int, **curves: list[float]) -> Any:
    """Return a finished run whose attentions, named with __ for dots, had these entropies."""
    metrics = {f"attention/{p.replace('__', '.')}/entropy_norm": v for p, v in curves.items()}
    run = plant.run(seed=seed, metrics={metric: v[-1] for metric, v in metrics.items()})
    for metric, values in metrics.items():
        history.plant(run, metric, dict(enumerate(values)))
    return run


def test_statistics_of_one_kind_are_a_number_of_the_last_samples(plant: Any, history: Any) -> None:
    # The last five of each; a single batch at the end decides nothing.
    runs = [
        with_statistics(plant, history, 0, layers__0__attention=[9.0, 0.5, 0.5, 0.5, 0.5, 1.0]),
        with_statistics(plant, history, 1, layers__0__attention=[0.2] * 5),
    ]
    (row,) = table(runs, history).values()
    assert row["entropy ÷ ln n"] == pytest.approx((0.6 + 0.2) / 2)


def test_statistics_of_several_kinds_are_not_averaged(plant: Any, history: Any) -> None:
    entropies = {
        "encoder__0__self": [0.2],
        "encoder__1__self": [0.4],
        "decoder__0__cross": [0.8],
        "decoder__0__cross/head0": [99.0],
    }
    (row,) = table([with_statistics(plant, history, 0, **entropies)], history).values()
    assert row["entropy ÷ ln n"] == "decoder.cross 0.8, encoder.self 0.3"
    assert "logit std" not in row


def test_spread_as_text(plant: Any) -> None:
    (setting,) = make_grid(plant.runs({"": (0.25, 0.75)})).settings
    assert with_spread(setting.estimate("val/best_loss")) == f"0.5 ± {math.sqrt(0.125):.2g}"
    assert with_spread(None) is None


def test_no_runs_make_an_empty_table(history: Any) -> None:
    grid = make_grid([])
    assert summary(grid, make_answer(grid)) == ([], [])
    assert failures(grid) == []
