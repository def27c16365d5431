"""What makes two jobs the same: what they train on what, and not where or how they are run."""

import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

PLACE = (
    "allocator",
    "budget",
    "callbacks.progress",
    "checkpoint",
    "data.address",
    "data.cache",
    "data.dir",
    "folder",
    "margin",
    "report",
    "resume",
    "tags",
    "threads",
    "tracking",
    "trainer.accelerator",
    "trainer.default_root_dir",
    "trainer.devices",
    "trainer.enable_progress_bar",
    "trainer.num_nodes",
    "trainer.profiler",
    "trainer.strategy",
    "trust",
)
"""Keys that only say where and how a job is run, or how it is judged. What lies in ``data.dir`` has
a fingerprint of its own."""

SPLIT = re.compile(r"(train|val|test)")


def _without_place(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    left = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if name in PLACE:
            continue
        left[key] = _without_place(value, f"{name}.") if isinstance(value, Mapping) else value
    return left


def identity(values: Mapping[str, Any]) -> str:
    """Return a digest of a job's resolved configuration, without :data:`PLACE`."""
    text = json.dumps(_without_place(values), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def _digest(folder: Path, languages: frozenset[str]) -> str:
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        parts = path.name.removesuffix(".gz").split(".")
        if SPLIT.match(path.name) and path.is_file() and languages & set(parts[1:]):
            total.update(path.name.encode() + b"\0")
            total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:16]


def fingerprint(data: Mapping[str, Any]) -> str:
    """Return a digest of the files that a section ``data`` reads; empty if it reads none."""
    # What is downloaded into ``data.cache`` has a checksum in the code, and may come with the run.
    place = data.get("dir") or (data.get("cache") if data.get("address") is None else None)
    languages = frozenset(str(data[key]) for key in ("source", "target") if key in data)
    return _digest(Path(place).resolve(), languages) if place and Path(place).is_dir() else ""
