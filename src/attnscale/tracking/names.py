"""Names and values that MLflow takes.

MLflow allows letters, digits, ``_ - . /``, and space in a name (``:`` not everywhere), up to 250
characters. Any other character c becomes ``__uXXXX__`` with its code in hexadecimal; text that
already looks like this is escaped too, so two different names never become one.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

LONGEST_NAME = 250
LONGEST_VALUE = 6000
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_\-. /]")
_LOOKS_ESCAPED = re.compile(r"_(?=_u)")


def safe_name(name: str) -> str:
    """Return a name that MLflow takes; different names stay different."""
    escaped = _LOOKS_ESCAPED.sub("__u005f__", name)
    escaped = _FORBIDDEN.sub(lambda found: f"__u{ord(found[0]):04x}__", escaped)
    # A name must not look like a path that leads elsewhere.
    parts = [
        f"__u002e__{part[1:]}" if part == "." or part.startswith("..") else part or "__u002f__"
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
        for part, start in enumerate(range(0, max(1, len(text)), LONGEST_VALUE), start=1):
            name = safe_name(key if part == 1 else f"{key}/{part}")
            while name in made:
                name = safe_name(f"{name}'")
            made[name] = text[start : start + LONGEST_VALUE]
    return made
