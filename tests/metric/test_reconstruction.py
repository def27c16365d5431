from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from attnscale.metric import ReconstructionError

N, LENGTH, D_MODEL = 101, 7, 5


def draw(mean: float = 0.3, spread: float = 2.0) -> tuple[Tensor, Tensor]:
    target = mean + spread * torch.randn(N, LENGTH, D_MODEL)
    return 0.8 * target + 0.3 * torch.randn(N, LENGTH, D_MODEL), target


def measured(prediction: Tensor, target: Tensor, sizes: Sequence[int]) -> dict[str, Tensor]:
    metric = ReconstructionError()
    batches = (torch.split(x, list(sizes)) for x in (prediction, target))
    for batch in zip(*batches, strict=True):
        metric.update(*batch)
    made: dict[str, Tensor] = metric.compute()
    return made


def test_equals_the_formula() -> None:
    prediction, target = draw()
    found = measured(prediction, target, [N])
    x_hat, x = prediction.double().numpy(), target.double().numpy()
    error = np.sum((x_hat - x) ** 2)
    assert float(found["loss"]) == pytest.approx(error / x.size, rel=1e-12, abs=0)
    wanted = 1 - error / np.sum((x - x.mean()) ** 2)
    assert float(found["explained_variance"]) == pytest.approx(wanted, rel=1e-12, abs=0)
    assert found["count"] == x.size
    assert set(found) == {"loss", "explained_variance", "count"}


@pytest.mark.parametrize(
    "sizes",
    [[1] * N, [50, 51], [100, 1], [7] * 14 + [3], [0, N], [40, 0, 61]],
    ids=lambda sizes: f"{len(sizes)} batches from {sizes[0]}",
)
def test_does_not_depend_on_the_batches(sizes: list[int]) -> None:
    prediction, target = draw()
    whole, cut = measured(prediction, target, [N]), measured(prediction, target, sizes)
    for name, value in whole.items():
        torch.testing.assert_close(cut[name], value, rtol=1e-12, atol=0)


def test_does_not_depend_on_the_order() -> None:
    prediction, target = draw()
    order = torch.randperm(N)
    whole = measured(prediction, target, [50, 51])
    mixed = measured(prediction[order], target[order], [50, 51])
    for name, value in whole.items():
        torch.testing.assert_close(mixed[name], value, rtol=1e-12, atol=0)


def test_does_not_depend_on_the_processes() -> None:
    prediction, target = draw()
    whole = measured(prediction, target, [N])
    first, second = ReconstructionError(), ReconstructionError()
    first.update(prediction[::2], target[::2])
    second.update(prediction[1::2], target[1::2])
    first.merge_state(second)
    for name, value in first.compute().items():
        torch.testing.assert_close(value, whole[name], rtol=1e-12, atol=0)


def test_sums_are_kept_in_fp64() -> None:
    target = torch.full((1, 1, 1), 4096.0)
    metric = ReconstructionError()
    metric.update(target + 64, target)
    for _ in range(10):
        metric.update(target + 2**-11, target)
    assert float(metric.compute()["loss"]) == pytest.approx(
        (4096 + 10 * 2**-22) / 11, rel=1e-15, abs=0
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_takes_every_precision(dtype: torch.dtype) -> None:
    prediction, target = (x.to(dtype) for x in draw())
    found = measured(prediction, target, [N])
    wanted = (prediction.double() - target.double()).square().mean()
    torch.testing.assert_close(found["loss"], wanted, rtol=1e-12, atol=0)


def test_a_perfect_reconstruction_explains_everything() -> None:
    _, target = draw()
    found = measured(target, target, [N])
    assert found["loss"] == 0
    assert found["explained_variance"] == 1


def test_the_mean_of_the_set_explains_nothing() -> None:
    _, target = draw()
    found = measured(target.mean().expand_as(target), target, [N])
    assert float(found["explained_variance"]) == pytest.approx(0, abs=1e-10)
    assert float(found["loss"]) == pytest.approx(float(target.var(correction=0)), rel=1e-5)


def test_starts_anew_after_a_reset() -> None:
    prediction, target = draw()
    metric = ReconstructionError()
    metric.update(prediction[:7] + 5, target[:7])
    metric.reset()
    metric.update(prediction, target)
    whole = measured(prediction, target, [N])
    for name, value in metric.compute().items():
        assert torch.equal(value, whole[name])
