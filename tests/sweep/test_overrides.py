"""Names of jobs and settings, from the numbers of a range."""

import pytest

from attnscale.analysis.settings import make_grid
from attnscale.sweep.overrides import describe
from attnscale.tracking.runs import Run


@pytest.mark.parametrize(
    ("override", "name"),
    [
        ("attention.scale=0.30000000000000004", "scale=0.3"),
        ("optimizer.lr=1e-3", "lr=1e-3"),
        ("optimizer.betas=[0.9,0.30000000000000004]", "betas=[0.9,0.3]"),
    ],
)
def test_a_job_is_named_by_the_number_that_was_meant(override: str, name: str) -> None:
    assert describe([override], [override.partition("=")[0]]) == name


def test_a_range_and_a_list_of_the_same_numbers_are_the_same_settings() -> None:
    texts = ("0.1", "0.30000000000000004", "0.3")
    runs = [
        Run.stored(run_id=text, parameters={"attention.scale": text}, metrics={}) for text in texts
    ]
    assert [setting.label for setting in make_grid(runs).settings] == ["scale=0.1", "scale=0.3"]
