"""Softmax in closed form: its Jacobian, and what it does to logits of a given spread.

    p = softmax(s)          J = ∂p/∂s = diag(p) − p p'
    ‖J‖_F² = Σp² − 2Σp³ + (Σp²)²                 equal weights: (n − 1)/n²

For s_j independent N(0, β²), j = 1 … n:

    β small        H ≈ ln n − (n − 1)/n · β²/2          E Σp² ≈ e^{β²}/n     (β < β_c/2)
    n → ∞          H = ln n − β²/2 below β_c = √(2 ln n), 0 above
    β large        ρ_n = n(n − 1) ∫ φ² Φ^{n−2}     density at 0 of the gap of the two largest / β
                   E[1 − p_max] ≈ ρ ln 2 / β        E[1 − Σp²] ≈ E‖J‖_F ≈ ρ/β
                   E‖J‖_F² ≈ ρ/(3β)                  E H ≈ (π²/6) ρ/β
                   P(p_max < τ) ≈ (ρ/β) ln(τ/(1 − τ))
    gradient       rms ‖∂L/∂q‖ ≈ β · rms‖J‖_F · rms g,   g = ∂L/∂p;  √(ρβ/3) for large β
                   for keys of deviation σ_k and a factor c: c √d_k σ_k · rms‖J‖_F · rms g;
                   into all keys of a row together: the same, with σ_q for σ_k

H is the entropy in nats, φ and Φ the normal density and distribution function. For large β only the
two largest logits count: with gap x between them p_max = 1/(1 + e^{−x}), x has density ρ/β where
this is not yet 1, and each line above is ρ/β times an integral over x from 0 to ∞.

Sources: Derrida 1981, the Random Energy Model (n → ∞; β_c); the large-β forms are derived in
``docs/theory.md``. β² is the variance of one logit, which is the mean of a row's variance with
divisor n − 1; the factor (n − 1)/n turns it into the variance with divisor n of the expansion.
"""

import math

import numpy as np
from scipy.integrate import quad
from scipy.special import log_ndtr


def beta_critical(n: int) -> float:
    """Return β_c = √(2 ln n), where the entropy of n → ∞ Gaussian logits reaches 0."""
    return math.sqrt(2 * math.log(n))


def entropy_small_beta(n: int, beta: float) -> float:
    """Return the mean entropy in nats of n Gaussian logits of small deviation ``beta``."""
    return math.log(n) - (n - 1) / n * beta**2 / 2


def top_gap_density(n: int) -> float:
    """Return ρ_n, the density at 0 of the gap between the two largest of n standard normals.

    Raises:
        ValueError: If ``n`` is below 2.
    """
    if n < 2:
        raise ValueError(f"n={n}: must be at least 2")

    def integrand(x: float) -> float:
        return math.exp(-x * x + (n - 2) * float(log_ndtr(x))) / (2 * math.pi)

    middle = math.sqrt(2 * math.log(n))
    value, _ = quad(integrand, -12.0, 12.0, points=(0.0, middle), epsabs=0, epsrel=1e-10, limit=200)
    return n * (n - 1) * float(value)


def saturated(n: int, beta: float) -> dict[str, float]:
    """Return means over rows of n Gaussian logits of a large deviation β, to first order in 1/β.

    By statistic: "p_max", the largest weight; "concentration", Σp²; "entropy" in nats; "jacobian",
    ‖J‖_F, and "jacobian_square", its square; "gain", β · rms‖J‖_F = √(ρβ/3).

    Raises:
        ValueError: If ``n`` is below 2 or ``beta`` is not positive.
    """
    ratio = _ratio(n, beta)
    return {
        "p_max": 1 - math.log(2) * ratio,
        "concentration": 1 - ratio,
        "entropy": math.pi**2 / 6 * ratio,
        "jacobian": ratio,
        "jacobian_square": ratio / 3,
        "gain": beta * math.sqrt(ratio / 3),
    }


def share_below(n: int, beta: float, tau: float) -> float:
    """Return P(p_max < τ) for large β, cut at 1.

    Args:
        n: Keys of a row, at least 2.
        beta: standard deviation of the logits, positive.
        tau: A weight above ½ and below 1.

    Raises:
        ValueError: If an argument is out of its range.
    """
    if not 0.5 < tau < 1:
        raise ValueError(f"tau={tau}: must be above 0.5 and below 1")
    return min(_ratio(n, beta) * math.log(tau / (1 - tau)), 1.0)


def live_share(n: int, beta: float, threshold: float) -> float:
    """Return the share of rows with 1 − Σp² above ``threshold`` for large β, cut at 1.

    Of two weights p, 1 − p this is 2p(1 − p), so the row is live if p < (1 + √(1 − 2t))/2.

    Args:
        n: Keys of a row, at least 2.
        beta: standard deviation of the logits, positive.
        threshold: t, above 0 and below ½; the project's live rows have 0.05.

    Raises:
        ValueError: If an argument is out of its range.
    """
    if not 0 < threshold < 0.5:
        raise ValueError(f"threshold={threshold}: must be above 0 and below 0.5")
    return share_below(n, beta, (1 + math.sqrt(1 - 2 * threshold)) / 2)


def largest_weight(a: float) -> float:
    """Return the largest of softmax([a, a, 2a]) for a >= 0: e^a / (2 + e^a)."""
    return 1 / (1 + 2 * math.exp(-a))


def largest_weight_slope(a: float) -> float:
    """Return the derivative of :func:`largest_weight` by ``a``: 2e^a / (2 + e^a)²."""
    return 2 * math.exp(-a) * largest_weight(a) ** 2


def _ratio(n: int, beta: float) -> float:
    if not 0 < beta < np.inf:
        raise ValueError(f"beta={beta}: must be positive and finite")
    return top_gap_density(n) / beta
