import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import log_ndtr
from torch import Tensor, nn

from attnscale.analysis.curves import growth_exponent
from attnscale.attention.stats import Sample
from attnscale.model.layers import INITS, initialise
from attnscale.theory import closed_form, closed_form_softmax

RHO = {2: 0.564, 8: 1.424, 14: 1.704, 32: 2.070, 64: 2.344, 128: 2.595, 512: 3.045, 1024: 3.249}
"""As published, to three digits of which the last may be one off."""


def covariance(d: int, seed: int) -> torch.Tensor:
    root = torch.randn(d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return root @ root.T / d


def within(measured: torch.Tensor, predicted: float, sigmas: float = 4.0) -> None:
    mean, error = measured.mean().item(), (measured.std() / math.sqrt(len(measured))).item()
    message = f"measured {mean:.4f} ± {error:.4f}, predicted {predicted:.4f}"
    assert abs(mean - predicted) < sigmas * error, message


def variance_general(cov_q: Tensor, cov_k: Tensor, mean_q: Tensor, mean_k: Tensor) -> float:
    """Return Var(q·k) = tr(Σ_q Σ_k) + μ_q'Σ_k μ_q + μ_k'Σ_q μ_k of independent q and k."""
    spread = (cov_q * cov_k.T).sum()
    return float(spread + mean_q @ cov_k @ mean_q + mean_k @ cov_q @ mean_k)


def second_moment_gaussian(cov_q: Tensor, cov_k: Tensor, cross: Tensor) -> float:
    """Return E (q·k)² of centred, jointly Gaussian q and k with ``cross`` = E[q k']."""
    return float(cross.trace() ** 2 + (cov_q * cov_k.T).sum() + (cross * cross.T).sum())


def jacobian_norm(weights: Tensor) -> Tensor:
    """Return ‖J‖_F as attention health measures it."""
    sample = Sample(weights=weights.reshape(1, 1, -1, weights.shape[-1]))
    return sample.jacobian_squared.sqrt().reshape(weights.shape[:-1])


def test_variance_of_independent_q_and_k_with_means() -> None:
    d, draws = 5, 200_000
    cov_q, cov_k = covariance(d, 1), covariance(d, 2)
    mean_q, mean_k = torch.randn(2, d, dtype=torch.float64)
    q = mean_q + torch.randn(draws, d, dtype=torch.float64) @ torch.linalg.cholesky(cov_q).T
    k = mean_k + torch.randn(draws, d, dtype=torch.float64) @ torch.linalg.cholesky(cov_k).T
    centred = (q * k).sum(1) - mean_q @ mean_k
    within(centred.square(), variance_general(cov_q, cov_k, mean_q, mean_k))
    fixed = (k @ mean_q - mean_q @ mean_k).square()
    # What one softmax row sees: the query is fixed.
    within(fixed, float(mean_q @ cov_k @ mean_q))


def test_the_independent_case_is_the_general_one_with_unit_covariances() -> None:
    eye, zero = torch.eye(7, dtype=torch.float64), torch.zeros(7, dtype=torch.float64)
    general = variance_general(4 * eye, 9 * eye, zero, zero)
    assert general == closed_form.variance_independent(7, 2.0, 3.0) == 7 * 4 * 9


def test_second_moment_of_correlated_q_and_k() -> None:
    d, draws = 5, 400_000
    joint = covariance(2 * d, 3)
    cov_q, cov_k, cross = joint[:d, :d], joint[d:, d:], joint[:d, d:]
    qk = torch.randn(draws, 2 * d, dtype=torch.float64) @ torch.linalg.cholesky(joint).T
    r = (qk[:, :d] * qk[:, d:]).sum(1)
    within(r.square(), second_moment_gaussian(cov_q, cov_k, cross))


def test_equal_correlations_are_a_case_of_the_formula_and_grow_like_d() -> None:
    eye = torch.eye(11, dtype=torch.float64)
    gaussian = second_moment_gaussian(eye, eye, 0.3 * eye)
    assert closed_form.second_moment_aligned(11, 0.3, 1.0) == pytest.approx(gaussian)
    assert closed_form.variance_aligned(11, 0.3, 1.0) == pytest.approx(11 * (1 + 0.3**2))
    d_ks = (2**20, 2**22)
    rms = [math.sqrt(closed_form.second_moment_aligned(d, 0.3, 1.0)) for d in d_ks]
    assert growth_exponent(d_ks, rms).value == pytest.approx(1, abs=1e-5)
    row = [math.sqrt(closed_form.row_variance_aligned(d, 0.3, 14, 7)) for d in d_ks]
    assert growth_exponent(d_ks, row).value == pytest.approx(1, abs=1e-4)
    # What all keys of a row share, softmax does not see: the exponent stays 1/2.
    shared = [math.sqrt(closed_form.row_variance_aligned(d, 0.3, 14, 14)) for d in d_ks]
    assert growth_exponent(d_ks, shared).value == pytest.approx(0.5)
    assert shared[0] ** 2 == pytest.approx(d_ks[0] * (1 - 0.3**2))


@pytest.mark.parametrize("init", INITS)
def test_weight_variance_is_what_the_layers_get(init: str) -> None:
    layer = nn.Linear(256, 384, bias=False)
    initialise(layer, init)
    within(layer.weight.flatten().square(), closed_form.weight_variance(init, 256, 384))


def test_projection_std_of_each_init() -> None:
    sigma = {init: closed_form.projection_std(init, 64, 64) for init in INITS}
    expected = {"torch": 3**-0.5, "xavier": 1.0, "kaiming": 2**0.5, "unit": 1.0}
    assert sigma == pytest.approx(expected)
    with pytest.raises(ValueError, match=r"model\.init=glorot"):
        closed_form.projection_std("glorot", 64, 64)


@pytest.mark.parametrize("d_k", [1, 2, 3, 16, 64, 101, 102, 1024])
def test_score_density_integrates_to_one_and_has_variance_d(d_k: int) -> None:
    far = 40 * math.sqrt(d_k) + 40
    points = [1e-3, 1.0, math.sqrt(d_k)]
    for power, expected in ((0, 1.0), (2, d_k), (4, 3 * d_k**2 + 6 * d_k)):
        integral, _ = quad(
            lambda r, p=power: r**p * float(closed_form.score_density(r, d_k)),
            0,
            far,
            points=points,
            limit=400,
        )
        assert 2 * integral == pytest.approx(expected, rel=1e-8)


def test_score_density_in_known_cases() -> None:
    r = np.array([-3.0, -0.5, 0.0, 1e-200, 0.5, 3.0])
    assert closed_form.score_density(r, 2) == pytest.approx(np.exp(-np.abs(r)) / 2)
    assert closed_form.score_density(0.0, 1) == math.inf
    at_zero = math.gamma(1.5) / (2 * math.sqrt(math.pi) * math.gamma(2))
    assert closed_form.score_density([0.0, 1e-250], 4) == pytest.approx([at_zero, at_zero])
    s = np.linspace(-4, 4, 81)
    near = closed_form.logit_density(s, 4096, 4096**-0.5)
    assert near == pytest.approx(closed_form.normal_density(s, 1.0), abs=2e-4)


def test_jacobian_is_autograds() -> None:
    s = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    # Row j of each Jacobian is the gradient of weight j.
    columns = [torch.autograd.grad(s.softmax(-1)[:, j].sum(), s)[0] for j in range(7)]
    expected = torch.stack(columns, dim=1)
    p = s.softmax(-1)
    torch.testing.assert_close(p.diag_embed() - p[:, :, None] * p[:, None], expected)
    torch.testing.assert_close(jacobian_norm(p), torch.linalg.matrix_norm(expected))


def test_jacobian_norm_at_its_ends() -> None:
    uniform = jacobian_norm(torch.full((14,), 1 / 14, dtype=torch.float64))
    assert uniform.item() == pytest.approx(math.sqrt(13) / 14)
    assert jacobian_norm(torch.eye(14)[0]).item() == 0


@pytest.mark.parametrize("n", RHO)
def test_top_gap_density_is_the_mean_of_the_largest(n: int) -> None:
    rho = closed_form_softmax.top_gap_density(n)

    # Integrated by parts: ρ_n is the mean of the largest of n standard normals.
    def integrand(x: float) -> float:
        density = math.exp(-x * x / 2 + (n - 1) * float(log_ndtr(x))) / math.sqrt(2 * math.pi)
        return n * x * density

    largest, _ = quad(integrand, -12, 12, limit=400)
    assert rho == pytest.approx(largest, rel=1e-7)
    assert abs(rho - RHO[n]) < 1.1e-3 + 5e-4, (rho, RHO[n])


def test_saturated_means_are_integrals_over_the_gap() -> None:
    n, beta, tau = 14, 100.0, 0.9
    ratio = closed_form_softmax.top_gap_density(n) / beta

    def integral(name: str) -> float:
        def of(x: float) -> float:
            p = 1 / (1 + math.exp(-x))
            weights = torch.tensor([p, 1 - p], dtype=torch.float64)
            norm = jacobian_norm(weights).item()
            entropy = -sum(w * math.log(w) for w in (p, 1 - p) if w > 0)
            values = {
                "p_max": 1 - p,
                "concentration": 2 * p * (1 - p),
                "entropy": entropy,
                "jacobian": norm,
                "jacobian_square": norm**2,
            }
            return values[name]

        value, _ = quad(of, 0, 30, epsabs=1e-8)
        return ratio * float(value)

    limit = closed_form_softmax.saturated(n, beta)
    assert 1 - limit["p_max"] == pytest.approx(integral("p_max"), rel=1e-5)
    assert 1 - limit["concentration"] == pytest.approx(integral("concentration"), rel=1e-5)
    for name in ("entropy", "jacobian", "jacobian_square"):
        assert limit[name] == pytest.approx(integral(name), rel=1e-5), name
    assert limit["gain"] == pytest.approx(beta * math.sqrt(limit["jacobian_square"]))
    below = closed_form_softmax.share_below(n, beta, tau)
    assert below == pytest.approx(ratio * math.log(9))
    top = (1 + math.sqrt(0.9)) / 2
    assert 2 * top * (1 - top) == pytest.approx(0.05)
    live = closed_form_softmax.live_share(n, beta, 0.05)
    assert live == pytest.approx(closed_form_softmax.share_below(n, beta, top))


def test_limits_meet_at_the_critical_deviation() -> None:
    n = 14
    critical = closed_form_softmax.beta_critical(n)
    assert critical == pytest.approx(2.30, abs=5e-3)
    assert closed_form_softmax.entropy_small_beta(10**6, 1e-9) == pytest.approx(math.log(10**6))


def test_softmax_sees_only_differences() -> None:
    # [1, .5, -.5] and [10, 9.5, 8.5] have equal differences, so the second is not sharper; what
    # sharpens a softmax is spread, as in ten times the first.
    rows = torch.tensor([[1, 0.5, -0.5], [10, 9.5, 8.5], [100, 99.5, 98.5]], dtype=torch.float64)
    weights = rows.softmax(-1)
    expected = torch.tensor([0.54655, 0.33150, 0.12195], dtype=torch.float64)
    torch.testing.assert_close(weights, expected.expand(3, 3), atol=5e-6, rtol=0)
    assert (10 * rows[0]).softmax(-1)[0].item() == pytest.approx(0.9933, abs=5e-5)


def test_largest_weight_and_its_slope() -> None:
    a = torch.linspace(0.0, 40.0, 41, dtype=torch.float64, requires_grad=True)
    largest = torch.stack([a, a, 2 * a], dim=-1).softmax(-1)[..., 2]
    (slope,) = torch.autograd.grad(largest.sum(), a)
    for x, weight, rise in zip(a.tolist(), largest.tolist(), slope.tolist(), strict=True):
        assert closed_form_softmax.largest_weight(x) == pytest.approx(weight)
        predicted = closed_form_softmax.largest_weight_slope(x)
        assert predicted == pytest.approx(rise, rel=1e-6, abs=1e-15)
    assert closed_form_softmax.largest_weight_slope(100.0) == pytest.approx(2 * math.exp(-100))


def test_arguments_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="n=1"):
        closed_form_softmax.top_gap_density(1)
    with pytest.raises(ValueError, match="beta=0"):
        closed_form_softmax.saturated(14, 0)
    with pytest.raises(ValueError, match=r"tau=0\.5"):
        closed_form_softmax.share_below(14, 9.0, 0.5)
    with pytest.raises(ValueError, match=r"threshold=0\.5"):
        closed_form_softmax.live_share(14, 9.0, 0.5)
    with pytest.raises(ValueError, match="d_k=0"):
        closed_form.score_density(1.0, 0)
    with pytest.raises(ValueError, match="aligned=3"):
        closed_form.row_variance_aligned(4, 0.5, 2, 3)
