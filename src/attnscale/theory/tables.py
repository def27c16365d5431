"""The tables behind the theory page: plain rows, from simulation and closed forms."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from attnscale.attention import SCALES, Moments, choose_scale
from attnscale.attention.stats import LIVE_FROM
from attnscale.model.layers import INITS
from attnscale.theory import closed_form as exact
from attnscale.theory import closed_form_softmax as softmax
from attnscale.theory.draws import seeded
from attnscale.theory.simulate import (
    Growth,
    Setting,
    attended,
    density_of,
    draw_logits,
    score_variance,
)
from attnscale.theory.simulate_softmax import INIT_CASES, SATURATED_ABOVE, softmax_statistics

Rows = list[dict[str, Any]]

D_KS = (16, 64, 256, 1024)
SHIFTED = ((1.0, 0.5, -0.5), (10.0, 9.5, 8.5), (100.0, 99.5, 98.5))
"""Vectors that a popular tutorial calls increasingly sharp; their differences are equal."""

VARIANCES = {
    "second": "mean square",
    "total": "variance, all pairs",
    "row": "variance within rows",
}


def settings() -> dict[str, Setting]:
    """Return the inputs whose score variance is simulated, by the name that the page shows."""
    by_name = {
        "independent q and k": Setting(kind="independent"),
        "correlated: half of the keys, ρ = ½": Setting(kind="correlated"),
    }
    for init in INITS:
        by_name[f"LayerNormed x, {init}"] = Setting(kind="projected", init=init, x_cos=0.3)
    return by_name


def growth(*, draws: int, seed: int) -> tuple[Rows, Rows, dict[str, list[Growth]]]:
    """Simulate Var(q·k) over d_k; return points, fitted exponents, and the fits themselves."""
    points: Rows = []
    exponents: Rows = []
    fits = {}
    for name, setting in settings().items():
        variances, fits[name] = score_variance(D_KS, setting, draws=draws, seed=seed)
        points += [
            {
                "setting": name,
                "kind": VARIANCES[row.variance],
                "d_k": row.d_k,
                "value": row.simulated.value,
                "low": max(row.simulated.low, 1e-9),
                "high": row.simulated.high,
                "predicted": row.predicted,
            }
            for row in variances
        ]
        exponents += [
            {
                "setting": name,
                "kind": VARIANCES[fit.variance],
                "exponent": fit.exponent.value,
                "low": fit.exponent.low,
                "high": fit.exponent.high,
                "predicted": fit.predicted,
            }
            for fit in fits[name]
        ]
    return points, exponents, fits


def histograms(*, draws: int, seed: int) -> tuple[Rows, Rows]:
    """Simulate densities of logits; return bars, and the lines that theory draws over them."""
    bars, lines = [], []
    for scale in ("sqrt", "none"):
        for d_k in D_KS:
            factor = d_k**-0.5 if scale == "sqrt" else 1.0
            spread = 4.5 * math.sqrt(d_k) * factor
            edges = np.linspace(-spread, spread, 46)
            density = density_of(draw_logits(d_k, scale, draws=draws, seed=seed), edges.tolist())
            bars += [
                {"scale": scale, "d_k": d_k, "low": low, "high": high, "density": value}
                for (low, high), value in zip(pairwise(edges.tolist()), density, strict=True)
            ]
            x = np.linspace(-spread, spread, 91)
            exactly = exact.logit_density(x, d_k, factor)
            normal = exact.normal_density(x, math.sqrt(d_k) * factor)
            for kind, values in (("exact", exactly), ("normal", normal)):
                lines += [
                    {"scale": scale, "d_k": d_k, "kind": kind, "x": float(a), "density": float(b)}
                    for a, b in zip(x, values, strict=True)
                ]
    return bars, lines


def one_row(*, seed: int) -> Rows:
    """Return ten scores at d_k = 128 as logits and weights, scaled and not."""
    with seeded(seed), torch.no_grad():
        q, k = torch.randn(1, 128), torch.randn(1, 10, 128)
        taps = {scale: attended(q, k, scale) for scale in ("sqrt", "none")}
    return [
        {"scale": scale, "key": key, "logit": logit, "weight": weight}
        for scale, tap in taps.items()
        for key, (logit, weight) in enumerate(
            zip(tap.logits().flatten().tolist(), tap.weights().flatten().tolist(), strict=True), 1
        )
    ]


def largest_weight() -> Rows:
    """Return the largest weight of softmax([a, a, 2a]) and its slope for a = 0 … 10."""
    kinds = {
        "largest weight": softmax.largest_weight,
        "its derivative": softmax.largest_weight_slope,
    }
    return [
        {"a": float(a), "kind": kind, "value": function(float(a))}
        for kind, function in kinds.items()
        for a in np.linspace(0, 10, 101)
    ]


def largest_of(vector: Sequence[float]) -> float:
    """Return the largest weight of a vector's softmax."""
    return float(torch.tensor(vector, dtype=torch.float64).softmax(dim=0).max())


def shifted() -> list[tuple[str, str, float]]:
    """Return (vector, what it is, largest weight): shifts of a vector, and multiples of it."""
    first = SHIFTED[0]
    rows = [(str(list(vector)), "equal differences", largest_of(vector)) for vector in SHIFTED]
    for factor in (3, 10):
        multiple = [factor * value for value in first]
        rows.append((str(multiple), f"{factor} times the first", largest_of(multiple)))
    return rows


STATISTICS: Mapping[str, str] = {
    "entropy_norm": "entropy ÷ ln n",
    "p_max": "largest weight",
    "jacobian": "‖J‖ (Frobenius), mean",
    "gain": "β · rms ‖J‖: gradient of q",
    "live": "live rows: 1 − Σp² > 0.05",
    "saturated": "rows with a weight above 0.9",
}


def sharpness(*, draws: int, seed: int) -> Rows:
    """Simulate softmax statistics over β for several n, with their limits."""
    betas = [2.0**power for power in np.arange(-3, 5.01, 0.5)]
    rows: Rows = []
    for n in (8, 14, 64):
        for row in softmax_statistics(betas, n, draws=draws, seed=seed):
            for key, label in STATISTICS.items():
                base = {"statistic": label, "n": str(n), "beta": row.beta}
                rows.append({**base, "kind": "simulated", "value": getattr(row, key).value})
                rows += [
                    {**base, "kind": kind, "value": value}
                    for kind, value in _limits(key, n, row.beta)
                ]
    return rows


def _limits(key: str, n: int, beta: float) -> list[tuple[str, float]]:
    """Return what the closed forms say, each where it is near its range."""
    limits = []
    critical = softmax.beta_critical(n)
    if key == "entropy_norm" and beta <= critical / 2:
        limits.append(("small β", softmax.entropy_small_beta(n, beta) / math.log(n)))
    if beta >= 1.5 * critical:
        means = softmax.saturated(n, beta)
        values = {
            **means,
            "entropy_norm": means["entropy"] / math.log(n),
            "live": softmax.live_share(n, beta, LIVE_FROM),
            "saturated": 1 - softmax.share_below(n, beta, SATURATED_ABOVE),
        }
        limits.append(("large β", values[key]))
    return limits


def mode_places(options: Mapping[str, Mapping[str, float]], *, n: int) -> Rows:
    """Return the predicted deviation of every mode's logits at the start, over d_k.

    For q and k of unit variance before any gain of the mode's own, rows of n keys and d_model =
    512.

    Args:
        options: Options of the modes, by mode.
        n: Kept keys of a row.
    """
    rows = []
    for name in SCALES:
        factory = choose_scale(name, options.get(name), {"length_p97_5": 26.0})
        for d_k in D_KS:
            scale = factory(n_heads=1, d_k=d_k, d_model=512)
            moments = Moments(
                d_k=d_k,
                q_rms=scale.init_gain(d_k),
                log_n=math.log(n),
                shrink=math.sqrt(n / (n - 1)),
            )
            rows.append({"mode": name, "d_k": d_k, "beta": scale.predicted_std(moments)})
    return rows


FIRST_TABLE = {
    "H ÷ ln n": "entropy_norm",
    "largest weight": "p_max",
    "1 ÷ Σp²": "participation",
    "‖J‖": "jacobian",
    "β·rms‖J‖": "gain",
    "p > 0.9": "saturated",
}


def first_table(*, draws: int, seed: int) -> tuple[list[str], list[list[Any]]]:
    """Return the table of :data:`INIT_CASES` at n = 14: columns, and a row of numbers per case.

    With 60,000 draws it is the table of ``docs/theory.md``; 14 is about the mean length of a
    Multi30k sentence.
    """
    simulated = softmax_statistics(list(INIT_CASES.values()), 14, draws=draws, seed=seed)
    rows = [
        [case, row.beta, *(getattr(row, key).value for key in FIRST_TABLE.values())]
        for case, row in zip(INIT_CASES, simulated, strict=True)
    ]
    return ["case", "β", *FIRST_TABLE], rows
