"""Drawing the curves of a recorded sweep."""

import re
from pathlib import Path

from omegaconf import DictConfig

from attnscale.cli.screen import say
from attnscale.config.app_schema import CurvesConfig
from attnscale.config.build import project_root, shown_path, to_object
from attnscale.figures.curves import run_curves
from attnscale.figures.page import to_png
from attnscale.tracking.history import History
from attnscale.tracking.store import find_store


def draw_sweep(composed: DictConfig) -> None:
    """Draw ``metrics`` of the runs of ``sweep`` into ``file``.

    Raises:
        ValueError: If there is no such sweep, or none of its runs has such a metric.
    """
    config = to_object(composed, CurvesConfig)
    history = History(find_store(config.tracking.uri, project_root()), config.tracking.experiment)
    runs = history.sweep_runs(config.sweep)
    # The sweep's mark at the end of each name says nothing within one sweep.
    names = {run.run_id: re.sub(r" \([0-9a-f]+\)$", "", run.name) for run in runs}
    curves = {
        metric: {names[run.run_id]: history.curve(run.run_id, metric) for run in runs}
        for metric in config.metrics
    }
    path = Path(config.file)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        spec = run_curves(curves, title=f"sweep {runs[0].tags['sweep']}")
    except ValueError as error:
        raise ValueError(f"metrics={config.metrics}: {error}") from error
    path.write_bytes(to_png(spec))
    say(f"Drawn: {shown_path(path)}")
