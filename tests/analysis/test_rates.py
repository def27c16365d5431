"""Planted runs: which rate is best, and what the table over rates says."""

import math
from typing import Any

import pytest

from attnscale.analysis.rates import lr_sensitivity, rate_rows
from attnscale.tracking.runs import Run
from tests.support.runs import trained_run


def run(lr: float, seed: int, loss: float | None, last: float | None = None, **more: Any) -> Run:
    """Return a run whose last loss is its best one, or another."""
    figures = {} if loss is None else {"val/loss": loss if last is None else last}
    given: dict[str, Any] = {"start_loss": 1.0, "figures": figures, **more}
    return trained_run(lr=lr, seed=seed, loss=loss, **given)


def test_the_table_over_rates() -> None:
    runs = [
        *(run(lr, seed, loss) for seed in (0, 1) for lr, loss in ((1e-3, 0.4), (1e-2, 0.2))),
        *(run(0.1, seed, loss) for seed, loss in ((0, 0.1), (1, None))),
        run(1e-3, 0, 0.25, scale="none"),
    ]
    columns, rows = rate_rows(runs)
    table = [dict(zip(columns, row, strict=True)) for row in rows]
    assert columns == [
        *("scale", "lr 0.001", "lr 0.01", "lr 0.1", "best rate", "best loss"),
        *("sensitivity", "lost", "seeds"),
    ]
    second, first = table
    assert (first["scale"], second["scale"]) == ("sqrt", "none")
    assert [first[f"lr {lr}"] for lr in ("0.001", "0.01", "0.1")] == ["0.4", "0.2", "–"]
    assert (first["best rate"], first["best loss"]) == ("0.01", "0.2")
    # Over equal steps of log η, losses 0.4, 0.2 and (diverged: the start's) 1: by trapezoids
    # (0.3 + 0.6) / 2 less the best.
    assert first["sensitivity"] == "0.25"
    assert (first["lost"], first["seeds"]) == ("1 of 6", 2)
    # One rate has no sensitivity; a rate that was not tried has an empty cell.
    assert (second["lr 0.001"], second["lr 0.01"], second["lr 0.1"]) == ("0.25", None, None)
    assert (second["sensitivity"], second["lost"], second["seeds"]) == (None, "0 of 1", 1)


def test_a_setting_that_always_diverged_has_no_best_rate() -> None:
    columns, rows = rate_rows([run(lr, 0, None) for lr in (0.1, 1.0)])
    (row,) = [dict(zip(columns, row, strict=True)) for row in rows]
    assert (row["lr 0.1"], row["lr 1"], row["best rate"], row["best loss"]) == (
        "–",
        "–",
        None,
        None,
    )
    assert row["sensitivity"] is None
    assert row["lost"] == "2 of 2"


def test_without_a_first_loss_there_is_no_sensitivity() -> None:
    columns, rows = rate_rows([run(lr, 0, 0.5, start_loss=math.inf) for lr in (0.1, 1.0)])
    assert rows[0][columns.index("sensitivity")] is None


def test_what_else_varies_has_a_column() -> None:
    runs = [
        run(0.1, 0, 0.1, parameters={"model.norm": "pre"}),
        run(0.1, 0, 0.9, parameters={"model.norm": "none"}),
    ]
    columns, rows = rate_rows(runs)
    table = [dict(zip(columns, row, strict=True)) for row in rows]
    assert [(r["norm"], r["best loss"], r["seeds"]) for r in table] == [
        ("none", "0.9", 1),
        ("pre", "0.1", 1),
    ]


def test_the_sensitivity_is_of_the_last_loss_and_the_end_of_a_grid_is_marked() -> None:
    # 0.2 at the best, then lost again: above the start, which is what it counts.
    runs = [run(0.1, 0, 0.4), run(0.01, 0, 0.2, last=3.0)]
    columns, (row,) = rate_rows(runs)
    cells = dict(zip(columns, row, strict=True))
    assert (cells["best rate"], cells["best loss"]) == ("0.01 (end)", "0.2")
    assert cells["sensitivity"] == "0.3"


# --- the loss over learning rates ---


@pytest.mark.parametrize("diverged", [None, math.inf, math.nan, 50.0])
def test_sensitivity_by_hand(diverged: float | None) -> None:
    # Decades are unequal: 1e-4 to 1e-3 is one, 1e-3 to 1e-1 two. Over the best loss of 2 lie
    # 1, 0 and, diverged at the loss of 8 at the start, 6: (1·(1 + 0)/2 + 2·(0 + 6)/2) / 3.
    losses = {1e-1: diverged, 1e-4: 3.0, 1e-3: 2.0}  # the order does not matter
    assert lr_sensitivity(losses, 8.0) == pytest.approx(6.5 / 3)


def test_sensitivity_of_a_flat_curve_is_0() -> None:
    assert lr_sensitivity({1e-4: 2.0, 1e-3: 2.0, 1e-2: 2.0}, 8.0) == 0


def test_sensitivity_has_no_value_where_nothing_was_learnt() -> None:
    assert lr_sensitivity({1e-4: None, 1e-3: math.inf, 1e-2: 9.0}, 8.0) is None


@pytest.mark.parametrize("losses", [{}, {1e-3: 1.0}, {0.0: 1.0, 1e-3: 1.0}, {-1.0: 1.0, 1.0: 1.0}])
def test_sensitivity_needs_a_range_of_rates(losses: dict[float, float | None]) -> None:
    with pytest.raises(ValueError, match="two or more, positive"):
        lr_sensitivity(losses, 8.0)


def test_sensitivity_needs_a_loss_at_the_start() -> None:
    with pytest.raises(ValueError, match="loss_at_init"):
        lr_sensitivity({1e-3: 1.0, 1e-2: 2.0}, math.inf)
