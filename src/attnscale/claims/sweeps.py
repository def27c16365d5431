"""Recorded sweeps that claims are judged by, through ``tracking`` alone."""

from dataclasses import replace

from attnscale.claims.list import CLAIMS
from attnscale.tracking.history import History
from attnscale.tracking.runs import Run
from attnscale.tracking.store import Store

VARIANTS = ("model.init", "model.norm", "optimizer._target_")
"""Parameters that some claims vary beside scale, d_k, rate and seed."""


def sweep_of(store: Store, group: str, experiment: str) -> list[Run]:
    """Return the runs of the newest finished sweep of an experiment; none if there is none.

    Args:
        store: Where runs are recorded.
        group: MLflow's experiment.
        experiment: Name of a file in ``conf/experiment/``.
    """
    runs = History(store, group).newest_of(f"experiment={experiment}")
    varied = [
        key for key in VARIANTS if len({run.parameters.get(key) for run in runs} - {None}) > 1
    ]
    return [
        replace(
            run,
            variant=" ".join(f"{key.rpartition('.')[2]}={run.parameters[key]}" for key in varied),
        )
        for run in runs
    ]


def claim_results(store: Store, group: str) -> dict[str, list[Run]]:
    """Return the recorded sweeps of all claims, by experiment."""
    names = dict.fromkeys(name for claim in CLAIMS for name in claim.experiments)
    return {name: sweep_of(store, group, name) for name in names}
