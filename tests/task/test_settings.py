"""How many optimizer steps an epoch and a run have."""

import pytest

from tests.task.toy import settings


@pytest.mark.parametrize(
    ("accumulate", "steps"), [(1, 10), (2, 5), (3, 4), (4, 3), (10, 1), (11, 1)]
)
def test_the_last_step_of_an_epoch_may_have_fewer_batches(accumulate: int, steps: int) -> None:
    assert settings(accumulate=accumulate).steps_per_epoch(10) == steps


@pytest.mark.parametrize(
    ("max_steps", "max_epochs", "total"),
    [
        (5, 3, 5),
        (20, 3, 9),
        (5, None, 5),
        (5, -1, 5),
        (-1, 3, 9),
        (0, 3, 0),
        (20, 0, 0),
        (-1, None, None),
        (-1, -1, None),
    ],
)
def test_a_run_ends_at_the_first_of_its_ends(
    max_steps: int, max_epochs: int | None, total: int | None
) -> None:
    """An epoch of 10 batches has 3 steps."""
    chosen = settings(accumulate=4, max_steps=max_steps, max_epochs=max_epochs)
    assert chosen.total_steps(10) == total
