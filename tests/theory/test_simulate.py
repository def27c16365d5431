import math
import subprocess
import sys
from itertools import pairwise, product

import pytest
import torch

from attnscale.analysis.estimate import Estimate
from attnscale.theory import closed_form, closed_form_softmax
from attnscale.theory.draws import Sums, mean_of
from attnscale.theory.simulate import (
    VARIANCES,
    Growth,
    Setting,
    density_of,
    draw_logits,
    score_variance,
)
from attnscale.theory.simulate_softmax import (
    INIT_CASES,
    gradient_statistics,
    softmax_statistics,
)

D_KS = (16, 64, 256)
COLUMNS = ("entropy_norm", "p_max", "participation", "jacobian", "gain", "saturated")
N_14 = (
    ("0.125", ".997", ".088", "13.8", ".259", ".032", "0"),
    ("0.333", ".981", ".121", "12.7", ".267", ".089", "0"),
    ("0.403", ".972", ".134", "12.2", ".272", ".109", "0"),
    ("0.5", ".957", ".153", "11.3", ".279", ".139", "0"),
    ("1", ".846", ".266", "7.39", ".318", ".318", "0"),
    ("1.14", ".809", ".299", "6.58", ".326", ".372", "0"),
    ("2.67", ".464", ".583", "2.82", ".321", ".901", ".089"),
    ("4", ".311", ".708", "2.03", ".270", "1.24", ".261"),
    ("7.54", ".158", ".841", "1.46", ".180", "1.89", ".546"),
    ("8", ".147", ".851", "1.42", ".171", "1.95", ".569"),
    ("11.3", ".102", ".894", "1.28", ".130", "2.40", ".684"),
    ("22.6", ".049", ".948", "1.13", ".070", "3.48", ".839"),
)
"""β and COLUMNS from 60,000 other draws at n = 14, with the digits that were printed."""


def half_digit(printed: str) -> float:
    return 0.5 * 10.0 ** -len(printed.partition(".")[2])


def close(estimate: Estimate, expected: float, sigmas: float = 4.0, slack: float = 0.0) -> None:
    distance = abs(estimate.value - expected)
    allowed = sigmas * estimate.error + slack
    assert distance <= allowed, f"{estimate.value} ± {estimate.error}, expected {expected}"


def growth_of(growths: list[Growth], name: str) -> Growth:
    return next(growth for growth in growths if growth.variance == name)


def test_table_at_n_14() -> None:
    rows = softmax_statistics(list(INIT_CASES.values()), 14, draws=60_000, seed=0)
    wrong = []
    for (case, exact), row, (beta, *printed) in zip(INIT_CASES.items(), rows, N_14, strict=True):
        # The published table rounds some β up: 9.1/√512 = 0.40216 is printed as 0.403.
        assert abs(exact - float(beta)) <= 1.1 * half_digit(beta) + 5e-4, (case, beta)
        for name, digits in zip(COLUMNS, printed, strict=True):
            estimate: Estimate = getattr(row, name)
            # Both tables are samples of 60,000 rows: √2 of one error, at 4 sigmas. A share printed
            # as 0 was below half of its column's digit.
            rounding = 5e-4 if digits == "0" else half_digit(digits)
            allowed = 4 * math.sqrt(2) * estimate.error + rounding
            if abs(estimate.value - float(digits)) > allowed:
                wrong.append(
                    f"{case}: {name} {estimate.value:.4f} ± {estimate.error:.4f}, {digits}"
                )
    assert not wrong, "\n".join(wrong)


def test_small_and_large_spread_meet_their_closed_forms() -> None:
    n = 14
    flat, small, large = softmax_statistics([0.0, 0.1, 100.0], n, draws=20_000, seed=1)
    assert flat.entropy.value == pytest.approx(math.log(n))
    assert flat.jacobian.value == pytest.approx(math.sqrt(n - 1) / n)
    assert flat.live.value == 1
    # What is left out is of order β⁴ (entropy) and β² of the 1/n² that the form e^β²/n neglects.
    close(small.entropy, closed_form_softmax.entropy_small_beta(n, 0.1), slack=0.1**4)
    close(small.concentration, math.exp(0.1**2) / n, slack=1e-4)
    limit = closed_form_softmax.saturated(n, 100.0)
    for name in ("p_max", "concentration", "entropy", "jacobian"):
        close(getattr(large, name), limit[name], slack=3e-4)
    close(large.gain, limit["gain"], slack=0.01 * limit["gain"])
    close(large.live, closed_form_softmax.live_share(n, 100.0, 0.05), slack=2e-3)
    below = closed_form_softmax.share_below(n, 100.0, 0.9)
    close(large.saturated, 1 - below, slack=1e-3)


def test_independent_scores_grow_like_root_d() -> None:
    rows, growths = score_variance(D_KS, Setting(kind="independent"), draws=12, seed=1)
    assert [(row.d_k, row.variance) for row in rows] == list(product(D_KS, VARIANCES))
    for row in rows:
        assert row.predicted == row.d_k
        close(row.simulated, row.d_k, sigmas=5)
    assert [growth.predicted for growth in growths] == pytest.approx([0.5] * 3)
    for growth in growths:
        close(growth.exponent, 0.5, sigmas=5)


def test_correlated_scores_grow_like_d() -> None:
    d_ks = (256, 512, 1024)
    setting = Setting(kind="correlated", rho=0.8, aligned=7, n_rows=32)
    rows, growths = score_variance(d_ks, setting, draws=12, seed=1)
    for row in rows:
        close(row.simulated, row.predicted, sigmas=5)
    for growth in growths:
        close(growth.exponent, growth.predicted, sigmas=5)
        close(growth.exponent, 1.0, slack=0.03)


def test_a_correlation_that_all_keys_share_is_not_in_the_row() -> None:
    setting = Setting(kind="correlated", rho=0.8, aligned=14, n_rows=32)
    _, growths = score_variance((256, 1024), setting, draws=12, seed=1)
    close(growth_of(growths, "second").exponent, 1.0, slack=0.01)
    close(growth_of(growths, "row").exponent, 0.5, sigmas=5)


@pytest.mark.parametrize("init", ["torch", "xavier", "kaiming", "unit"])
def test_projected_scores_have_the_variance_of_their_init(init: str) -> None:
    setting = Setting(kind="projected", init=init, d_model=96, n_heads=2, n_rows=32)
    rows, growths = score_variance(D_KS, setting, draws=16, seed=2)
    for row in rows:
        if row.variance == "total":
            sigma = closed_form.projection_std(init, 96, 2 * row.d_k)
            assert row.predicted == pytest.approx(row.d_k * sigma**4)
        close(row.simulated, row.predicted, sigmas=5)
    close(growth_of(growths, "row").exponent, growth_of(growths, "row").predicted, sigmas=5)


def test_similar_inputs_leave_less_variance_within_a_row() -> None:
    setting = Setting(kind="projected", x_cos=0.5)
    rows, _ = score_variance((32, 128), setting, draws=16, seed=3)
    for row in rows:
        if row.variance == "row":
            assert row.predicted == pytest.approx(row.d_k / 2, rel=0.02)
            close(row.simulated, row.predicted, sigmas=5)
        if row.variance == "total":
            close(row.simulated, row.d_k, sigmas=5)


@pytest.mark.parametrize("scale", ["sqrt", "none", 0.1])
@pytest.mark.parametrize("d_k", [16, 1024])
def test_histogram_has_the_exact_density(scale: str | float, d_k: int) -> None:
    factor = {"sqrt": d_k**-0.5, "none": 1.0}[scale] if isinstance(scale, str) else scale
    spread = factor * math.sqrt(d_k)
    edges = [spread * (i / 2 - 3) for i in range(13)]
    logits = draw_logits(d_k, scale, draws=6_000, seed=4)
    close(mean_of((logits - logits.mean()).square()), spread**2)
    width = spread / 2
    density = density_of(logits, edges)
    for i, (low, high) in enumerate(pairwise(edges)):
        # Simpson's rule over the bin.
        ends_and_middle = closed_form.logit_density([low, (low + high) / 2, high], d_k, factor)
        mean = float(ends_and_middle @ [1, 4, 1]) / 6
        share = density[i] * width
        error = math.sqrt(share * (1 - share) / 6_000) / width
        assert abs(density[i] - mean) < 4.5 * error + 2e-3 * mean
    assert torch.equal(logits, draw_logits(d_k, scale, draws=6_000, seed=4))


def test_gradients_of_q_and_k_are_predicted() -> None:
    growth = {}
    for scale in ("sqrt", "none"):
        rows = gradient_statistics((64, 256), scale, n=14, draws=3_000, seed=5)
        for row in rows:
            assert row.beta.value == pytest.approx(row.d_k**0.5 if scale == "none" else 1, rel=0.03)
            # The prediction neglects terms of relative size 1/d_k.
            for gradient in (row.query, row.keys):
                close(gradient, row.predicted, sigmas=5, slack=2 / row.d_k * row.predicted)
        growth[scale] = [row.query.value for row in rows]
    # Without the factor the gradient at initialisation is larger, and rows that can move fewer.
    assert growth["none"][0] > 4 * growth["sqrt"][0]
    assert growth["none"][1] > growth["none"][0]


def test_simulations_leave_the_generator_alone_and_follow_their_seed() -> None:
    state = torch.get_rng_state()
    first = softmax_statistics([1.0], 5, draws=100, seed=1)
    setting = Setting(n_rows=3)
    variances = score_variance((2, 3), setting, draws=2, seed=1)
    assert torch.equal(state, torch.get_rng_state())
    assert softmax_statistics([1.0], 5, draws=100, seed=1) == first
    assert softmax_statistics([1.0], 5, draws=100, seed=2) != first
    assert score_variance((2, 3), setting, draws=2, seed=1) == variances


def test_estimates() -> None:
    values = torch.randn(50, dtype=torch.float64)
    sums = Sums()
    for start in range(0, 50, 7):
        sums.add(values[start : start + 7])
    estimate = sums.mean()
    whole = mean_of(values)
    assert (estimate.value, estimate.error) == pytest.approx((whole.value, whole.error))
    assert (estimate.low, estimate.high) == pytest.approx((whole.low, whole.high))
    assert estimate.error == pytest.approx(values.std().item() / math.sqrt(50))
    assert estimate.high - estimate.value == pytest.approx(2.00958 * estimate.error, rel=1e-5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "dependent"}, "kind=dependent"),
        ({"n_keys": 1}, "n_keys=1"),
        ({"aligned": 15}, "aligned=15"),
        ({"rho": 1.5}, r"rho=1\.5"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, str | float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Setting(**wrong)  # type: ignore[arg-type]


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="draws=1"):
        score_variance((2, 3), Setting(), draws=1, seed=0)
    with pytest.raises(ValueError, match=r"model\.init=glorot"):
        score_variance((2, 3), Setting(kind="projected", init="glorot"), draws=2, seed=0)
    with pytest.raises(ValueError, match="betas="):
        softmax_statistics([-1.0], 5, draws=10, seed=0)
    with pytest.raises(ValueError, match="edges="):
        density_of(torch.zeros(10).double(), [1.0, 0.0])


def test_theory_loads_no_framework() -> None:
    heavy = ("mlflow", "hydra", "omegaconf", "pytorch_lightning", "vl_convert", "jinja2")
    code = (
        "import sys, attnscale.theory.simulate, attnscale.theory.simulate_softmax\n"
        f"sys.exit(', '.join(m for m in {heavy!r} if m in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
