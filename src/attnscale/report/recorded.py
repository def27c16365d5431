"""Reading recorded sweeps as plain records, through ``tracking`` alone."""

import contextlib
import json
import math
from collections.abc import Mapping, Sequence

from attnscale.attention import SCALES
from attnscale.report.documents import ModeFigures
from attnscale.report.trained import TrainedRun
from attnscale.theory.claims import CLAIMS, between
from attnscale.theory.measured import mode_deviation
from attnscale.tracking.history import History, RecordedRun
from attnscale.tracking.store import Store

BENCHMARKS = "benchmarks"
"""MLflow experiment of the project's own timings."""

VARIANTS = ("model.init", "model.norm", "optimizer._target_")
"""Parameters that some claims vary beside scale, d_k, rate and seed."""


def _text(value: str) -> str:
    """Return a parameter's text; strings of a sweep may be recorded with quotes."""
    with contextlib.suppress(ValueError):
        loaded = json.loads(value)
        return loaded if isinstance(loaded, str) else f"{loaded}"
    return value


def _plain(run: RecordedRun, history: History, varied: Sequence[str]) -> TrainedRun:
    value = run.metrics.get("val/best_loss", math.nan)
    good = run.status == "FINISHED" and run.tags.get("diverged") != "true" and math.isfinite(value)
    start = history.curve(run.run_id, "train/loss")
    bleu, speed = run.metrics.get("test/bleu"), run.metrics.get("time/steps_per_second")
    variant = " ".join(f"{key.rpartition('.')[2]}={_text(run.parameters[key])}" for key in varied)
    return TrainedRun(
        scale=_text(run.parameters["attention.scale"]),
        d_k=int(run.parameters["model.d_k"]),
        lr=float(run.parameters["optimizer.lr"]),
        seed=int(run.parameters["seed"]),
        variant=variant,
        loss=value if good else None,
        test_loss=run.metrics.get("test/loss") if good else None,
        start_loss=start[0][1] if start else math.inf,
        curve=history.curve(run.run_id, "val/loss"),
        bleu=bleu,
        steps_per_second=speed,
    )


def sweep_of(store: Store, group: str, experiment: str) -> list[TrainedRun]:
    """Return the runs of the newest finished sweep of an experiment; none if there is none.

    Args:
        store: Where runs are recorded.
        group: MLflow's experiment.
        experiment: Name of a file in ``conf/experiment/``.
    """
    history = History(store, group)
    runs = history.newest_of(f"experiment={experiment}")
    varied = [
        key for key in VARIANTS if len({run.parameters.get(key) for run in runs} - {None}) > 1
    ]
    return [_plain(run, history, varied) for run in runs]


def claim_results(store: Store, group: str) -> dict[str, list[TrainedRun]]:
    """Return the recorded sweeps of all claims, by experiment."""
    names = dict.fromkeys(name for claim in CLAIMS for name in claim.experiments)
    return {name: sweep_of(store, group, name) for name in names}


def mode_figures(
    store: Store, options: Mapping[str, Mapping[str, float]]
) -> dict[str, ModeFigures]:
    """Measure every mode's initial deviation, and read what a step costs if it was timed."""
    timings = History(store, BENCHMARKS)
    costs, times = (
        timings.newest_values("kind", "mode_cost", f"bench/{name}")
        for name in ("step_ratio", "step_ms")
    )
    return {
        name: ModeFigures(
            start=between(mode_deviation(name, options.get(name, {}), seeds=8, seed=0)),
            cost=costs.get(name),
            milliseconds=times.get(name),
        )
        for name in SCALES
    }
