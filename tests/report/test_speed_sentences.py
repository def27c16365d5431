"""Who gets there sooner, in the first sentences."""

from typing import Any

import pytest

from attnscale.analysis.settings import make_grid
from attnscale.report.answer import make_answer
from tests.support.runs import trained_run

SEEDS = range(4)


def run(scale: str, seed: int, steps: int, *, end: float = 0.1) -> Any:
    """Return a run that falls on a straight line, and stays."""
    curve = [(steps, end), (1000, end)]
    return trained_run(scale=scale, seed=seed, loss=end, start_loss=1.1, curve=curve)


def speed(runs: list[Any]) -> list[str]:
    sentences = make_answer(make_grid(runs)).sentences
    return [text for text in sentences if text.startswith("Steps to 90 %")]


@pytest.mark.parametrize(("times", "words"), [(3, "scale=none 3.00 times"), (0.5, "0.50 times")])
def test_slower_and_faster_are_told(times: float, words: str) -> None:
    pairs = [
        run(scale, s, round((100 + 10 * s) * f))
        for scale, f in (("sqrt", 1), ("none", times))
        for s in SEEDS
    ]
    (text,) = speed(pairs)
    assert words in text


def test_what_chance_explains_is_not_told() -> None:
    steps = {"sqrt": (100, 120, 90, 110), "none": (120, 100, 100, 105)}
    assert speed([run(scale, s, steps[scale][s]) for scale in steps for s in SEEDS]) == []


def test_who_does_not_get_there_takes_at_least_what_it_trained_for() -> None:
    runs = [run("sqrt", s, 100 + s) for s in SEEDS] + [run("none", s, 100, end=0.5) for s in SEEDS]
    (text,) = speed(runs)
    # A straight line to 90 % of the way, of 100 steps and a few, against all 1,000.
    assert "scale=none at least 10.9" in text


def test_many_comparisons_are_one_family() -> None:
    steps = {"sqrt": (100, 120, 90, 110), "none": (107, 124, 96, 121)}
    runs = [run(scale, s, steps[scale][s]) for scale in steps for s in SEEDS]
    assert len(speed(runs)) == 1
    others = [run(f"0.{i}", s, steps["sqrt"][s - 1]) for i in range(1, 7) for s in SEEDS]
    assert speed([*runs, *others]) == []
