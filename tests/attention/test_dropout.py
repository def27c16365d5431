import math

import pytest
import torch

from attnscale.attention.dropout import LANES, Dropout, dropout

PROBABILITIES = pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
N = 400_000


def allowed(p: float, n: int = N) -> float:
    """Return five standard errors of the fraction of n that is dropped."""
    return 5 * math.sqrt(p * (1 - p) / n)


@PROBABILITIES
def test_the_fraction_that_is_dropped(p: float) -> None:
    fraction = float((dropout(torch.ones(N), p) == 0).float().mean())
    assert abs(fraction - p) < allowed(p), f"{fraction} dropped, wanted {p} ± {allowed(p)}"


@PROBABILITIES
def test_each_lane_drops_alike(p: float) -> None:
    gone = (dropout(torch.ones(N), p) == 0).view(-1, LANES)
    for lane, fraction in enumerate(gone.float().mean(dim=0).tolist()):
        assert abs(fraction - p) < allowed(p, N // LANES), f"lane {lane}: {fraction}"


@pytest.mark.parametrize("p", [0.3, 0.5])
def test_lanes_and_neighbours_are_independent(p: float) -> None:
    gone = (dropout(torch.ones(N), p) == 0).float() - p
    for distance in (1, 2, 3, 4, 5, 8):
        correlation = float((gone[distance:] * gone[:-distance]).mean()) / (p * (1 - p))
        assert abs(correlation) < 5 / math.sqrt(N), f"distance {distance}: {correlation}"


@pytest.mark.parametrize("p", [2**-16, 3 * 2**-16, 0.999, 0.9999, 1 - 2**-17])
def test_small_differences_of_the_probability_count(p: float) -> None:
    n = 4_000_000
    fraction = float((dropout(torch.ones(n), p) == 0).float().mean())
    assert abs(fraction - p) < allowed(p, n), f"{fraction} dropped, wanted {p}"


@PROBABILITIES
def test_what_is_kept_is_scaled(p: float) -> None:
    x = torch.randn(N, dtype=torch.float64)
    made = dropout(x, p)
    kept = made != 0
    torch.testing.assert_close(made[kept], x[kept] / (1 - p), rtol=1e-12, atol=0.0)


@PROBABILITIES
def test_the_mean_stays(p: float) -> None:
    mean = float(dropout(torch.full((N,), 3.0, dtype=torch.float64), p).mean())
    assert abs(mean - 3.0) < 3.0 * allowed(p) / (1 - p)


@PROBABILITIES
def test_gradients_have_the_same_mask(p: float) -> None:
    x = torch.randn(7, 11, 13, dtype=torch.float64, requires_grad=True)
    made = dropout(x, p)
    cotangent = torch.randn_like(made)
    (gradient,) = torch.autograd.grad(made, x, cotangent)
    mask = (made != 0).double() / (1 - p)
    assert 0 < int((made == 0).sum()) < x.numel()
    torch.testing.assert_close(gradient, cotangent * mask, rtol=1e-12, atol=0.0)


def test_the_input_stays_as_it_is() -> None:
    x = torch.randn(99)
    kept = x.clone()
    dropout(x, 0.5)
    assert torch.equal(x, kept)


def test_no_probability_changes_nothing() -> None:
    x = torch.randn(101)
    assert torch.equal(dropout(x, 0.0), x)
    assert torch.equal(Dropout(0.0)(x), x)


def test_evaluation_changes_nothing() -> None:
    x = torch.randn(101)
    module = Dropout(0.5)
    assert not torch.equal(module(x), x)
    module.eval()
    assert torch.equal(module(x), x)
    assert torch.equal(module.train()(x) != 0, torch.ones(101, dtype=torch.bool)) is False


def test_a_seed_draws_the_same_mask() -> None:
    x = torch.randn(1001)
    made = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        made.append((dropout(x, 0.4), dropout(x, 0.4)))
    assert torch.equal(made[0][0], made[1][0])
    assert torch.equal(made[0][1], made[1][1])
    assert not torch.equal(made[0][0], made[0][1])
    assert not torch.equal(made[0][0], made[2][0])


@pytest.mark.parametrize("shape", [(1,), (2,), (3,), (5,), (7, 3), (1, 1, 9), (), (0,), (4, 0)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    x = torch.full(shape, 2.0)
    drawn = torch.stack([dropout(x, 0.5) for _ in range(64)])
    assert drawn.shape == (64, *shape)
    assert bool(((drawn == 0) | (drawn == 4)).all())
    # Each element is dropped sometimes and kept sometimes; it fails with 2⁻⁶³ a time.
    assert bool(((drawn == 0).any(dim=0) & (drawn == 4).any(dim=0)).all())


def test_a_view_is_dropped_by_its_elements() -> None:
    x = torch.ones(31, 17).t()
    assert not x.is_contiguous()
    made = dropout(x, 0.3)
    assert made.shape == (17, 31)
    assert set(made.flatten().tolist()) == {0.0, float(torch.tensor(1 / 0.7))}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_types_stay(dtype: torch.dtype) -> None:
    x = torch.ones(10_001, dtype=dtype, requires_grad=True)
    made = dropout(x, 0.5)
    assert made.dtype == dtype
    assert set(made.tolist()) == {0.0, 2.0}
    (gradient,) = torch.autograd.grad(made.sum(), x)
    assert gradient.dtype == dtype
    assert torch.equal(gradient, made.detach())


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5, math.nan])
def test_a_probability_is_checked(p: float) -> None:
    with pytest.raises(ValueError, match=r"model\.dropout=.*: must be at least 0 and below 1"):
        Dropout(p)
