"""From the arrays that a run saved to its pictures."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attnscale.figures.attention import Histogram, Map, entropy, histograms, maps
from attnscale.figures.chart import Spec


def paths_in(arrays: Mapping[str, Any]) -> list[str]:
    """Return the attentions of a file of saved arrays, in order."""
    return [key.removeprefix("weights/") for key in arrays if key.startswith("weights/")]


def maps_in(arrays: Mapping[str, Any], example: int) -> list[Map]:
    """Return the maps of one example, padding cut off."""
    examples = []
    for path in paths_in(arrays):
        queries = json.loads(str(arrays[f"queries/{path}"]))[example]
        keys = json.loads(str(arrays[f"keys/{path}"]))[example]
        weights = arrays[f"weights/{path}"][example][:, : len(queries), : len(keys)]
        examples.append(Map(path=path, weights=weights, queries=queries, keys=keys))
    return examples


def histograms_in(arrays: Mapping[str, Any], when: str) -> list[Histogram]:
    """Return the histograms of a file."""
    return [
        Histogram(
            path=path,
            when=when,
            counts=arrays[f"counts/{path}"],
            edges=arrays[f"edges/{path}"],
            predicted=float(arrays[f"predicted/{path}"]) or None,
        )
        for path in paths_in(arrays)
    ]


def drawings(
    files: Mapping[int, Path], entropies: Mapping[str, Sequence[tuple[int, Sequence[float]]]]
) -> dict[str, Spec]:
    """Return the pictures of a run by name: maps at the end, histograms, entropy over time.

    Args:
        files: Step -> file that ``Pictures`` saved.
        entropies: Path -> (step, value of each head).
    """
    first, last = min(files), max(files)
    specs: dict[str, Spec] = {}
    with np.load(files[last]) as arrays:
        examples = maps_in(arrays, 0)
    if examples:
        title = f"Attention weights of a validation example, step {last}"
        specs["maps"] = maps(examples, title)
    logits: list[Histogram] = []
    for step in dict.fromkeys((first, last)):
        with np.load(files[step]) as arrays:
            logits += histograms_in(arrays, f"step {step}")
    if logits:
        title = "Logits of validation examples, less their row's mean"
        specs["histograms"] = histograms(logits, title)
    if entropies:
        specs["entropy"] = entropy(entropies, "Entropy of the attention weights, by head")
    return specs
