"""What was asked for on the command line: names for runs, and checks before anything starts."""

import contextlib
import operator
import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString
from hydra.errors import HydraException, OverrideParseException

from attnscale.attention.scale import SCALES, scale_name
from attnscale.config.build import shortened
from attnscale.tracking.names import rounded

MAX_NAME = 120
NEEDED = {
    "attention.qk_clip_alpha": "attention.qk_clip",
    "trainer.gradient_clip_algorithm": "trainer.gradient_clip_val",
}
"""Keys without effect while another is null; on the command line they are a mistake then."""


def parse(overrides: Iterable[str]) -> list[Override]:
    """Parse overrides in Hydra's grammar.

    Raises:
        ValueError: If one does not parse.
    """
    try:
        return list(OverridesParser.create().parse_overrides(list(overrides)))
    except OverrideParseException as error:
        raise ValueError(in_words(error)) from error


def quoted(value: str) -> str:
    """Return a text as a quoted value of Hydra's grammar: a backslash is one, but before ``"``."""
    return '"' + re.sub(r'(\\*)("|$)', lambda m: 2 * m[1] + ('\\"' if m[2] else ""), value) + '"'


def in_words(error: OverrideParseException) -> str:
    """Return what a person should write for an override that is not in Hydra's grammar."""
    key, _, value = error.override.partition("=")
    # Of a sweep each value is quoted.
    text = f"{key}={','.join(map(quoted, value.split(',')))}"
    try:
        OverridesParser.create().parse_override(text)
    except HydraException:
        return " ".join(str(error).split())
    return f"{error.override}: is not in Hydra's grammar; write {shlex.quote(text)}"


def listed(override: Override) -> list[Any]:
    """Return the values that an override can take; nothing for an interval, which has no list."""
    if not override.is_sweep_override():
        return [override.value()]
    try:
        values = list(override.sweep_iterator())
    except HydraException:
        return []
    return [value.text if isinstance(value, QuotedString) else value for value in values]


def allowed(arguments: Iterable[str]) -> tuple[str, ...]:
    """Return the packages of ``allow=[...]`` on a command line.

    What a person typed is asked here, and not the composed value nor Hydra's list of overrides: a
    file can set both.

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


def check(overrides: Iterable[str], config: Any) -> None:
    """Check what Hydra cannot: names of scale modes, and options that nobody uses.

    Args:
        overrides: Overrides of the launch, sweeps included.
        config: The configuration as it is without the overrides of the sweep, read by attribute.

    Raises:
        ValueError: Naming the key, the value and what is allowed.
    """
    parsed = parse(overrides)
    named = [o for o in parsed if o.key_or_group == "attention.scale"]
    scales = [value for override in named for value in listed(override)]
    if not named:
        scales = [config.attention.scale]
    open_ended = any(o.is_sweep_override() and not listed(o) for o in named)
    used, named_keys = set(), {o.key_or_group for o in parsed}
    for scale in scales:
        value = scale if isinstance(scale, int | float | None) else str(scale)
        if isinstance(value, str) and value not in SCALES:
            with contextlib.suppress(ValueError):
                value = float(value)
        used.add(scale_name(value))
    for override in parsed:
        option = re.fullmatch(r"attention\.options\.([^.]+)(\..+)?", override.key_or_group)
        if option and option[1] not in used and not open_ended:
            raise ValueError(
                f"{override.input_line}: has no effect, attention.scale is "
                f"{', '.join(sorted(used))} here; leave it out or choose that mode"
            )
        needed = NEEDED.get(override.key_or_group)
        if needed and operator.attrgetter(needed)(config) is None and needed not in named_keys:
            raise ValueError(f"{override.input_line}: has no effect while {needed} is null")


def describe(overrides: Iterable[str], swept: Sequence[str]) -> str:
    """Return a short name such as ``scale=none d_k=64``: a job's overrides of what is swept."""
    parts = []
    for override in parse(overrides):
        if override.key_or_group not in swept:
            continue
        short = override.key_or_group.rpartition(".")[2]
        _, equals, text = (override.input_line or "").partition("=")
        parts.append(f"{short}={rounded(text)}" if equals else f"~{short}")
    return shortened(" ".join(parts), MAX_NAME)


def swept_keys(overrides: Iterable[str], parameters: Iterable[str]) -> list[str]:
    """Return the keys that a sweep varies, those of ``hydra.sweeper.params`` included."""
    return [*(o.key_or_group for o in parse(overrides) if o.is_sweep_override()), *parameters]
