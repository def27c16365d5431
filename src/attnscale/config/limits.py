"""Bounds of single values, written beside their types, and the check of a configuration by them.

They are asked before Lightning and MLflow are imported, so that a mistake is told in the time of
``--help``. The classes check their own arguments too, in the same words: they are used without a
configuration.
"""

from collections.abc import Callable, Mapping
from dataclasses import field, fields, is_dataclass
from datetime import timedelta
from typing import Any, get_type_hints

from attnscale.checks import check_choice, check_min

MISSING: Any = "???"
"""What OmegaConf reads as a value that must come from a file or the command line."""

Check = Callable[[str, Any], object]
"""Raises a ValueError that names the key, if a value is not allowed."""


def checked(check: Check) -> Any:
    """Return a field whose value must pass a check."""
    return field(default=MISSING, metadata={"check": check})


def at_least(minimum: int, or_else: str = "") -> Any:
    """Return a field for numbers from ``minimum``, or null where its type allows that."""
    return checked(lambda key, value: check_min(key, value, minimum, or_else=or_else))


def one_of(*words: str | None) -> Any:
    """Return a field for one of some words."""
    return checked(lambda key, value: check_choice(key, value, words))


def without_effect(value: object, why: str) -> Any:
    """Return a field that can only be what it is: what else it could be changes nothing here."""

    def check(key: str, other: object) -> None:
        if other != value and other is not None:
            raise ValueError(f"{key}={other}: has no effect, {why}; leave it out")

    return checked(check)


def check_batches(key: str, value: object) -> None:
    """Check a number of batches, or a fraction of them."""
    whole = isinstance(value, int) and value >= 0
    if not (value is None or whole or (isinstance(value, float) and 0 <= value <= 1)):
        raise ValueError(f"{key}={value}: must be an integer from 0, or a fraction 0.0 to 1.0")


def check_dev_run(key: str, value: object) -> None:
    """Check whether, and over how many batches, a run only tries everything once."""
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{key}={value}: must be true, false, or a number of batches")


def check_deterministic(key: str, value: object) -> None:
    """Check what PyTorch is told about algorithms that are not deterministic."""
    if not (value is None or isinstance(value, bool) or value == "warn"):
        raise ValueError(f"{key}={value}: allowed are true, false, warn")


def check_profiler(key: str, value: object) -> None:
    """Check a profiler: a name of Lightning's, or a mapping with a target."""
    names = ("simple", "advanced", "pytorch")
    if not (value is None or isinstance(value, Mapping) or value in names):
        raise ValueError(
            f"{key}={value}: allowed are {', '.join(names)}, or a mapping with _target_"
        )


def check_interval(key: str, value: float | None) -> None:
    """Check after how many batches, or which fraction of an epoch, to validate."""
    if value == 0:
        raise ValueError(
            f"{key}={value}: must be above 0; to validate never: trainer.limit_val_batches=0"
        )
    check_batches(key, value)


def check_duration(key: str, value: object) -> None:
    """Check a length of time: DD:HH:MM:SS, or arguments of ``datetime.timedelta``."""
    parts = value.split(":") if isinstance(value, str) else []
    try:
        if value is None or (isinstance(value, Mapping) and timedelta(**value) > timedelta()):
            return
    except TypeError:
        parts = []
    if len(parts) != 4 or not all(part.isdigit() for part in parts):
        raise ValueError(f"{key}={value}: must be DD:HH:MM:SS, or such as {{hours: 2}}")


def check_limits(
    values: Mapping[str, Any], kind: type, sections: Mapping[str, type], place: str = ""
) -> None:
    """Check each value of a configuration against the bound beside its type.

    Args:
        values: Plain values, as ``typed`` takes them.
        kind: The dataclass of these values.
        sections: ``_target_`` of a section to the dataclass of its keys.
        place: Where the values stand, for the message.

    Raises:
        ValueError: Naming the key, the value and what is allowed.
    """
    hints = get_type_hints(kind)
    for one in fields(kind):
        if one.name not in values:
            continue
        key, value = f"{place}.{one.name}" if place else one.name, values[one.name]
        if "check" in one.metadata:
            one.metadata["check"](key, value)
        if isinstance(value, Mapping):
            section = sections.get(str(value.get("_target_")), hints[one.name])
            if is_dataclass(section):
                check_limits(value, section, sections, key)  # type: ignore[arg-type]
