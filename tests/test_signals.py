"""What a signal does to a run: at once, or between two steps."""

import signal
import time
from collections.abc import Iterator

import pytest

from attnscale import signals
from attnscale.signals import NAMES, STOP, Stopped, end_on_signals, stopped_status

NUMBERS = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    # Whoever started the tests may ignore some, as nohup does.
    before = {number: signal.signal(number, signal.SIG_DFL) for number in NUMBERS}
    end_on_signals()
    yield
    if STOP._timer is not None:
        STOP._timer.cancel()
    STOP.number, STOP._timer, STOP._deferred = None, None, 0
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_ends_a_run_at_once_and_its_number_is_the_status(number: int) -> None:
    with pytest.raises(Stopped) as stopped:
        signal.raise_signal(number)
    assert not stopped.value.between_steps
    assert str(stopped.value) == signal.Signals(number).name
    assert stopped_status(stopped.value) == 128 + number


def test_a_bare_interrupt_counts_as_ctrl_c() -> None:
    assert stopped_status(KeyboardInterrupt()) == 130


def test_in_training_it_is_answered_between_two_steps() -> None:
    steps = []

    def train() -> None:
        with STOP.deferred():
            for step in range(5):
                STOP.answer()
                if step == 2:
                    signal.raise_signal(signal.SIGTERM)
                steps.append(step)

    with pytest.raises(Stopped) as stopped:
        train()
    assert steps == [0, 1, 2]
    assert stopped.value.between_steps
    assert stopped.value.number == signal.SIGTERM


def test_the_signal_of_another_process_is_answered_too() -> None:
    with pytest.raises(Stopped, match="SIGINT") as stopped, STOP.deferred():
        STOP.answer(signal.SIGINT)
    assert stopped.value.between_steps


def test_a_second_signal_ends_the_step() -> None:
    done = []

    def step() -> None:
        with STOP.deferred():
            signal.raise_signal(signal.SIGTERM)
            done.append("half")
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Stopped, match="SIGINT") as stopped:
        step()
    assert done == ["half"]
    assert not stopped.value.between_steps


def test_one_that_nobody_answers_ends_with_the_outermost_block() -> None:
    reached = []

    def train() -> None:
        with STOP.deferred():
            with STOP.deferred():
                signal.raise_signal(signal.SIGTERM)
                reached.append("inner")
            reached.append("outer")

    with pytest.raises(Stopped, match="SIGTERM") as stopped:
        train()
    assert reached == ["inner", "outer"]
    assert not stopped.value.between_steps


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="a wait cannot be interrupted")
def test_a_step_that_takes_too_long_is_ended_even_where_it_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signals, "GRACE_SECONDS", 0.02)

    def step() -> None:
        with STOP.deferred():
            signal.raise_signal(signal.SIGTERM)
            time.sleep(5)

    start = time.monotonic()
    with pytest.raises(Stopped, match="SIGTERM"):
        step()
    assert time.monotonic() - start < 2


def test_after_one_no_other_interrupts_the_record() -> None:
    with pytest.raises(Stopped):
        signal.raise_signal(signal.SIGTERM)
    for number in NUMBERS:
        signal.raise_signal(number)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="nohup is of Unix")
def test_what_was_ignored_at_the_start_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    end_on_signals()
    signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    with pytest.raises(Stopped):
        signal.raise_signal(signal.SIGTERM)
