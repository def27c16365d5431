"""Pictures of the same examples under each setting: maps side by side, and logit histograms."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attnscale.analysis.runs import Run
from attnscale.analysis.settings import Grid, Setting
from attnscale.figures.attention import Histogram, Map, histograms, maps
from attnscale.figures.snapshots import histograms_in, maps_in
from attnscale.tracking.history import History

MAX_SETTINGS = 6
MAX_HEADS = 4
FOLDER = "attention"


def _first(setting: Setting) -> Run | None:
    return next((run for run in setting.runs if run.outcome in ("finished", "diverged")), None)


def _load(history: History, run: Run, path: str, folder: Path) -> dict[str, Any]:
    file = history.artifact(run.run_id, path, folder)
    if file is None:
        return {}
    with np.load(io.BytesIO(file.read_bytes())) as arrays:
        return {key: arrays[key] for key in arrays.files}


def shown_path(attentions: Sequence[Map]) -> str | None:
    """Return the attention that is shown: the last one between two languages, else the last."""
    across = [one for one in attentions if list(one.queries) != list(one.keys)]
    return next((one.path for one in reversed(across or attentions)), None)


def pictures(grid: Grid, history: History, folder: Path) -> dict[str, Any]:
    """Return specifications by name, from the arrays that the runs saved; none where none are.

    Args:
        grid: The settings; of each, the first seed that finished is shown.
        history: Where the arrays are.
        folder: Where copies may be put.
    """
    all_maps: list[Map] = []
    all_histograms: list[Histogram] = []
    for setting in grid.settings[:MAX_SETTINGS]:
        run = _first(setting)
        files = [] if run is None else history.artifacts(run.run_id, FOLDER)
        saved = [path for path in files if path.endswith(".npz")]
        if run is None or not saved:
            continue
        last = _load(history, run, saved[-1], folder)
        shown = maps_in(last, 0) if last else []
        path = shown_path(shown)
        all_maps += [
            Map(
                path=f"{setting.label}: {path}",
                weights=one.weights[:MAX_HEADS],
                queries=one.queries,
                keys=one.keys,
            )
            for one in shown
            if one.path == path
        ]
        for place in dict.fromkeys((saved[0], saved[-1])):
            arrays = last if place == saved[-1] else _load(history, run, place, folder)
            step = int("".join(c for c in Path(place).stem if c.isdigit()) or 0)
            all_histograms += [
                Histogram(
                    path=f"{setting.label}: {one.path}",
                    when=one.when,
                    counts=one.counts,
                    edges=one.edges,
                    predicted=one.predicted,
                )
                for one in histograms_in(arrays, f"step {step}")
                if one.path == path
            ]
    specs: dict[str, Any] = {}
    if all_maps:
        specs["maps"] = maps(all_maps, "Weights of one validation example under each setting")
    if all_histograms:
        specs["histograms"] = histograms(
            all_histograms, "Logits less their row's mean, under each setting"
        )
    return specs
