"""The runs that somebody asked about, found through ``tracking``."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnscale.tracking.history import History
from attnscale.tracking.runs import Run
from attnscale.tracking.store import Store


@dataclass(frozen=True)
class Asked:
    """What a person asked for; one of the four, or several sweeps.

    Attributes:
        sweep: "latest", a sweep's name or folder, or several of them with commas between.
        runs: Run ids.
        filter: A filter of MLflow.
        experiment: MLflow's experiment.
    """

    sweep: str
    runs: Sequence[str]
    filter: str | None
    experiment: str


def find_runs(store: Store, asked: Asked) -> list[Run]:
    """Return the runs that were asked for.

    Raises:
        ValueError: If there is nothing of that name in the store.
    """
    history = History(store, asked.experiment)
    if asked.runs:
        runs = [history.by_id(run_id) for run_id in asked.runs]
    elif asked.filter is not None:
        runs = history.matching(asked.filter)
    else:
        names = (part.strip() for part in asked.sweep.split(","))
        # A sweep's folder has the sweep's name.
        sweeps = [Path(name).name if "/" in name else name for name in names]
        runs = [run for sweep in sweeps for run in history.sweep_runs(sweep)]
    return list({run.run_id: run for run in runs}.values())
