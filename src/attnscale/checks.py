"""Checks of single values, with errors that name the key, the value and what is allowed."""

from collections.abc import Iterable
from pathlib import Path


def check_choice(key: str, value: str | None, allowed: Iterable[str]) -> None:
    """Raise a ValueError if a word is none of those that are allowed."""
    words = tuple(allowed)
    if value not in words:
        raise ValueError(f"{key}={value}: allowed are {', '.join(words)}")


def check_min(key: str, value: float | None, minimum: int = 1, *, or_else: str = "") -> None:
    """Raise a ValueError if a number is below the smallest that is allowed; None passes.

    Args:
        key: The configuration's key.
        value: What it is set to.
        minimum: The smallest number.
        or_else: What is allowed beside numbers, ``", or null"`` for example.
    """
    if value is not None and value < minimum:
        raise ValueError(f"{key}={value}: must be at least {minimum}{or_else}")


def check_writable(key: str, folder: Path) -> None:
    """Make a folder if it is not there, and raise a ValueError if no file can be made in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(f"{key}={folder}: cannot be written: {error.strerror}") from error
