"""Runs of a sweep as plain records, and what follows from them: the best rate, loss over rates."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnscale.report.curves import lr_sensitivity
from attnscale.report.runs import OBJECTIVE
from attnscale.report.series import Curves
from attnscale.report.settings import D_K, LR, SCALE, Grid


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """What a claim reads of a recorded run.

    Attributes:
        scale: ``attention.scale``.
        d_k: ``model.d_k``.
        lr: ``optimizer.lr``.
        seed: ``seed``.
        variant: What else the sweep varies, as text; empty for nothing.
        loss: Best validation loss, or None if the run diverged or failed.
        test_loss: Loss on the test set at the best checkpoint, or None.
        start_loss: Training loss before the first step.
        curve: (step, validation loss).
        bleu: Test BLEU, or None.
        steps_per_second: Speed of the whole training, or None.
    """

    scale: str
    d_k: int
    lr: float
    seed: int
    variant: str = ""
    loss: float | None
    test_loss: float | None = None
    start_loss: float = math.inf
    curve: Sequence[tuple[int, float]] = ()
    bleu: float | None = None
    steps_per_second: float | None = None


Runs = Sequence[TrainedRun]
Results = Mapping[str, Runs]
"""Experiment's name -> its runs."""


@dataclass(frozen=True)
class AtBestRate:
    """The runs of one setting at the rate with the lowest mean loss."""

    rate: float
    runs: Runs

    @property
    def losses(self) -> dict[int, float]:
        """Seed -> loss."""
        return {run.seed: run.loss for run in self.runs if run.loss is not None}

    @property
    def test_losses(self) -> dict[int, float]:
        """Seed -> loss on the test set."""
        return {run.seed: run.test_loss for run in self.runs if run.test_loss is not None}


def by_rate(runs: Runs) -> dict[float, list[TrainedRun]]:
    """Group runs by learning rate, in order."""
    return {lr: [run for run in runs if run.lr == lr] for lr in sorted({run.lr for run in runs})}


def mean_loss(runs: Runs) -> float:
    """Return the mean best validation loss; infinite if any run diverged."""
    losses = [math.inf if run.loss is None else run.loss for run in runs]
    return sum(losses) / len(losses)


def at_best_rate(runs: Runs) -> AtBestRate | None:
    """Return the runs at the best rate, or None if every rate has a diverged run."""
    rates = {lr: mean_loss(group) for lr, group in by_rate(runs).items()}
    finite = {lr: loss for lr, loss in rates.items() if math.isfinite(loss)}
    if not finite:
        return None
    best = min(finite, key=lambda lr: finite[lr])
    return AtBestRate(best, by_rate(runs)[best])


def select(runs: Runs, **wanted: object) -> list[TrainedRun]:
    """Return the runs whose fields have these values."""
    return [run for run in runs if all(getattr(run, k) == v for k, v in wanted.items())]


def trained_runs(grid: Grid, curves: Curves) -> list[TrainedRun]:
    """Return a report's runs as what :func:`rate_rows` reads."""
    made: list[TrainedRun] = []
    for setting in grid.settings:
        known = (SCALE, D_K, LR)
        variant = " ".join(f"{k}={v}" for k, v in setting.values.items() if k not in known)
        made += [
            TrainedRun(
                scale=run.parameters.get(SCALE, ""),
                d_k=int(run.parameters.get(D_K, "0")),
                lr=float(run.parameters[LR]),
                seed=run.seed,
                variant=variant,
                loss=run.value(OBJECTIVE),
                start_loss=next((p.value for p in curves.of(run, "train/loss")), math.inf),
            )
            for run in setting.runs
            if run.state in ("finished", "diverged")
        ]
    return made


def rate_rows(runs: Runs) -> tuple[list[str], list[list[object]]]:
    """Return loss against learning rate: columns, and a row per scale, d_k and variant."""
    rates = sorted({run.lr for run in runs})
    varied = any(run.variant for run in runs)
    columns = [
        "scale",
        "d_k",
        *(["variant"] if varied else []),
        *(f"lr {lr:g}" for lr in rates),
        "best rate",
    ]
    columns += ["best loss", "sensitivity", "diverged", "seeds"]
    rows: list[list[object]] = []
    settings = dict.fromkeys((run.scale, run.d_k, run.variant) for run in runs)
    for scale, d_k, variant in settings:
        mine = select(runs, scale=scale, d_k=d_k, variant=variant)
        groups = by_rate(mine)
        best = at_best_rate(mine)
        start = sum(run.start_loss for run in mine) / len(mine)
        losses = {lr: mean_loss(group) for lr, group in groups.items()}
        sensitivity = (
            lr_sensitivity(losses, start) if len(losses) > 1 and math.isfinite(start) else None
        )
        cells = [
            None if lr not in losses else f"{losses[lr]:.3g}" if math.isfinite(losses[lr]) else "–"
            for lr in rates
        ]
        rows.append(
            [
                scale,
                d_k,
                *([variant] if varied else []),
                *cells,
                None if best is None else f"{best.rate:g}",
                None if best is None else f"{mean_loss(best.runs):.3g}",
                None if sensitivity is None else f"{sensitivity:.3g}",
                f"{sum(run.loss is None for run in mine)} of {len(mine)}",
                len({run.seed for run in mine}),
            ]
        )
    return columns, rows
