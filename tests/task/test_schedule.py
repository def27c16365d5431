import math

import pytest

from attnscale.task.settings import SCHEDULES, Schedule, make_schedule


def made(name: str, warmup: int, total: int | None = None) -> Schedule:
    schedule = make_schedule(name, warmup=warmup, total=total)
    assert schedule is not None
    return schedule


@pytest.mark.parametrize("total", [None, 100])
def test_constant_without_warmup_is_no_schedule(total: int | None) -> None:
    assert make_schedule("constant", warmup=0, total=total) is None


@pytest.mark.parametrize("total", [None, 100])
def test_constant_warms_up_linearly(total: int | None) -> None:
    schedule = made("constant", 4, total)
    assert [schedule(t) for t in range(7)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0]


def test_cosine_warms_up_and_falls_to_zero() -> None:
    schedule = made("cosine", 4, 12)
    assert [schedule(t) for t in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    for t in range(4, 13):
        assert schedule(t) == pytest.approx(math.cos(math.pi * (t - 4) / 16) ** 2, abs=1e-12)
    assert schedule(8) == pytest.approx(0.5)
    assert schedule(12) == pytest.approx(0, abs=1e-12)
    assert schedule(1000) == pytest.approx(0, abs=1e-12)


def test_cosine_without_warmup_starts_at_one() -> None:
    schedule = made("cosine", 0, 10)
    assert schedule(0) == 1.0
    assert schedule(5) == pytest.approx(0.5)


@pytest.mark.parametrize("total", [1, 4])
def test_cosine_that_ends_in_its_warmup_is_finite(total: int) -> None:
    schedule = made("cosine", 4, total)
    assert [schedule(t) for t in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert all(0 <= schedule(t) <= 1 for t in range(4, 20))


@pytest.mark.parametrize("warmup", [1, 4, 4000])
def test_inverse_sqrt_is_the_rate_of_the_paper(warmup: int) -> None:
    schedule = made("inverse_sqrt", warmup)
    for step in (1, 2, warmup, warmup + 1, 3 * warmup, 100 * warmup):
        rate = min(step**-0.5, step * warmup**-1.5)
        assert schedule(step - 1) == pytest.approx(rate * math.sqrt(warmup), rel=1e-12)
    assert schedule(warmup - 1) == 1.0


def test_inverse_sqrt_without_warmup_falls_from_one() -> None:
    schedule = made("inverse_sqrt", 0)
    assert [schedule(t) for t in (0, 3, 99)] == pytest.approx([1.0, 0.5, 0.1])


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("warmup", [1, 3, 17])
def test_every_schedule_peaks_at_one_when_it_has_warmed_up(name: str, warmup: int) -> None:
    schedule = made(name, warmup, 50)
    factors = [schedule(t) for t in range(60)]
    assert max(factors) == 1.0 == factors[warmup - 1]
    assert min(factors) >= 0
    assert factors[:warmup] == sorted(factors[:warmup])
    assert factors[warmup:] == sorted(factors[warmup:], reverse=True)


def test_refuses_an_unknown_name() -> None:
    with pytest.raises(
        ValueError,
        match=r"^optimizer\.schedule=linear: allowed are constant, cosine, inverse_sqrt$",
    ):
        make_schedule("linear", warmup=0, total=None)


@pytest.mark.parametrize("name", SCHEDULES)
def test_refuses_a_negative_warmup(name: str) -> None:
    with pytest.raises(ValueError, match=r"^optimizer\.warmup_steps=-1: must be at least 0$"):
        make_schedule(name, warmup=-1, total=10)


def test_refuses_a_cosine_without_an_end() -> None:
    with pytest.raises(ValueError, match=r"^optimizer\.schedule=cosine: .*trainer\.max_epochs"):
        make_schedule("cosine", warmup=0, total=None)
