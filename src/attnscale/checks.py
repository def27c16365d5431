"""Checks of single values, with errors that name the key, the value and what is allowed."""

from collections.abc import Iterable


def check_choice(key: str, value: str | None, allowed: Iterable[str]) -> str:
    """Return a word, or raise a ValueError if it is none of those that are allowed."""
    words = tuple(allowed)
    if value not in words:
        shown = "null" if value is None else value
        raise ValueError(f"{key}={shown}: allowed are {', '.join(words)}")
    return value


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
