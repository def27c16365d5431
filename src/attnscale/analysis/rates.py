"""Loss over learning rates: the best rate of a setting, and what not knowing it costs.

    sensitivity = E[min(ℓ(η), ℓ₀)] − ℓ*,  log η uniform over the rates that were swept

with ℓ the final loss, ℓ₀ the loss at initialisation and ℓ* the least loss (Wortsman et al. 2023,
arXiv:2309.14322). The expectation is an integral over log η by the trapezoid rule, so that an
uneven grid does not favour the rates where it is dense.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import integrate

from attnscale.analysis.settings import Setting, make_grid, short_names
from attnscale.analysis.tuning import arms
from attnscale.tracking.runs import Run

LAST = "val/loss"
"""Its last value is the final loss."""

Runs = Sequence[Run]
Results = Mapping[str, Runs]
"""Experiment's name -> its runs."""


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
    """Return loss against learning rate: columns, and a row per arm.

    The losses of the table are each run's best; the sensitivity is of the last ones.
    """
    every = arms(make_grid(runs).settings)
    rates = sorted({run.lr for run in runs})
    keys = list(dict.fromkeys(key for arm in every for key in arm.values))
    measured = ["best rate", "best loss", "sensitivity", "lost", "seeds"]
    rows: list[list[object]] = []
    for arm in every:
        # Settings that differ in another knob share a rate: the best of them stands for it.
        by_rate: dict[float, Setting] = {}
        for setting in sorted(arm.settings, key=lambda s: (s.lost > 0, s.mean_loss), reverse=True):
            by_rate[setting.runs[0].lr] = setting
        alike = [run for setting in arm.settings for run in setting.runs]
        start = sum(run.start_loss for run in alike) / len(alike)
        last = {lr: _last_loss(setting) for lr, setting in by_rate.items()}
        several = len(last) > 1 and math.isfinite(start)
        sensitivity = lr_sensitivity(last, start) if several else None
        best = arm.best()
        cells = [
            None
            if lr not in by_rate
            else "–"
            if by_rate[lr].lost
            else f"{by_rate[lr].mean_loss:.3g}"
            for lr in rates
        ]
        lost, ended = (sum(getattr(s, n) for s in arm.settings) for n in ("lost", "ended"))
        rows.append(
            [
                *(arm.values.get(key) for key in keys),
                *cells,
                None if best is None else f"{best.runs[0].lr:g}{' (end)' * bool(arm.ends(best))}",
                None if best is None else f"{best.mean_loss:.3g}",
                None if sensitivity is None else f"{sensitivity:.3g}",
                f"{lost} of {ended}",
                len({run.replicate for run in alike}),
            ]
        )
    names = short_names(keys)
    return [*(names[key] for key in keys), *(f"lr {lr:g}" for lr in rates), *measured], rows


def _last_loss(setting: Setting) -> float | None:
    """Return the mean loss at the end, or None where a run was lost or has none."""
    losses = setting.by_replicate(LAST)
    return None if setting.lost or not losses else sum(losses.values()) / len(losses)
