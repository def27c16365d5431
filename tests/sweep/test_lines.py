"""What a person sees of jobs side by side."""

from typing import Any

import pytest

from attnscale.experiment.result import Result
from attnscale.sweep.lines import _line, outcome_line
from attnscale.sweep.state import Job

FIGURES = {
    "epoch": 3,
    "epochs": 20,
    "losses": {"train": 0.123456, "val": 12.0},
    "rate": 1234.5,
    "seconds_left": 210.0,
}


@pytest.mark.parametrize(
    ("figures", "line"),
    [
        ({}, "lr=0.1"),
        (FIGURES, "lr=0.1  epoch 3/20  train 0.1235  val 12  1.23e+03 steps/s  3.5 min left"),
        ({"epoch": 0, "epochs": None, "rate": 0.0}, "lr=0.1  epoch 0"),
        ({"rate": 41.75, "seconds_left": 0.0}, "lr=0.1  41.8 steps/s  0 s left"),
    ],
)
def test_a_live_line_has_what_is_known(figures: dict[str, Any], line: str) -> None:
    assert _line("lr=0.1", figures) == line


def test_a_long_name_is_cut() -> None:
    assert _line("n" * 41, {}) == "n" * 39 + "…"


@pytest.mark.parametrize(
    ("job", "line"),
    [
        (
            Job(index=0, name="lr=0.1", status="FINISHED", result=Result(objective=0.123456)),
            "lr=0.1 finished, best loss 0.1235",
        ),
        (
            Job(index=1, name="lr=9", status="LOST", error="ended by signal 11 (SIGSEGV)\nmore"),
            "lr=9 lost: ended by signal 11 (SIGSEGV)",
        ),
        (Job(index=2, name="lr=3", status="KILLED"), "lr=3 killed: no reason"),
    ],
)
def test_an_outcome_is_a_line(job: Job, line: str) -> None:
    assert outcome_line(job) == line
