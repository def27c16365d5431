"""QK-Clip in a run."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from attnscale.attention import tapped
from attnscale.data.gaussian import draw
from attnscale.experiment.assemble import assemble
from attnscale.experiment.checkpoints import load_checkpoint

TAU = 0.5
SHORT = (
    "trainer.max_epochs=1",
    "data.n_train=96",
    "data.n_val=30",
    "data.n_test=30",
    "model.n_heads=2",
    "model.bias=true",
    "attention.scale=none",
)
CLIP = f"attention.qk_clip={TAU}"


def weights(result: Any) -> Mapping[str, Tensor]:
    return load_checkpoint(str(result.last_checkpoint)).tensors


def largest(lab: Any, result: Any) -> float:
    """Return the largest logit of a run's last weights on its training data."""
    module = assemble(lab.config(*SHORT), None).module
    module.load_state_dict(weights(result))
    found: list[float] = []
    with tapped(module.model, lambda _, seen: found.append(float(seen.logits().max()))):
        module.model(draw(n=96, length=8, d_model=128, seed=0, split="train"))
    return max(found)


def test_no_logit_stays_above_the_threshold(lab: Any) -> None:
    # Without steps of the optimizer weights only shrink, batch after batch.
    free, clipped = (lab.run(*SHORT, "optimizer.lr=0.0", *more) for more in ((), (CLIP,)))
    assert largest(lab, free) > 2 * TAU
    assert largest(lab, clipped) == pytest.approx(TAU, rel=1e-4)


@pytest.mark.slow
def test_growing_logits_are_held(lab: Any) -> None:
    more = ("optimizer.lr=3e-3", "trainer.max_epochs=20")
    free, clipped = (lab.run(*SHORT, *more, *clip) for clip in ((), ("attention.qk_clip=5",)))
    assert largest(lab, free) > 4 * 5
    # One step of the optimizer may go over; the next one starts from below.
    assert largest(lab, clipped) < 1.5 * 5
    for name, value in weights(free).items():
        assert not torch.equal(value, weights(clipped)[name]), name


def test_weights_shrink_after_the_step(lab: Any) -> None:
    once = (*SHORT, "optimizer.lr=1e-2", "trainer.max_steps=1")
    free, clipped = (weights(lab.run(*once, *clip)) for clip in ((), (CLIP,)))
    shrink = []
    for name in ("q.weight", "q.bias", "k.weight", "k.bias"):
        made, plain = (w[f"model.layers.0.attention.{name}"].view(2, -1) for w in (clipped, free))
        factor = (made * plain).sum(dim=1) / plain.square().sum(dim=1)
        assert bool((factor < 0.9).all())
        torch.testing.assert_close(made, plain * factor[:, None])
        shrink.append(factor)
    for factor in shrink[1:]:
        torch.testing.assert_close(factor, shrink[0])


def test_a_high_threshold_changes_nothing(lab: Any) -> None:
    free, clipped = (lab.run(*SHORT, *clip) for clip in ((), ("attention.qk_clip=1000",)))
    first, second = weights(free), weights(clipped)
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_the_share_reaches_the_weights(lab: Any) -> None:
    still = (*SHORT, "optimizer.lr=0.0")
    start = weights(lab.run(*still))
    moved = weights(lab.run(*still, CLIP, "attention.qk_clip_alpha=0.0"))
    changed = {name.split(".")[-2] for name in start if not torch.equal(start[name], moved[name])}
    assert changed == {"k"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [
        ("trainer.accumulate_grad_batches=3", "data.batch_size=32"),
        ("data.batch_size=96", "trainer=ddp_cpu"),
    ],
)
def test_a_step_is_one_whatever_it_is_made_of(lab: Any, other: tuple[str, ...]) -> None:
    still = (*SHORT, "optimizer.lr=0.0", CLIP)
    first, second = (weights(lab.run(*still, *more)) for more in (("data.batch_size=96",), other))
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("attention.qk_clip=0",), r"attention\.qk_clip=0\.0: must be positive"),
        ((CLIP, "attention.qk_clip_alpha=2"), r"attention\.qk_clip_alpha=2\.0: must be from 0"),
        (
            (CLIP, "attention.sigma_reparam=qk"),
            r"attention\.qk_clip=0\.5: cannot be used together with attention\.sigma_reparam=qk",
        ),
    ],
)
def test_a_mistake_names_its_key(lab: Any, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lab.run(*SHORT, *overrides)
