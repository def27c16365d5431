"""Scores in closed form: mean, variance and density of r = q·k, and what each init gives.

    independent q, k     Var r = tr(Σ_q Σ_k) + μ_q'Σ_k μ_q + μ_k'Σ_q μ_k
      centred, iid         = d σ_q² σ_k²
    jointly Gaussian     E r²  = (tr C)² + tr(Σ_q Σ_k) + tr(C²),   centred, C = E[q k']
      correlation ρ        = d²ρ² + d(1 + ρ²)                      per coordinate, σ = 1
    within a row         E Var_j r_ij = d σ_q² σ_k² (1 − c̄)
    projections          σ_q² = d_model · Var(W_q)                 for LayerNormed input
    density              f(r) = |r/2|^ν K_ν(|r|) / (√π Γ(d/2)),  ν = (d − 1)/2,  q, k iid N(0, 1)

d is d_k; μ, Σ are means and covariances of one query and one key; c̄ is the mean cosine of two
different inputs of a sequence; K_ν is the modified Bessel function of the second kind. Scores have
no unit.

Sources: Vaswani et al. 2017, footnote 4 (d σ_q² σ_k² for unit variances); Isserlis 1918 (fourth
moments of a Gaussian); Yang et al. 2022, Tensor Programs V (growth with d when q and k are
correlated); Glorot & Bengio 2010, He et al. 2015 (inits). Each formula is derived in
``docs/theory.md``. Two differ from what is usually printed: the variance *within a row*, the only
one that a softmax sees, and the exact density in place of the normal one.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, kve

from attnscale.checks import check_choice
from attnscale.model.layers import INITS

_DEBYE_FROM_ORDER = 50.0
"""K_ν overflows near 0 for large ν; from here on its large-order expansion is exact to 1e-9."""


def variance_independent(d_k: int, sigma_q: float, sigma_k: float) -> float:
    """Return Var(q·k) = d_k σ_q² σ_k² of centred components that are all independent."""
    return d_k * sigma_q**2 * sigma_k**2


def second_moment_aligned(d_k: int, rho: float, share: float) -> float:
    """Return E r² where a share of the keys is correlated with its query.

    Args:
        d_k: Size of q and k, whose components have variance 1.
        rho: Correlation of each component of such a key with the query's, -1 to 1.
        share: Share of the keys that are correlated, 0 to 1; the others are independent.
    """
    return share * (d_k**2 * rho**2 + d_k * (1 + rho**2)) + (1 - share) * d_k


def variance_aligned(d_k: int, rho: float, share: float) -> float:
    """Return Var r = E r² − (share · d_k ρ)²; arguments as :func:`second_moment_aligned`."""
    return second_moment_aligned(d_k, rho, share) - (share * d_k * rho) ** 2


def row_variance_aligned(d_k: int, rho: float, n_keys: int, aligned: int) -> float:
    """Return the expected variance within a row of which some keys are correlated with the query.

    With m of n keys correlated, E Var_j r_ij (divisor n − 1) =
    d(1 + ρ²m/n) − 2dρ² m(m − 1)/(n(n − 1)) + d²ρ² m(n − m)/(n(n − 1)).
    The last term is the law std ∝ d. It is 0 for m = n: what all keys share, softmax ignores.

    Args:
        d_k: Size of q and k, whose components have variance 1.
        rho: Correlation of each component of such a key with the query's, -1 to 1.
        n_keys: Keys of the row, n, at least 2.
        aligned: How many of them are correlated, m.

    Raises:
        ValueError: If ``n_keys`` is below 2 or ``aligned`` not between 0 and ``n_keys``.
    """
    if n_keys < 2 or not 0 <= aligned <= n_keys:
        raise ValueError(f"aligned={aligned} of n_keys={n_keys}: need 0 to n_keys, n_keys >= 2")
    n, m, pairs = n_keys, aligned, n_keys * (n_keys - 1)
    shared = 2 * d_k * rho**2 * m * (m - 1) / pairs
    between = d_k**2 * rho**2 * m * (n - m) / pairs
    return d_k * (1 + rho**2 * m / n) - shared + between


def row_variance(d_k: int, sigma_q: float, sigma_k: float, x_cos: float) -> float:
    """Return the expected variance of r over the keys of one row, d_k σ_q² σ_k² (1 − c̄).

    Args:
        d_k: Size of q and k.
        sigma_q: Standard deviation of a component of q.
        sigma_k: Standard deviation of a component of k.
        x_cos: c̄, mean cosine of two different inputs of the row, -1 to 1; 0 if unrelated.
    """
    return variance_independent(d_k, sigma_q, sigma_k) * (1 - x_cos)


def weight_variance(init: str, fan_in: int, fan_out: int) -> float:
    """Return the variance of one weight under an init of ``attnscale.model.layers.initialise``.

    Args:
        init: One of :data:`attnscale.model.layers.INITS`.
        fan_in: Inputs of the layer, d_model.
        fan_out: Its outputs, n_heads · d_k; only ``xavier`` looks at it.

    Raises:
        ValueError: If ``init`` is none of these.
    """
    check_choice("model.init", init, INITS)
    return {
        "torch": 1 / (3 * fan_in),
        "xavier": 2 / (fan_in + fan_out),
        "kaiming": 2 / fan_in,
        "unit": 1 / fan_in,
    }[init]


def projection_std(init: str, d_model: int, fan_out: int) -> float:
    """Return σ_q = √(d_model Var(W_q)), the std of a component of W_q x at initialisation.

    For LayerNormed x, whose squared length is d_model; the same for k. Arguments and errors as
    :func:`weight_variance`, with fan_in = d_model.
    """
    return math.sqrt(d_model * weight_variance(init, d_model, fan_out))


def normal_density(s: ArrayLike, std: float) -> NDArray[np.float64]:
    """Return the normal density with mean 0, as the limit of large d_k says, at each ``s``."""
    z = np.asarray(s, dtype=np.float64) / std
    return np.asarray(np.exp(-(z**2) / 2) / (std * math.sqrt(2 * math.pi)))


def score_density(r: ArrayLike, d_k: int) -> NDArray[np.float64]:
    """Return the exact density of r = q·k for independent standard normal q and k, at each ``r``.

    Its variance is d_k and its excess kurtosis 6/d_k. For d_k = 1 it is infinite at 0.

    Raises:
        ValueError: If ``d_k`` is below 1.
    """
    if d_k < 1:
        raise ValueError(f"d_k={d_k}: must be at least 1")
    x = np.abs(np.asarray(r, dtype=np.float64))
    order = (d_k - 1) / 2
    constant = -0.5 * math.log(math.pi) - float(gammaln(d_k / 2))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        log_f = constant + order * np.log(x / 2) + _log_bessel(order, x)
        at_zero = math.inf if d_k == 1 else constant + float(gammaln(order)) - math.log(2)
        # K_ν overflows at 0 only, where the density is flat.
        return np.asarray(np.exp(np.where(np.isfinite(log_f) | (x > 1), log_f, at_zero)))


def logit_density(s: ArrayLike, d_k: int, factor: float) -> NDArray[np.float64]:
    """Return the exact density of the logit factor · r at each ``s``; see :func:`score_density`."""
    return score_density(np.asarray(s, dtype=np.float64) / factor, d_k) / factor


def _log_bessel(order: float, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log K_order(x); DLMF 10.41.4 where the function itself would overflow."""
    if order < _DEBYE_FROM_ORDER:
        return np.asarray(np.log(kve(order, x)) - x)
    z = x / order
    root = np.sqrt(1 + z**2)
    t = 1 / root
    eta = root + np.log(z / (1 + root))
    u_1 = (3 * t - 5 * t**3) / 24
    u_2 = (81 * t**2 - 462 * t**4 + 385 * t**6) / 1152
    u_3 = (30375 * t**3 - 369603 * t**5 + 765765 * t**7 - 425425 * t**9) / 414720
    series = 1 - u_1 / order + u_2 / order**2 - u_3 / order**3
    return np.asarray(
        0.5 * math.log(math.pi / (2 * order)) - order * eta - 0.5 * np.log(root) + np.log(series)
    )
