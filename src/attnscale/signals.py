"""Every end is an end: what Ctrl-C, TERM, HUP and USR1 do to a run.

A signal outside training ends the run at once, as :class:`Stopped`. In training it is a request
that the loop answers after the step it is in, so that the state that is saved then is whole; a
second signal, or a step that takes longer than :data:`GRACE_SECONDS`, ends the run at once.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
"""Signals that end a run; a system may lack some. USR1 is the warning of Slurm's time limit."""

GRACE_SECONDS = 10.0


class Stopped(KeyboardInterrupt):
    """A run is to end, by a signal.

    Attributes:
        number: The signal's number.
        between_steps: Whether training was interrupted where its state is whole.
    """

    def __init__(self, number: int, *, between_steps: bool = False) -> None:
        super().__init__(signal.Signals(number).name)
        self.number, self.between_steps = number, between_steps


def stopped_status(stop: KeyboardInterrupt) -> int:
    """Return the exit status of a program that was stopped, as a shell would name it."""
    return 128 + (stop.number if isinstance(stop, Stopped) else signal.SIGINT)


def interrupt(number: int) -> None:
    """Send a signal to this process's main thread, which it also wakes where it waits."""
    main = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main is not None:
        signal.pthread_kill(main, number)
    else:
        signal.raise_signal(number)


class StopRequest:
    """The signal that came while nobody was to be interrupted.

    Attributes:
        number: Its number, or None.
    """

    def __init__(self) -> None:
        """Start without a signal."""
        self.number: int | None = None
        self._deferred = 0
        self._timer: threading.Timer | None = None

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let a signal be a request inside the block; one that nobody answered ends it."""
        self._deferred += 1
        try:
            yield
        finally:
            self._deferred -= 1
        if self.number is not None and not self._deferred:
            self._end(self.number)

    def answer(self, number: int | None = None) -> None:
        """End the run between two steps, if a signal came.

        Args:
            number: The signal that another process of the run got; None for that of this one.

        Raises:
            Stopped: If so.
        """
        number = self.number if number is None else number
        if number is not None:
            self._end(number, between_steps=True)

    def take(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self._deferred and self.number is None:
            self.number = number
            self._timer = threading.Timer(GRACE_SECONDS, interrupt, [number])
            self._timer.daemon = True
            self._timer.start()
            return
        self._end(number)

    def _end(self, number: int, *, between_steps: bool = False) -> NoReturn:
        if self._timer is not None:
            self._timer.cancel()
        # Once is enough: another signal must not interrupt the writing of the record.
        for name in NAMES:
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), signal.SIG_IGN)
        raise Stopped(number, between_steps=between_steps)


STOP = StopRequest()
"""That of this process."""


def end_on_signals() -> None:
    """Let the signals end this process's run; one that was ignored at the start stays ignored."""
    STOP.number = None
    for name in NAMES:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, STOP.take)
