"""Pictures of the same examples under each setting: maps side by side, and logit histograms."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from attnscale.analysis.settings import Grid
from attnscale.figures.attention import Histogram, Map, histograms, histograms_in, maps, maps_in
from attnscale.figures.page import Figure, Section
from attnscale.tracking.history import History
from attnscale.tracking.runs import Run

MAX_SETTINGS = 6
MAX_HEADS = 4
FOLDER = "attention"


def _load(history: History, run: Run, path: str, folder: Path) -> dict[str, Any]:
    file = history.artifact(run.run_id, path, folder)
    if file is None:
        return {}
    with np.load(file) as arrays:
        return dict(arrays)


def shown_path(attentions: Sequence[Map]) -> str | None:
    """Return the attention that is shown: the last one between two languages, else the last."""
    across = [one for one in attentions if list(one.queries) != list(one.keys)]
    return next((one.path for one in reversed(across or attentions)), None)


def section(grid: Grid, history: History, folder: Path) -> Section | None:
    """Return the pictures, from the arrays that the runs saved; None where none are.

    Args:
        grid: The settings; of each, the first seed that finished is drawn.
        history: Where the arrays are.
        folder: Where copies may be put.
    """
    all_maps: list[Map] = []
    all_histograms: list[Histogram] = []
    for setting in grid.settings[:MAX_SETTINGS]:
        ended = (run for run in setting.runs if run.outcome in ("finished", "diverged"))
        run = next(ended, None)
        files = [] if run is None else history.artifacts(run.run_id, FOLDER)
        saved = [path for path in files if path.endswith(".npz")]
        if run is None or not saved:
            continue
        last = _load(history, run, saved[-1], folder)
        attentions = maps_in(last, 0)
        path = shown_path(attentions)
        name = f"{setting.label}: {path}"
        all_maps += [
            replace(one, path=name, weights=one.weights[:MAX_HEADS])
            for one in attentions
            if one.path == path
        ]
        for place in dict.fromkeys((saved[0], saved[-1])):
            arrays = last if place == saved[-1] else _load(history, run, place, folder)
            step = int("".join(c for c in Path(place).stem if c.isdigit()) or 0)
            all_histograms += [
                replace(one, path=name)
                for one in histograms_in(arrays, f"step {step}")
                if one.path == path
            ]
    figures = []
    if all_maps:
        figures.append(
            Figure(
                name="attention_maps",
                spec=maps(all_maps, "Weights of one validation example under each setting"),
                caption="The first validation example under each setting, first seed that ended.",
            )
        )
    if all_histograms:
        title = "Logits less their row's mean, under each setting"
        figures.append(
            Figure(
                name="attention_histograms",
                spec=histograms(all_histograms, title),
                caption="Logits at the start and at the end over the predicted density.",
            )
        )
    return Section(title="Attention", figures=figures) if figures else None
