"""Clipped norms and update ratios against gradients taken by hand."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pytorch_lightning.plugins.precision import MixedPrecision
from torch import Tensor, nn

from attnscale.attention import attentions
from attnscale.callbacks.gradient_stats import GradientStats
from attnscale.experiment.assemble import Parts
from attnscale.task.qk_clip import QKClip
from tests.callbacks.conftest import AUTOENCODER, Fit, Fitted

GROUPS = ("total", "q", "k", "v", "o")
RATE = 0.5
SGD = (
    *AUTOENCODER,
    "callbacks.pictures=null",
    "callbacks.attention_stats=null",
    "callbacks.watchdog=null",
    "callbacks.gradient_stats.every=1",
    "trainer.max_epochs=1",
    "optimizer=sgd",
    "optimizer.fused=false",
    f"optimizer.lr={RATE}",
)


class ByHand:
    """The gradient of the first step, from a copy of the model and the batches it saw."""

    def __init__(self) -> None:
        self.model = nn.Module()
        self.batches: list[Tensor] = []

    def __call__(self, parts: Parts) -> None:
        self.model = copy.deepcopy(parts.module.model)
        loss = parts.module.loss

        def spy(batch: Any) -> Tensor:
            if parts.module.training:
                self.batches.append(batch.x)
            return loss(batch)

        setattr(parts.module, "loss", spy)  # noqa: B010 -- one instance only

    def groups(self) -> dict[str, list[nn.Parameter]]:
        made = {"total": list(self.model.parameters())}
        for name in GROUPS[1:]:
            found = attentions(self.model).values()
            made[name] = [p for one in found for p in one.projections()[name]]
        return made

    def gradients(self, batches: int) -> dict[str, Tensor]:
        """Return the mean gradient over the first batches, each group as one long vector."""
        losses = [(self.model(x) - x).square().mean() for x in self.batches[:batches]]
        torch.stack(losses).mean().backward()  # type: ignore[no-untyped-call]
        return {name: self.joined(ps, gradient=True) for name, ps in self.groups().items()}

    def weights(self) -> dict[str, Tensor]:
        return {name: self.joined(ps, gradient=False) for name, ps in self.groups().items()}

    def joined(self, parameters: list[nn.Parameter], *, gradient: bool) -> Tensor:
        parts = [p.grad if gradient else p.detach() for p in parameters]
        return torch.cat([part.flatten() for part in parts if part is not None])


def first_step(done: Fitted, kind: str) -> dict[str, float]:
    return {group: done.points[f"{kind}/{group}"][0] for group in GROUPS}


@pytest.mark.parametrize("accumulate", [1, 3])
def test_an_update_is_the_rate_times_the_gradient(fit: Fit, accumulate: int) -> None:
    hand = ByHand()
    done = fit(*SGD, f"trainer.accumulate_grad_batches={accumulate}", before=hand)
    gradients, weights = hand.gradients(accumulate), hand.weights()
    for group, ratio in first_step(done, "update_ratio").items():
        norm = float(gradients[group].norm())
        assert ratio == pytest.approx(RATE * norm / float(weights[group].norm()), rel=1e-4), group
        assert done.points[f"grad_norm/{group}"][0] == pytest.approx(norm, rel=1e-4), group
    assert list(done.points["update_ratio/q"]) == list(range(done.trainer.global_step))
    assert not done.of("grad_norm_clipped", "grad_norm/clipped_share", "grad_norm/skipped")


@pytest.mark.parametrize("limit", [1e-2, 1e3])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_clipped_norm(fit: Fit, limit: float, accumulate: int) -> None:
    hand = ByHand()
    more = (f"trainer.gradient_clip_val={limit}", f"trainer.accumulate_grad_batches={accumulate}")
    done = fit(*SGD, *more, before=hand)
    gradients, weights = hand.gradients(accumulate), hand.weights()
    share = min(1.0, limit / float(gradients["total"].norm()))
    assert (share < 1) is (limit < 1)
    clipped, ratios = (first_step(done, kind) for kind in ("grad_norm_clipped", "update_ratio"))
    for group, gradient in gradients.items():
        norm = share * float(gradient.norm())
        assert clipped[group] == pytest.approx(norm, rel=1e-3), group
        size = float(weights[group].norm())
        assert ratios[group] == pytest.approx(RATE * norm / size, rel=1e-3), group
        # The norm before clipping is still recorded under its own name.
        assert done.points[f"grad_norm/{group}"][0] == pytest.approx(float(gradient.norm()), 1e-4)
    shares = set(done.points["grad_norm/clipped_share"].values())
    assert shares == ({1.0} if limit < 1 else {0.0})


def test_clipped_values(fit: Fit) -> None:
    hand, limit = ByHand(), 2e-3
    more = (f"trainer.gradient_clip_val={limit}", "trainer.gradient_clip_algorithm=value")
    done = fit(*SGD, *more, before=hand)
    clipped = first_step(done, "grad_norm_clipped")
    for group, gradient in hand.gradients(1).items():
        by_hand = float(gradient.clamp(-limit, limit).norm())
        assert clipped[group] == pytest.approx(by_hand, rel=1e-4), group
    assert clipped["total"] < 0.95 * done.points["grad_norm/total"][0]
    assert not done.of("grad_norm/clipped_share")


def test_the_share_of_clipped_steps(fit: Fit) -> None:
    free = fit(*SGD, "trainer.max_epochs=3")
    limit = sorted(free.points["grad_norm/total"].values())[5]
    done = fit(*SGD, "trainer.max_epochs=3", f"trainer.gradient_clip_val={limit}")
    norms = done.points["grad_norm/total"]
    assert len(norms) == 12
    for step, share in done.points["grad_norm/clipped_share"].items():
        seen = [norm > limit for at, norm in norms.items() if at <= step]
        assert share == pytest.approx(sum(seen) / len(seen))
    assert 0 < done.points["grad_norm/clipped_share"][11] < 1


def test_samples_are_as_rare_as_asked(fit: Fit) -> None:
    done = fit(*SGD, "trainer.max_epochs=3", "callbacks.gradient_stats.every=5")
    assert list(done.points["update_ratio/total"]) == [0, 5, 10]
    with pytest.raises(ValueError, match=r"gradient_stats\.every=0"):
        GradientStats(every=0)


def test_half_precision_is_close_to_full(fit: Fit) -> None:
    more = ("trainer.gradient_clip_val=0.1",)
    full, half = (fit(*SGD, *more, f"trainer.precision={p}") for p in ("32-true", "bf16-mixed"))
    for kind in ("grad_norm", "grad_norm_clipped", "update_ratio"):
        one, two = first_step(full, kind), first_step(half, kind)
        for group in GROUPS:
            assert two[group] == pytest.approx(one[group], rel=0.03), (kind, group)
            assert two[group] != one[group] or group == "total"


# --- gradients that are scaled against underflow ---


def scaled(initial: float, factor: float = 1.0) -> Any:
    """Return what gives a run a gradient scaler, on a CPU, and a loss that is so much larger."""

    def before(parts: Parts) -> None:
        plugin = MixedPrecision("bf16-mixed", "cpu")
        plugin.scaler = torch.amp.GradScaler("cpu", init_scale=initial)
        setattr(parts.trainer.strategy, "_precision_plugin", plugin)  # noqa: B010
        loss = parts.module.loss
        setattr(parts.module, "loss", lambda batch: factor * loss(batch))  # noqa: B010

    return before


def test_scaled_gradients_are_recorded_unscaled(fit: Fit) -> None:
    more = ("trainer.gradient_clip_val=0.1", "trainer.precision=bf16-mixed")
    plain, large = fit(*SGD, *more), fit(*SGD, *more, before=scaled(2.0**16))
    for kind in ("grad_norm", "grad_norm_clipped", "update_ratio"):
        one, two = first_step(plain, kind), first_step(large, kind)
        assert two == pytest.approx(one, rel=0.01), kind
    assert set(large.points["grad_norm/skipped"].values()) == {0.0}


def test_steps_that_a_scaler_skips_are_marked(fit: Fit) -> None:
    # A loss of 2^6 times 2^127 overflows until the scaler has halved its scale often enough.
    more = ("trainer.max_epochs=3", "optimizer.lr=1e-3")
    done = fit(*SGD, *more, before=scaled(2.0**127, 2.0**6))
    skipped = done.points["grad_norm/skipped"]
    assert list(skipped) == list(range(12))
    assert skipped[0] == 1.0
    assert skipped[11] == 0.0
    assert list(skipped.values()) == sorted(skipped.values(), reverse=True)
    for step, ratio in done.points["update_ratio/total"].items():
        assert (ratio == 0.0) is (skipped[step] == 1.0), step
    assert done.module.diverged is None, "an overflow that the scaler deals with is no divergence"


class Scaler:
    """Stands for torch's, without a GPU."""

    def __init__(self) -> None:
        self.scale = 65536.0

    def get_scale(self) -> float:
        return self.scale


def test_a_skipped_step_is_one_that_lowered_the_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    scaler, points = Scaler(), []
    module = SimpleNamespace(
        loop=SimpleNamespace(steps_done=7, settings=SimpleNamespace(clip_value=None)),
        write=lambda figures, step: points.append((step, figures)),
    )
    monkeypatch.setattr(GradientStats, "module", module)
    callback = GradientStats(every=1)
    callback.groups, callback.scaler = {"total": []}, scaler
    for after in (65536.0, 32768.0, 65536.0):
        callback.before_step()
        scaler.scale = after
        callback.after_step()
    marks = [f["grad_norm/skipped"] for _, f in points if "grad_norm/skipped" in f]
    assert marks == [0.0, 1.0, 0.0]
    assert {step for step, _ in points} == {7}


# --- what else changes weights ---


@pytest.mark.parametrize("clip_first", [True, False])
def test_an_update_is_measured_before_qk_clip(fit: Fit, clip_first: bool) -> None:
    """‖ΔW‖ is that of the optimizer's step, wherever the clip stands among the callbacks."""
    hand = ByHand()

    def before(parts: Parts) -> None:
        hand(parts)
        callbacks: list[Any] = getattr(parts.trainer, "callbacks")  # noqa: B009
        (clip,) = [one for one in callbacks if isinstance(one, QKClip)]
        callbacks.remove(clip)
        callbacks.insert(0 if clip_first else len(callbacks), clip)

    done = fit(*SGD, "attention.qk_clip=1e-3", "trainer.max_steps=1", before=before)
    gradients, weights = hand.gradients(1), hand.weights()
    for group, ratio in first_step(done, "update_ratio").items():
        norm = float(gradients[group].norm())
        assert ratio == pytest.approx(RATE * norm / float(weights[group].norm()), rel=1e-4), group
    # The clip has moved W_q far more than the step did: it would be seen.
    (q, *_), (old, *_) = (
        attentions(model)["layers.0.attention"].projections()["q"]
        for model in (done.module.model, hand.model)
    )
    moved = float((q.detach() - old.detach()).norm() / old.detach().norm())
    assert moved > 10 * done.points["update_ratio/q"][0]
