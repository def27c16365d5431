"""Planted runs: which rate is best, and what the table over rates says."""

import math
from typing import Any

import pytest

from attnscale.analysis.rates import (
    at_best_rate,
    by_rate,
    lr_sensitivity,
    mean_loss,
    rate_rows,
    select,
)
from attnscale.tracking.runs import Run
from tests.support.runs import trained_run


def run(lr: float, seed: int, loss: float | None, **more: Any) -> Run:
    return trained_run(lr=lr, seed=seed, loss=loss, **{"start_loss": 1.0, **more})


def test_the_best_rate_is_that_of_the_lowest_mean() -> None:
    runs = [
        *(run(0.1, seed, loss) for seed, loss in enumerate((0.5, 0.1, 0.6))),
        *(run(0.01, seed, loss) for seed, loss in enumerate((0.3, 0.3, 0.3))),
        *(run(1.0, seed, loss) for seed, loss in enumerate((0.4, 0.4, 0.4))),
    ]
    best = at_best_rate(runs)
    assert best is not None
    # Not the rate of the single lowest loss, nor the largest or the first.
    assert best.rate == 0.01
    assert best.losses == {0: 0.3, 1: 0.3, 2: 0.3}
    assert [r.lr for r in best.runs] == [0.01] * 3


def test_a_rate_with_a_diverged_run_is_never_best() -> None:
    runs = [run(0.1, 0, 0.01), run(0.1, 1, None), run(0.01, 0, 0.9), run(0.01, 1, 0.8)]
    best = at_best_rate(runs)
    assert best is not None
    assert best.rate == 0.01
    assert math.isinf(mean_loss(runs))
    assert mean_loss(best.runs) == pytest.approx(0.85)
    assert at_best_rate(runs[:2]) is None
    assert at_best_rate([]) is None


def test_test_losses_are_of_the_same_runs_where_there_are_any() -> None:
    best = at_best_rate([run(0.1, 3, 0.5, test_loss=0.7), run(0.1, 4, 0.5), run(1, 3, 0.9)])
    assert best is not None
    assert best.test_losses == {3: 0.7}
    assert best.losses == {3: 0.5, 4: 0.5}


def test_selecting_and_grouping() -> None:
    runs = [run(0.1, 0, 1.0), run(0.01, 0, 2.0, d_k=8), run(0.1, 1, 3.0, variant="x")]
    assert select(runs, d_k=8) == [runs[1]]
    assert select(runs, scale="sqrt", variant="") == runs[:2]
    assert select(runs, scale="none") == []
    assert by_rate(runs) == {0.01: [runs[1]], 0.1: [runs[0], runs[2]]}
    assert list(by_rate(runs)) == [0.01, 0.1]


def test_the_table_over_rates() -> None:
    runs = [
        *(run(lr, seed, loss) for seed in (0, 1) for lr, loss in ((1e-3, 0.4), (1e-2, 0.2))),
        *(run(0.1, seed, loss) for seed, loss in ((0, 0.1), (1, None))),
        run(1e-3, 0, 0.25, scale="none", d_k=8),
    ]
    columns, rows = rate_rows(runs)
    table = [dict(zip(columns, row, strict=True)) for row in rows]
    assert columns == [
        *("scale", "d_k", "lr 0.001", "lr 0.01", "lr 0.1", "best rate", "best loss"),
        *("sensitivity", "diverged", "seeds"),
    ]
    first, second = table
    assert (first["scale"], first["d_k"]) == ("sqrt", 64)
    assert [first[f"lr {lr}"] for lr in ("0.001", "0.01", "0.1")] == ["0.4", "0.2", "–"]
    assert (first["best rate"], first["best loss"]) == ("0.01", "0.2")
    # Over equal steps of log η, losses 0.4, 0.2 and (diverged: the start's) 1: by trapezoids
    # (0.3 + 0.6) / 2 less the best.
    assert first["sensitivity"] == "0.25"
    assert (first["diverged"], first["seeds"]) == ("1 of 6", 2)
    # One rate has no sensitivity; a rate that was not tried has an empty cell.
    assert (second["lr 0.001"], second["lr 0.01"], second["lr 0.1"]) == ("0.25", None, None)
    assert (second["sensitivity"], second["diverged"], second["seeds"]) == (None, "0 of 1", 1)


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
    assert row["diverged"] == "2 of 2"


def test_without_a_first_loss_there_is_no_sensitivity() -> None:
    columns, rows = rate_rows([run(lr, 0, 0.5, start_loss=math.inf) for lr in (0.1, 1.0)])
    assert rows[0][columns.index("sensitivity")] is None


def test_variants_are_settings_of_their_own() -> None:
    runs = [run(0.1, 0, 0.1, variant="norm=pre"), run(0.1, 0, 0.9, variant="norm=none")]
    columns, rows = rate_rows(runs)
    table = [dict(zip(columns, row, strict=True)) for row in rows]
    assert [(r["variant"], r["best loss"], r["seeds"]) for r in table] == [
        ("norm=pre", "0.1", 1),
        ("norm=none", "0.9", 1),
    ]
    assert "variant" not in rate_rows([run(0.1, 0, 0.1)])[0]


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
