"""What is no difference that matters: the largest of three."""

import numpy as np
import pytest

from attnscale.analysis.margin import make_margin

SQRT = {(0, 0): 0.50, (1, 1): 0.52, (2, 2): 0.48}


def test_two_per_cent_of_the_mean_if_nothing_else_is_said() -> None:
    margin = make_margin(SQRT, {})
    assert margin is not None
    assert margin.value == pytest.approx(0.01)
    assert margin.source == "2 % of sqrt's mean"


@pytest.mark.parametrize(
    ("parameters", "value", "source"),
    [
        ({"margin.relative": "0.1"}, 0.05, "10 % of sqrt's mean"),
        ({"margin.absolute": "0.3"}, 0.3, "margin.absolute"),
        ({"margin.absolute": "1e-9"}, 0.01, "2 % of sqrt's mean"),
    ],
)
def test_the_configuration_of_the_runs_sets_it(
    parameters: dict[str, str], value: float, source: str
) -> None:
    margin = make_margin(SQRT, parameters)
    assert margin is not None
    assert margin.value == pytest.approx(value)
    assert margin.source == source


def test_the_noise_of_the_control_makes_it_wider() -> None:
    control = {(0, 0): 0.56, (1, 1): 0.50, (2, 2): 0.50, (7, 7): 9.0}
    margin = make_margin(SQRT, {}, control)
    assert margin is not None
    assert margin.value == pytest.approx(2 * float(np.std([0.06, -0.02, 0.02], ddof=1)))
    assert margin.source == "2 standard deviations of none_equiv − sqrt"


@pytest.mark.parametrize("control", [{(0, 0): 0.9}, {(8, 8): 0.1, (9, 9): 0.9}])
def test_a_control_that_shares_too_little_says_nothing(
    control: dict[tuple[int, int], float],
) -> None:
    margin = make_margin(SQRT, {}, control)
    assert margin is not None
    assert margin.value == pytest.approx(0.01)


def test_no_margin_where_it_would_be_zero() -> None:
    assert make_margin(SQRT, {"margin.relative": "0"}) is None
