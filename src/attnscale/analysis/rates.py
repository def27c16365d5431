"""Loss over learning rates: the best rate of a setting, and what not knowing it costs.

    sensitivity = E[min(ℓ(η), ℓ₀)] − ℓ*,  log η uniform over the rates that were swept

with ℓ the final loss, ℓ₀ the loss at initialisation and ℓ* the least loss (Wortsman et al. 2023,
arXiv:2309.14322). The expectation is an integral over log η by the trapezoid rule, so that an
uneven grid does not favour the rates where it is dense.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import integrate

from attnscale.tracking.runs import Run

Runs = Sequence[Run]
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
        return {run.seed: loss for run in self.runs if (loss := run.value("test/loss")) is not None}


def by_rate(runs: Runs) -> dict[float, list[Run]]:
    """Group runs by learning rate, in order."""
    return {lr: [run for run in runs if run.lr == lr] for lr in sorted({run.lr for run in runs})}


def mean_loss(runs: Runs) -> float:
    """Return the mean best validation loss; infinite if any run diverged."""
    losses = [math.inf if run.loss is None else run.loss for run in runs]
    return sum(losses) / len(losses)


def at_best_rate(runs: Runs) -> AtBestRate | None:
    """Return the runs at the best rate, or None if every rate has a diverged run."""
    groups = by_rate(runs)
    best = min(groups, key=lambda lr: mean_loss(groups[lr]), default=None)
    if best is None or math.isinf(mean_loss(groups[best])):
        return None
    return AtBestRate(best, groups[best])


def select(runs: Runs, **fields: object) -> list[Run]:
    """Return the runs whose attributes have these values."""
    return [run for run in runs if all(getattr(run, k) == v for k, v in fields.items())]


def lr_sensitivity(
    losses_by_rate: Mapping[float, float | None], loss_at_init: float
) -> float | None:
    """Say how much loss is given away, on average, by not knowing the best learning rate.

    It depends on the range of the rates: compare settings over the same rates only.

    Args:
        losses_by_rate: Learning rate -> final loss. None, an infinity or NaN: diverged, which
            counts as ``loss_at_init``, as does any loss above that.
        loss_at_init: Loss before the first step, in the same unit.

    Returns:
        The sensitivity in the unit of the loss, 0 or more; None where no rate got below
        ``loss_at_init``, for then there is no optimum to depart from.

    Raises:
        ValueError: Fewer than two rates, one that is not positive and finite, or a
            ``loss_at_init`` that is not finite.
    """
    rates = sorted(losses_by_rate)
    if len(rates) < 2 or not all(0 < rate < math.inf for rate in rates):
        raise ValueError(f"learning rates {rates}: give two or more, positive and finite")
    if not math.isfinite(loss_at_init):
        raise ValueError(f"loss_at_init={loss_at_init}: must be finite")
    final = [losses_by_rate[rate] for rate in rates]
    losses = np.array(
        [loss_at_init if x is None or not math.isfinite(x) else min(x, loss_at_init) for x in final]
    )
    best = float(losses.min())
    if best == loss_at_init:
        return None
    log_rates = np.log(rates)
    area = float(integrate.trapezoid(losses - best, log_rates))
    return area / float(log_rates[-1] - log_rates[0])


def rate_rows(runs: Runs) -> tuple[list[str], list[list[object]]]:
    """Return loss against learning rate: columns, and a row per scale, d_k and variant."""
    rates = sorted({run.lr for run in runs})
    varied = any(run.variant for run in runs)
    named = ["scale", "d_k", *(["variant"] if varied else [])]
    measured = ["best rate", "best loss", "sensitivity", "diverged", "seeds"]
    rows: list[list[object]] = []
    for setting in dict.fromkeys(run.setting for run in runs):
        alike = select(runs, setting=setting)
        groups = by_rate(alike)
        best = at_best_rate(alike)
        start = sum(run.start_loss for run in alike) / len(alike)
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
                *setting[: len(named)],
                *cells,
                None if best is None else f"{best.rate:g}",
                None if best is None else f"{mean_loss(best.runs):.3g}",
                None if sensitivity is None else f"{sensitivity:.3g}",
                f"{sum(run.loss is None for run in alike)} of {len(alike)}",
                len({run.seed for run in alike}),
            ]
        )
    return [*named, *(f"lr {lr:g}" for lr in rates), *measured], rows
