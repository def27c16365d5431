"""What was asked for on the command line: names for runs, and checks before anything starts."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from attnscale.attention.scale import SCALES, scale_name

MAX_NAME = 120
_DULL = (
    "trainer.",
    "report",
    "tracking.",
    "hydra.",
    "callbacks.",
    "tags.",
    "folder",
    "checkpoint",
    "threads",
    "allow",
)


def parse(overrides: Iterable[str]) -> list[Override]:
    """Parse overrides in Hydra's grammar.

    Raises:
        ValueError: If one does not parse.
    """
    try:
        return list(OverridesParser.create().parse_overrides(list(overrides)))
    except HydraException as error:
        raise ValueError(" ".join(str(error).split())) from error


def _values(override: Override) -> list[Any]:
    """Return the values that an override can take; nothing for an interval, which has no list."""
    if not override.is_sweep_override():
        return [override.value()]
    try:
        return list(override.sweep_iterator())
    except HydraException:
        return []


def allowed(arguments: Iterable[str]) -> tuple[str, ...]:
    """Return the packages of ``allow=[...]`` on a command line.

    What a person typed is asked here, and not the composed value nor Hydra's list of overrides: a
    file can set both.

    Args:
        arguments: The command line's arguments.

    Raises:
        ValueError: If it is swept, or not a list of names.
    """
    lines = [text for text in arguments if re.match(r"\+{0,2}allow=", text)]
    for override in parse(lines[-1:]):
        packages = None if override.is_sweep_override() else override.value()
        if not isinstance(packages, list):
            raise ValueError(f"{override.input_line}: must be one list of packages, allow=[mine]")
        return tuple(str(package) for package in packages)
    return ()


def check(overrides: Iterable[str], composed_scale: object) -> None:
    """Check what Hydra cannot: names of scale modes, and options of modes that nobody uses.

    Args:
        overrides: Overrides of the launch, sweeps included.
        composed_scale: ``attention.scale`` as it is without the overrides of the sweep.

    Raises:
        ValueError: Naming the key, the value and what is allowed.
    """
    parsed = parse(overrides)
    named = [o for o in parsed if o.key_or_group == "attention.scale"]
    scales = [value for override in named for value in _values(override)]
    if not named:
        scales = [composed_scale]
    open_ended = any(o.is_sweep_override() and not _values(o) for o in named)
    used = set()
    for scale in scales:
        # A value of the sweep's grammar may be a quoted string, which prints as its text.
        value = scale if isinstance(scale, int | float) else str(scale)
        if isinstance(value, str) and value not in SCALES:
            value = _number(value)
        used.add(scale_name(value))
    for override in parsed:
        option = re.fullmatch(r"attention\.options\.([^.]+)(\..+)?", override.key_or_group)
        if option and option[1] not in used and not open_ended:
            raise ValueError(
                f"{override.input_line}: has no effect, attention.scale is "
                f"{', '.join(sorted(used))} here; leave it out or choose that mode"
            )


def _number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def _short(key: str) -> str:
    return key.lstrip("+~").rpartition(".")[2] or key


def describe(overrides: Iterable[str], swept: Iterable[str] | None = None) -> str:
    """Return a short name such as ``scale=none d_k=64``: what was swept, or else what was set.

    Args:
        overrides: A job's overrides.
        swept: Keys that the sweep varies; all but dull ones if not given.
    """
    keys = None if swept is None else set(swept)
    parts = []
    for override in parse(overrides):
        key = override.key_or_group
        if (keys is not None and key not in keys) or (keys is None and key.startswith(_DULL)):
            continue
        line = override.input_line or ""
        _, _, text = line.partition("=")
        parts.append(f"{_short(key)}={text}" if "=" in line else f"~{_short(key)}")
    name = " ".join(parts)
    return name if len(name) <= MAX_NAME else name[: MAX_NAME - 1] + "…"


def swept_keys(overrides: Iterable[str], parameters: Mapping[str, Any] | None = None) -> list[str]:
    """Return the keys that a sweep varies, those of ``hydra.sweeper.params`` included."""
    keys = [o.key_or_group for o in parse(overrides) if o.is_sweep_override()]
    return [*keys, *(parameters or {})]
