"""Checks of single values, with errors that name the key, the value and what is allowed."""

import math
from collections.abc import Iterable
from pathlib import Path


def check_choice(key: str, value: str | None, allowed: Iterable[str | None]) -> str:
    """Return a word, or raise a ValueError if it is none of those that are allowed."""
    words = ["null" if word is None else word for word in allowed]
    word = "null" if value is None else value
    if word not in words:
        raise ValueError(f"{key}={word}: allowed are {', '.join(words)}")
    return word


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


def check_share(key: str, value: float | None) -> None:
    """Raise a ValueError if a number is outside [0, 1); None passes."""
    if value is not None and not 0.0 <= value < 1.0:
        raise ValueError(f"{key}={value}: must be at least 0 and below 1")


def check_alternative(first: str, value: object, second: str, other: object) -> None:
    """Raise a ValueError unless exactly one of two keys is set."""
    if (value is None) == (other is None):
        raise ValueError(f"{first}={value}, {second}={other}: set one and leave the other null")


def check_finite(key: str, value: float) -> None:
    """Raise a ValueError if a number is negative or not finite."""
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{key}={value}: must be finite and at least 0")
