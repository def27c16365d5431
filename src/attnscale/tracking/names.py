"""Names and values that MLflow takes.

MLflow allows letters, digits, ``_ - . /``, and space in a name (``:`` not everywhere), up to 250
characters. Any other character c becomes ``__uXXXX__`` with its code in hexadecimal; text that
already looks like this is escaped too, so two different names never become one.
"""

import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

MAX_NAME_LENGTH = 250
MAX_VALUE_LENGTH = 6000
NAMES = ("folder", "checkpoint", "tracking")
"""Keys of the root that say what a run is called, and where it and its record are."""

_FORBIDDEN = re.compile(r"[^A-Za-z0-9_\-. /]")
_EXCESS = re.compile(rf"(?<![\w./])\d+\.\d{{{sys.float_info.dig},}}(?:e[-+]?\d+)?(?![\w./])")
_LOOKS_ESCAPED = re.compile(r"_(?=_u)")


@lru_cache(maxsize=4096)
def safe_name(name: str) -> str:
    """Return a name that MLflow takes; different names stay different."""
    escaped = _LOOKS_ESCAPED.sub("__u005f__", name)
    escaped = _FORBIDDEN.sub(lambda match: f"__u{ord(match[0]):04x}__", escaped)
    # A name must not look like a path that leads elsewhere.
    parts = [
        f"__u002e__{part[1:]}" if part == "." or part.startswith("..") else part or "__u002f__"
        for part in escaped.split("/")
    ]
    escaped = "/".join(parts)
    if len(escaped) <= MAX_NAME_LENGTH:
        return escaped
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{escaped[: MAX_NAME_LENGTH - 17]}_{digest}"


def rounded(text: str) -> str:
    """Return a text with the decimals that a double holds: 0.30000000000000004 becomes 0.3.

    What is part of a word or of a path is left alone.
    """
    return _EXCESS.sub(lambda match: f"{float(match[0]):.{sys.float_info.dig}g}", text)


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
    """Return a configuration as MLflow parameters; a long text goes on in ``key/2``, uncut.

    The run's folder, under whatever key, and its names are left out: they differ between any two
    runs and mean nothing, so a comparison must not offer them. The run's tags have them.
    """
    texts: dict[str, str] = {}
    named = {key: value for key, value in config.items() if key not in NAMES}
    for key, text in flatten(named):
        if text == config.get("folder"):
            continue
        for part, start in enumerate(range(0, max(1, len(text)), MAX_VALUE_LENGTH), start=1):
            name = safe_name(key if part == 1 else f"{key}/{part}")
            while name in texts:
                name = safe_name(f"{name}'")
            texts[name] = text[start : start + MAX_VALUE_LENGTH]
    return texts
