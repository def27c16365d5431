"""Names and values that MLflow takes.

MLflow allows letters, digits, ``_ - . /``, space and ``:`` in a name, up to 250 characters. Any
other character c becomes ``_uXXXX_`` with its code in hexadecimal; text that already looks like
this is escaped too, so two different names never become one.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

LONGEST_NAME = 250
LONGEST_VALUE = 6000
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_\-. /]")
_LOOKS_ESCAPED = re.compile(r"_(?=u[0-9a-f]{4,6}_)")


def safe_name(name: str) -> str:
    """Return a name that MLflow takes; different names stay different."""
    escaped = _LOOKS_ESCAPED.sub("_u005f_", name)
    escaped = _FORBIDDEN.sub(lambda found: f"_u{ord(found[0]):04x}_", escaped)
    # A name must not look like a path that leads elsewhere.
    parts = [
        f"_u002e_{part[1:]}" if part in {".", ".."} else part or "_u002f_"
        for part in escaped.split("/")
    ]
    escaped = "/".join(parts)
    if len(escaped) <= LONGEST_NAME:
        return escaped
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{escaped[: LONGEST_NAME - 17]}_{digest}"


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted key, text) of every value of a nested configuration.

    Lists and empty mappings are one value each, as JSON.
    """
    for key, value in config.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{path}.")
        elif isinstance(value, str):
            yield path, value
        else:
            yield path, json.dumps(value, ensure_ascii=False)


def parameters(config: Mapping[str, Any]) -> dict[str, str]:
    """Return a configuration as MLflow parameters; a long text goes on in ``key/2``, uncut."""
    made: dict[str, str] = {}
    for key, text in flatten(config):
        name = safe_name(key)
        made[name] = text[:LONGEST_VALUE]
        for part, start in enumerate(range(LONGEST_VALUE, len(text), LONGEST_VALUE), start=2):
            made[f"{name}/{part}"] = text[start : start + LONGEST_VALUE]
    return made
