"""From the arrays that a run saved to its pictures."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attnscale.figures.attention import Histogram, Map, entropy, histograms, maps

Spec = dict[str, Any]


def paths_in(arrays: Mapping[str, Any]) -> list[str]:
    """Return the attentions of a file of saved arrays, in order."""
    return [key.removeprefix("weights/") for key in arrays if key.startswith("weights/")]


def maps_in(arrays: Mapping[str, Any], example: int) -> list[Map]:
    """Return the maps of one example, padding cut off."""
    made = []
    for path in paths_in(arrays):
        queries = json.loads(str(arrays[f"queries/{path}"]))[example]
        keys = json.loads(str(arrays[f"keys/{path}"]))[example]
        weights = arrays[f"weights/{path}"][example][:, : len(queries), : len(keys)]
        made.append(Map(path=path, weights=weights, queries=queries, keys=keys))
    return made


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
    steps = sorted(files)
    made: dict[str, Spec] = {}
    with np.load(files[steps[-1]]) as last:
        found = maps_in(last, 0)
        if found:
            made["maps"] = maps(
                found, f"Attention weights of a validation example, step {steps[-1]}"
            )
    shown: list[Histogram] = []
    for step in dict.fromkeys((steps[0], steps[-1])):
        with np.load(files[step]) as arrays:
            shown += histograms_in(arrays, f"step {step}")
    if shown:
        made["histograms"] = histograms(
            shown, "Logits of validation examples, less their row's mean"
        )
    if entropies:
        made["entropy"] = entropy(entropies, "Entropy of the attention weights, by head")
    return made
