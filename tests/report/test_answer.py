"""The sentences of a report, against SciPy's own tests of the planted numbers."""

import math
import re
from typing import Any

import numpy as np
import pytest
from scipy import stats

from attnscale.analysis.comparison import verdict
from attnscale.analysis.settings import make_grid
from attnscale.report.answer import make_answer
from attnscale.report.comparisons import compare_settings

SQRT = (0.50, 0.52, 0.47, 0.51, 0.49)
NOISE = (0.03, -0.02, 0.01, -0.01, -0.015)


def shifted(by: float) -> tuple[float, ...]:
    return tuple(a + by + e for a, e in zip(SQRT, NOISE, strict=True))


def words(answer: Any) -> str:
    return "\n".join(answer.sentences)


def detectable(error: float, df: float, family: int = 1) -> float:
    """Return the difference that is found in 80 % of draws: by bisection over its power."""
    quantile, low, high = stats.t.ppf(1 - 0.025 / family, df), 0.0, 1e3
    for _ in range(80):
        middle = (low + high) / 2
        enough = stats.nct.sf(quantile, df, middle) > 0.8
        low, high = (low, middle) if enough else (middle, high)
    return low * error


@pytest.mark.parametrize(
    ("by", "word"),
    [
        (-0.10, "better than chance explains"),
        (-0.02, "within noise"),
        (0.02, "within noise"),
        (0.10, "worse than chance explains"),
    ],
)
def test_two_settings_with_the_same_seeds(plant: Any, by: float, word: str) -> None:
    none = shifted(by)
    answer = make_answer(make_grid(plant.runs({"scale=sqrt": SQRT, "scale=none": none})))
    lower = "none" if by < 0 else "sqrt"
    best = none if by < 0 else SQRT
    mean, spread = float(np.mean(best)), float(np.std(best, ddof=1))
    assert answer.sentences[0] == (
        f"Lowest mean of the best validation loss: scale={lower}, {mean:.4g} ± {spread:.2g} "
        "(5 seeds)."
    )
    # Whichever is best, the sentence says which setting the difference is of.
    test = stats.ttest_rel(none, SQRT)
    low, high = test.confidence_interval(0.95)
    subject = "Against scale=sqrt" if by < 0 else "scale=none against scale=sqrt:"
    error = float(np.std(np.subtract(none, SQRT), ddof=1)) / math.sqrt(5)
    power = (
        f"; a difference of {detectable(error, 4):.4g} would be found in 80 % of such sweeps"
        if word == "within noise"
        else ""
    )
    assert answer.sentences[1] == (
        f"{subject} the difference is {np.mean(none) - np.mean(SQRT):+.4g} "
        f"(95 % interval {low:.4g} to {high:.4g}, paired t, 5 seeds): {word}{power}."
    )
    assert (test.pvalue < 0.05) == (word != "within noise")
    assert len(answer.sentences) == 2
    (only,) = answer.comparisons
    assert only.difference.p_value == pytest.approx(test.pvalue)
    assert answer.headline is only


def test_other_seeds_are_compared_by_welch(plant: Any) -> None:
    none = {10: 0.21, 11: 0.32, 12: 0.25}
    answer = make_answer(make_grid(plant.runs({"scale=sqrt": SQRT, "scale=none": none})))
    test = stats.ttest_ind(list(none.values()), SQRT, equal_var=False)
    low, high = test.confidence_interval(0.95)
    value = np.mean(list(none.values())) - np.mean(SQRT)
    assert answer.sentences[1] == (
        f"Against scale=sqrt the difference is {value:+.4g} (95 % interval {low:.4g} to "
        f"{high:.4g}, Welch t, 3 and 5 seeds): better than chance explains."
    )


def test_several_settings_are_one_family(plant: Any) -> None:
    losses = {
        "scale=sqrt": SQRT,
        "scale=none": shifted(-0.2),
        "scale=inverse": shifted(0.2),
        # Beyond 95 % alone, within noise of four comparisons.
        "scale=cosine": shifted(0.03),
        "scale=softcap": shifted(-0.03),
    }
    answer = make_answer(make_grid(plant.runs(losses)))
    tests = {name: stats.ttest_rel(values, SQRT) for name, values in losses.items()}
    assert tests["scale=cosine"].pvalue < 0.05
    for comparison in answer.comparisons:
        alone = tests[comparison.setting.label].confidence_interval(0.95)
        interval = comparison.difference.interval
        assert interval is not None
        assert (interval.low, interval.high) == pytest.approx(tuple(alone))
    low, high = tests["scale=none"].confidence_interval(0.95)
    assert (
        f"(95 % interval {low:.4g} to {high:.4g}, paired t, 5 seeds, "
        f"Holm p {4 * tests['scale=none'].pvalue:.2g} of 4 comparisons): better than chance"
    ) in answer.sentences[1]
    assert answer.sentences[2:] == (
        "Also beyond noise, each against its own sqrt: scale=inverse worse (+0.199).",
        "Within noise of their own sqrt: scale=cosine, scale=softcap.",
    )
    adjusted = {c.setting.label: c.difference.p_adjusted for c in answer.comparisons}
    smaller = min(tests[name].pvalue for name in ("scale=cosine", "scale=softcap"))
    assert adjusted["scale=softcap"] == pytest.approx(2 * smaller)


def test_each_setting_has_the_sqrt_of_its_own_size(plant: Any) -> None:
    losses = {
        "scale=sqrt d_k=8": (0.5, 0.6),
        "scale=none d_k=8": (0.4, 0.5),
        "scale=sqrt d_k=64": (0.8, 0.9),
        "scale=none d_k=64": (0.9, 1.1),
        "scale=none d_k=512": (0.3, 0.4),
    }
    made = compare_settings(make_grid(plant.runs(losses)))
    assert {c.setting.label: c.reference.label for c in made} == {
        "scale=none d_k=8": "scale=sqrt d_k=8",
        "scale=none d_k=64": "scale=sqrt d_k=64",
    }
    values = {c.setting.values["model.d_k"]: c.difference.value for c in made}
    assert values == pytest.approx({"8": -0.1, "64": 0.15})


def test_without_sqrt_the_best_is_compared_with_the_next(plant: Any) -> None:
    losses = {"lr=0.1": shifted(0.5), "lr=0.01": SQRT, "lr=0.001": shifted(0.1)}
    answer = make_answer(make_grid(plant.runs(losses)))
    test = stats.ttest_rel(SQRT, losses["lr=0.001"])
    low, high = test.confidence_interval(0.95)
    assert answer.comparisons == ()
    assert answer.best is not None
    assert answer.best.label == "lr=0.01"
    assert f"Against lr=0.001 the difference is {-0.099:+.4g} " in words(answer)
    assert f"(95 % interval {low:.4g} to {high:.4g}, paired t, 5 seeds): better" in words(answer)


def test_one_seed_is_said_and_has_no_interval(plant: Any) -> None:
    answer = make_answer(make_grid(plant.runs({"scale=sqrt": (0.5,), "scale=none": (0.375,)})))
    assert answer.sentences == (
        "Lowest mean of the best validation loss: scale=none, 0.375 (one seed).",
        "Against scale=sqrt the difference is -0.125, with one seed: "
        "nothing can be said about chance.",
    )
    (only,) = answer.comparisons
    assert verdict(only.difference) == "one seed"
    assert not re.search("±|interval|noise|better|worse", words(answer))


def test_one_seed_on_one_side_does_not_count_in_the_family(plant: Any) -> None:
    losses = {"scale=sqrt": SQRT, "scale=none": shifted(-0.1), "scale=cosine": (0.2,)}
    answer = make_answer(make_grid(plant.runs(losses)))
    by_label = {c.setting.label: c.difference for c in answer.comparisons}
    assert by_label["scale=cosine"].interval is None
    assert by_label["scale=none"].family == 1
    assert "nothing can be said about chance" in answer.sentences[1]
    assert "Beyond noise, each against its own sqrt: scale=none better" in words(answer)


def test_what_has_no_result_is_named(plant: Any) -> None:
    runs = [
        *plant.runs({"scale=sqrt d_k=8": SQRT, "scale=none d_k=8": shifted(0.1)}),
        plant.run("scale=sqrt d_k=64", 0, None, outcome="failed"),
        plant.run("scale=sqrt d_k=64", 1, None, outcome="failed"),
        plant.run("scale=none d_k=8", 7, 0.0, outcome="killed"),
        plant.run("scale=sqrt d_k=8", 8, 0.0, outcome="running"),
    ]
    answer = make_answer(make_grid(runs))
    assert answer.sentences[2:] == (
        "2 of 14 runs failed: scale=sqrt d_k=64 (2).",
        "1 of 14 runs was killed: scale=none d_k=8 (1).",
        "1 of 14 runs is still running: scale=sqrt d_k=8 (1).",
        "No run for scale=none d_k=64.",
    )
    # Their losses so far count nowhere.
    assert answer.sentences[0].endswith("(5 seeds).")


@pytest.mark.parametrize("state", ["diverged", "failed", "killed", "running"])
def test_no_result_at_all(plant: Any, state: str) -> None:
    runs = [plant.run(f"scale={s}", loss=None, outcome=state) for s in ("sqrt", "none")]
    answer = make_answer(make_grid(runs))
    assert answer.best is None
    assert answer.headline is None
    assert answer.sentences[0] == "No run has finished, so there is nothing to compare yet."
    assert answer.sentences[1].startswith("2 of 2 runs ")
    assert "scale=none (1), scale=sqrt (1)" in answer.sentences[1]


def test_no_runs() -> None:
    answer = make_answer(make_grid([]))
    assert (answer.best, answer.sentences) == (None, ("There is no run here.",))


def test_half_a_sweep(plant: Any) -> None:
    runs = [
        *plant.runs({"scale=sqrt": (0.5, 0.7)}),
        plant.run("scale=none", 0, None, outcome="running"),
    ]
    answer = make_answer(make_grid(runs))
    assert answer.sentences == (
        "Only scale=sqrt has results: best validation loss 0.6 (2 seeds).",
        "1 of 3 runs is still running: scale=none (1).",
    )
    assert answer.best is not None


def test_long_lists_are_cut(plant: Any) -> None:
    runs = [plant.run(f"d_k={size}", loss=None, outcome="failed") for size in range(9)]
    (_, line) = make_answer(make_grid(runs)).sentences
    assert line.startswith("9 of 9 runs failed: d_k=0 (1), ")
    assert line.endswith("d_k=5 (1), ….")


def test_the_loss_at_the_end_is_told_beside_the_best(plant: Any) -> None:
    runs = [
        plant.run(f"scale={scale}", seed, loss, metrics={"val/loss": loss + 0.25 * seed})
        for scale, loss in (("sqrt", 0.5), ("none", 0.25))
        for seed in range(3)
    ]
    assert make_answer(make_grid(runs)).sentences[0] == (
        "Lowest mean of the best validation loss: scale=none, 0.25 ± 0 (3 seeds; 0.5 at the last "
        "epoch)."
    )
