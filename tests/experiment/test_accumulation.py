"""Steps do not depend on how their examples are cut: into batches, or over processes."""

from typing import Any

import pytest
import torch

from tests.experiment.test_translation import SMALL

COMMON = (
    "trainer.max_epochs=2",
    "trainer.gradient_clip_val=0.5",
    "trainer.limit_test_batches=0",
    "optimizer=sgd",
    "optimizer.lr=0.3",
    "callbacks=[curves,checkpoint]",
)
TASKS = {
    "reconstruction": ("data.n_train=20", "data.n_val=9"),
    # Sentences of a batch are of similar length, so that batches have unequally many tokens.
    "translation": (*SMALL, "data.n_train=20", "model.dropout=0", "data.batch_tokens=null"),
}


def trained(lab: Any, *overrides: str) -> tuple[torch.Tensor, list[float]]:
    """Return the weights at the end, and loss and gradient norm of every step."""
    result = lab.run(*overrides, *COMMON)
    state = torch.load(result.last_checkpoint)["state_dict"]
    points = [
        value
        for metric in ("train/loss", "grad_norm/total")
        for _, value in lab.curve(result.run_id, metric)
    ]
    return torch.cat([weight.flatten() for weight in state.values()]), points


@pytest.mark.parametrize(
    "more", [(), pytest.param(("trainer=ddp_cpu",), marks=pytest.mark.slow)], ids=["one", "two"]
)
@pytest.mark.parametrize(
    ("task", "size", "accumulate"),
    [("reconstruction", "data.batch_size", 9), ("translation", "data.batch_sentences", 3)],
)
def test_accumulated_batches_of_unequal_size_are_one_large_batch(
    lab: Any, task: str, size: str, accumulate: int, more: tuple[str, ...]
) -> None:
    """Batches of 8, 8 and 4, which are a step also where 9 are accumulated."""
    weights, points = trained(lab, *TASKS[task], f"{size}=20")
    cut = (f"{size}=8", f"trainer.accumulate_grad_batches={accumulate}", *more)
    weights_of_cut, points_of_cut = trained(lab, *TASKS[task], *cut)
    assert points_of_cut == pytest.approx(points, rel=2e-5)
    torch.testing.assert_close(weights_of_cut, weights, rtol=1e-5, atol=1e-6)
