"""Who is named best, and when nobody is: lost seeds, missing seeds, margins, swept values."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from attnscale.analysis.settings import make_grid
from attnscale.report.answer import make_answer
from tests.report.test_answer import SQRT, shifted, words


def test_a_setting_that_lost_a_seed_is_compared_and_never_best(plant: Any) -> None:
    runs = [
        *plant.runs({"scale=sqrt": SQRT, "scale=none": (0.01, 0.02, 0.01, 0.02)}),
        plant.run("scale=none", 4, None, outcome="diverged"),
    ]
    answer = make_answer(make_grid(runs))
    assert answer.best is None
    assert answer.sentences[0] == (
        "Nobody is named best: scale=none has the lowest mean of the best validation loss, 0.015, "
        "over the runs that it finished, but lost 1 of 5, against 0 of 5 of scale=sqrt."
    )
    assert answer.sentences[1].startswith("scale=none against scale=sqrt: the difference is -0.485")
    assert "paired t, 4 seeds and 1 without a partner): better" in answer.sentences[1]
    lost = "Without a result, each against its own sqrt (Fisher's exact test): scale=none 1 of 5"
    assert answer.sentences[2:] == (
        "1 of 10 runs diverged: scale=none (1).",
        f"{lost} against 0 of 5 (p = 1).",
    )
    # Where its reference lost as many, it is.
    runs.append(plant.run("scale=sqrt", 6, None, outcome="failed"))
    runs.append(plant.run("scale=sqrt", 7, None, outcome="failed"))
    answer = make_answer(make_grid(runs))
    assert answer.best is not None
    assert answer.best.label == "scale=none"
    assert f"{lost} against 2 of 7 (p = 1)." in answer.sentences


def test_the_tests_of_lost_seeds_are_a_family(plant: Any) -> None:
    losses: dict[str, Any] = {"scale=sqrt": SQRT, "scale=none": (0.5,), "scale=cosine": SQRT[:3]}
    runs = plant.runs({**losses, "scale=softcap": SQRT})
    runs += [plant.run("scale=none", seed, None, outcome="failed") for seed in range(1, 5)]
    runs += [plant.run("scale=cosine", seed, None, outcome="diverged") for seed in (3, 4)]
    p_none = stats.fisher_exact([[4, 1], [0, 5]]).pvalue
    p_cosine = stats.fisher_exact([[2, 3], [0, 5]]).pvalue
    assert (
        "Without a result, each against its own sqrt (Fisher's exact test): "
        f"scale=cosine 2 of 5 against 0 of 5 (p = {p_cosine:.2g}), "
        f"scale=none 4 of 5 against 0 of 5 (p = {2 * p_none:.2g})."
    ) in make_answer(make_grid(runs)).sentences


def test_where_sqrt_lost_all_its_runs_the_others_are_still_told(plant: Any) -> None:
    runs = plant.runs({"scale=none": SQRT, "scale=folded": shifted(0.1)})
    runs += [plant.run("scale=sqrt", seed, None, outcome="diverged") for seed in range(5)]
    answer = make_answer(make_grid(runs))
    assert "Against scale=folded the difference is -0.099" in answer.sentences[1]
    assert "scale=none 0 of 5 against 5 of 5 (p = 0.016)" in words(answer)


def test_the_noise_of_the_control_is_no_difference_that_matters(plant: Any) -> None:
    """A difference in every seed, smaller than what rounding alone does to a run."""
    control = (0.53, 0.49, 0.50, 0.53, 0.45)
    losses = {"scale=sqrt": SQRT, "scale=none_equiv": control, "scale=none": shifted(-0.04)}
    margin = 2 * np.std(np.subtract(control, SQRT), ddof=1)
    test = stats.ttest_rel(losses["scale=none"], SQRT)
    assert test.pvalue < 0.05 / 2
    assert stats.ttest_rel(losses["scale=none"], np.subtract(SQRT, margin)).pvalue < 0.05
    answer = make_answer(make_grid(plant.runs(losses)))
    assert answer.headline is not None
    assert answer.headline.difference.better is None
    assert answer.sentences[1].endswith(
        f"no difference that matters, it is smaller than {margin:.4g} "
        "(2 standard deviations of none_equiv − sqrt)."
    )
    del losses["scale=none_equiv"]
    assert "better than chance explains" in words(make_answer(make_grid(plant.runs(losses))))


@pytest.mark.parametrize(
    ("margin", "word"), [("0", "better than chance"), ("0.2", "no difference")]
)
def test_the_margin_of_the_configuration_decides(plant: Any, margin: str, word: str) -> None:
    losses = {"scale=sqrt": SQRT, "scale=none": shifted(-0.1)}
    runs = [
        plant.run(name, seed, loss, margin__relative="0", margin__absolute=margin)
        for name, by_seed in losses.items()
        for seed, loss in enumerate(by_seed)
    ]
    answer = make_answer(make_grid(runs))
    assert word in answer.sentences[1]
    assert ("(margin.absolute)" in answer.sentences[1]) == (margin == "0.2")


def test_nobody_is_best_where_a_third_has_a_lower_mean_over_fewer_seeds(plant: Any) -> None:
    losses = {
        "scale=sqrt": (0.20, 0.22, 0.60, 0.62),
        "scale=folded": (0.10, 0.12, 0.50, 0.52),
        "scale=none": (0.15, 0.17),
    }
    answer = make_answer(make_grid(plant.runs(losses)))
    assert answer.best is None
    assert answer.sentences[0] == (
        "Nobody is named best: scale=none has the lowest mean over all its runs, 0.16 against 0.31 "
        "of scale=folded, but not over the 2 seeds that are compared."
    )


def test_the_best_of_rates_alone_is_marked_at_an_end_and_no_other_is(plant: Any) -> None:
    end = "The best of all runs is at the end of what was tried (lr=0.1): its optimum may lie"
    losses = {"lr=0.1": SQRT, "lr=0.01": shifted(0.3), "lr=0.001": shifted(0.5)}
    assert end in words(make_answer(make_grid(plant.runs(losses))))
    # The next best is at an end, the best is not.
    losses = {"lr=0.1": shifted(0.3), "lr=0.01": SQRT, "lr=0.001": shifted(0.5)}
    assert "at the end" not in words(make_answer(make_grid(plant.runs(losses))))


def test_swept_values_of_unequal_grids_are_chosen_on_other_seeds(plant: Any) -> None:
    losses = {
        "scale=none lr=0.1": (0.1, 0.40, 0.1, 0.42, 0.1, 0.41),
        "scale=none lr=0.2": (0.2, 0.1, 0.2, 0.1, 0.2, 0.1),
        "scale=sqrt lr=0.1": (0.5, 0.3, 0.5, 0.3, 0.5, 0.3),
    }
    answer = make_answer(make_grid(plant.runs(losses)))
    # Chosen on seeds 0, 2, 4: the first, which is the worse on 1, 3, 5; over all the second is.
    test = stats.ttest_rel((0.40, 0.42, 0.41), (0.3, 0.3, 0.3))
    low, high = test.confidence_interval(0.95)
    assert answer.best is None
    assert answer.sentences[:2] == (
        "Nobody is named best: scale=none lr=0.2 has the lowest mean over all its runs, 0.15 "
        "against 0.4 of scale=sqrt lr=0.1, but not over the 3 seeds that are compared.",
        "scale=none lr=0.1 against scale=sqrt lr=0.1: the difference is +0.11 (95 % interval "
        f"{low:.4g} to {high:.4g}, paired t, 3 seeds, the best chosen on others): worse than "
        "chance explains.",
    )
