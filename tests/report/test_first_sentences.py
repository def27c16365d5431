"""Sweeps whose truth is known, through the whole report: what it says first.

The figures in the sentences were computed with SciPy alone.
"""

import csv
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from attnscale.report.page import Report, make_report
from tests.support.runs import trained_run

SQRT = (0.50, 0.52, 0.47, 0.51, 0.49)


@pytest.fixture
def report(history: Any, tmp_path: Path, undrawn: None) -> Any:
    return partial(make_report, history=history, folder=tmp_path, title="planted")


Make = Callable[[Sequence[Any]], Report]


def test_equal_arms_are_no_difference_that_matters(plant: Any, report: Make) -> None:
    none = (0.501, 0.518, 0.472, 0.509, 0.491)
    answer = report(plant.runs({"scale=sqrt": SQRT, "scale=none": none})).answer
    assert answer.sentences == (
        "Lowest mean of the best validation loss: scale=sqrt, 0.498 ± 0.019 (5 seeds).",
        "scale=none against scale=sqrt: the difference is +0.0002 (95 % interval -0.00184 to "
        "0.00224, paired t, 5 seeds): no difference that matters, it is smaller than 0.00996 (2 % "
        "of sqrt's mean).",
    )


def test_a_real_difference_is_better(plant: Any, report: Make) -> None:
    none = (0.40, 0.43, 0.36, 0.42, 0.39)
    answer = report(plant.runs({"scale=sqrt": SQRT, "scale=none": none})).answer
    assert answer.sentences == (
        "Lowest mean of the best validation loss: scale=none, 0.4 ± 0.027 (5 seeds).",
        "Against scale=sqrt the difference is -0.098 (95 % interval -0.1084 to -0.08761, paired t, "
        "5 seeds): better than chance explains.",
    )


def test_the_mean_over_fewer_seeds_that_are_worse_in_pairs_is_not_best(
    plant: Any, report: Make
) -> None:
    """Hard seeds that failed make a mean lower."""
    losses = {
        "scale=sqrt": (0.10, 0.11, 0.12, 0.50, 0.52, 0.51),
        "scale=none": (0.200, 0.211, 0.221),
    }
    answer = report(plant.runs(losses)).answer
    assert answer.best is None
    assert answer.sentences == (
        "Nobody is named best: scale=none has the lowest mean over all its runs, 0.2107 against "
        "0.31 of scale=sqrt, but not over the 3 seeds that are compared.",
        "scale=none against scale=sqrt: the difference is +0.1007 (95 % interval 0.09923 to "
        "0.1021, paired t, 3 seeds and 3 without a partner): worse than chance explains.",
    )


def test_runs_that_share_a_seed_are_all_counted(plant: Any, report: Make) -> None:
    """Two seeds of the data are two replicates; a sweep made twice is one, averaged."""
    planted = {"sqrt": (0.125, 0.375), "none": (0.25, 0.25)}
    runs = [
        plant.run(f"scale={scale}", 0, loss, data__seed=str(seed))
        for scale, losses in planted.items()
        for seed, loss in enumerate(losses)
    ]
    tie = (
        "the difference is +0 (95 % interval -1.588 to 1.588, paired t, 2 seeds): within noise; a "
        "difference of 2.042 would be found in 80 % of such sweeps."
    )
    answer = report(runs).answer
    assert answer.sentences == (
        "Lowest mean of the best validation loss: scale=none, 0.25 ± 0 (2 seeds).",
        f"Against scale=sqrt {tie}",
    )
    repeated = [plant.run("scale=none", 0, loss, data__seed="1") for loss in (0.5, 0.0)]
    assert report([*runs, *repeated]).answer.sentences == (
        *answer.sentences,
        "2 runs repeat the setting and seeds of another: each pair of seeds counts once, with the "
        "mean of its runs.",
    )


def test_one_diverged_run_does_not_take_the_reference_away(plant: Any, report: Make) -> None:
    losses = {
        "scale=sqrt": (0.104, 0.103, 0.105, 0.104, 0.102, 0.106, 0.104, 0.103, 0.105),
        "scale=folded": (0.30, 0.31, 0.30, 0.29, 0.30, 0.31, 0.30, 0.32, 0.29, 0.31),
        "scale=none": (0.50, 0.51, 0.49, 0.50, 0.52, 0.50, 0.48, 0.50, 0.51, 0.50),
    }
    runs = [*plant.runs(losses), plant.run("scale=sqrt", 9, None, outcome="diverged")]
    answer = report(runs).answer
    assert answer.best is None
    assert answer.sentences == (
        "Nobody is named best: scale=sqrt has the lowest mean of the best validation loss, 0.104, "
        "over the runs that it finished, but lost 1 of 10, against 0 of 10 of scale=folded.",
        "scale=folded against scale=sqrt: the difference is +0.1982 (95 % interval 0.1905 to "
        "0.2059, paired t, 9 seeds and 1 without a partner, Holm p 7.4e-12 of 2 comparisons): "
        "worse than chance explains.",
        "Also beyond noise, each against its own sqrt: scale=none worse (+0.397).",
        "1 of 30 runs diverged: scale=sqrt (1).",
        "Without a result, each against its own sqrt (Fisher's exact test): scale=folded 0 of 10 "
        "against 1 of 10 (p = 1), scale=none 0 of 10 against 1 of 10 (p = 1).",
    )


def test_one_seed_that_is_left_of_five_is_not_best(plant: Any, report: Make) -> None:
    runs = plant.runs({"scale=sqrt": SQRT, "scale=none": (0.01,)})
    runs += [plant.run("scale=none", seed, None, outcome="failed") for seed in range(1, 5)]
    answer = report(runs).answer
    assert answer.best is None
    assert answer.sentences == (
        "Nobody is named best: scale=none has the lowest mean of the best validation loss, 0.01, "
        "over the runs that it finished, but lost 4 of 5, against 0 of 5 of scale=sqrt.",
        "scale=none against scale=sqrt: the difference is -0.49, with one seed: nothing can be "
        "said about chance.",
        "4 of 10 runs failed: scale=none (4).",
        "Without a result, each against its own sqrt (Fisher's exact test): scale=none 4 of 5 "
        "against 0 of 5 (p = 0.048).",
    )


def test_swept_rates_are_compared_at_each_one_s_best_first(plant: Any, report: Make) -> None:
    """At equal rates each is far better once; at their best they are equal."""
    losses = {
        "scale=none lr=0.001": (0.0513, 0.0508, 0.0511, 0.0510, 0.0508),
        "scale=none lr=0.004": (0.401, 0.398, 0.4015, 0.4005, 0.399),
        "scale=sqrt lr=0.001": (0.171, 0.168, 0.1715, 0.1705, 0.169),
        "scale=sqrt lr=0.004": (0.0510, 0.0513, 0.0514, 0.0509, 0.0512),
    }
    whole = report(plant.runs(losses))
    assert whole.answer.sentences == (
        "Lowest mean of the best validation loss: scale=none lr=0.001, 0.051 ± 0.00021 (5 seeds).",
        "Against scale=sqrt lr=0.004 the difference is -0.00016 (95 % interval -0.0005865 to "
        "0.0002665, paired t, 5 seeds): no difference that matters, it is smaller than 0.001023 "
        "(2 % of sqrt's mean).",
        "The best of scale=none is at the end of what was tried (lr=0.001): its optimum may lie "
        "outside.",
        "The best of scale=sqrt is at the end of what was tried (lr=0.004): its optimum may lie "
        "outside.",
        "At equal lr, each against its own sqrt: better: scale=none lr=0.001 (-0.119); worse: "
        "scale=none lr=0.004 (+0.349).",
    )
    with (whole.page.parent / "at_best.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["setting at its best"], row["at an end of"]) for row in rows] == [
        ("scale=none lr=0.001", "lr"),
        ("scale=sqrt lr=0.004", "lr"),
    ]


def test_at_a_floor_nothing_is_found_but_who_gets_there_sooner(report: Make) -> None:
    """Both end at 0.5 to a hair, always the same way; one needs twice the steps."""
    runs = [
        trained_run(
            scale=scale,
            seed=seed,
            loss=floor + seed * 1e-3,
            start_loss=1.0,
            curve=[(steps, floor + seed * 1e-3), (200, floor + seed * 1e-3)],
            # A last value stands for the end of the curve.
            val_loss=floor + seed * 1e-3,
        )
        for scale, floor, steps in (("sqrt", 0.5, 40), ("none", 0.4999, 80))
        for seed in range(5)
    ]
    whole = report(runs)
    assert whole.answer.sentences == (
        "Lowest mean of the best validation loss: scale=none, 0.5019 ± 0.0016 (5 seeds; 0.5019 at "
        "the last epoch).",
        "Against scale=sqrt the difference is -0.0001 (95 % interval -0.0001 to -0.0001, paired "
        "t, 5 seeds): no difference that matters, it is smaller than 0.01004 (2 % of sqrt's mean).",
        "Steps to 90 % of what sqrt improves by, ÷ those of sqrt: scale=none 2.00 times (2.00 to "
        "2.00).",
    )
    none = dict(zip(whole.columns, whole.rows[0], strict=True))
    assert (none["scale"], none["verdict"]) == ("none", "equivalent")
    assert none["best val loss"] == none["last val loss"] == "0.5019 ± 0.0016"
    with (whole.page.parent / "steps.csv").open(encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert [row[f"steps ÷ reference's to {share} %"] for share in (50, 90, 99)] == [
        "2.00 (2.00 to 2.00)"
    ] * 3


def test_what_changes_together_is_told_with_the_difference(plant: Any, report: Make) -> None:
    """Pairs of values: the difference is not of the scale alone."""
    none = (0.40, 0.43, 0.36, 0.42, 0.39)
    runs = [
        *(plant.run("scale=sqrt", s, loss, optimizer__eps="1e-08") for s, loss in enumerate(SQRT)),
        *(plant.run("scale=none", s, loss, optimizer__eps="1e-06") for s, loss in enumerate(none)),
    ]
    sentences = report(runs).answer.sentences
    assert sentences[1].startswith(
        "Against scale=sqrt the difference (scale together with optimizer.eps) is -0.098 (95 % "
    )


def test_it_is_told_of_each_comparison_and_only_where_it_is_so(plant: Any, report: Make) -> None:
    runs = [
        plant.run(f"scale={scale}", seed, loss + more, model__init=init)
        for scale, init, more in (("sqrt", "a", 0.0), ("folded", "a", 0.1), ("none", "b", 0.2))
        for seed, loss in enumerate(SQRT)
    ]
    first, of_folded, others, *_ = report(runs).answer.sentences
    assert "together" not in first + of_folded
    assert others.endswith("scale=none (scale together with model.init) worse (+0.2).")
