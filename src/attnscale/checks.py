"""Checks of single values, with errors that name the key, the value and what is allowed."""

import math
from collections.abc import Iterable


def check_choice(key: str, value: str | None, allowed: Iterable[str | None]) -> None:
    """Raise a ValueError if a word is none of those that are allowed."""
    words = tuple(allowed)
    if value not in words:
        names = ("null" if word is None else word for word in words)
        raise ValueError(f"{key}={value}: allowed are {', '.join(names)}")


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
