"""What a training step is, without Lightning: order, accumulation, clipping, ends, observers."""

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from attnscale.task.loop import Receiver, StepLoop, StepObserver
from tests.task.toy import settings

RATE = 0.5


class Observer(StepObserver):
    """Writes down what it is asked, and by how much the weights had moved."""

    def __init__(self, name: str, events: list[tuple[str, str]]) -> None:
        self.name, self.events = name, events

    def receiver(self, batch: Any) -> Receiver | None:
        self.events.append((self.name, "receiver"))
        return None

    def before_clipping(self) -> None:
        self.events.append((self.name, "before_clipping"))

    def before_step(self) -> None:
        self.events.append((self.name, "before_step"))

    def after_step(self) -> None:
        self.events.append((self.name, "after_step"))


class Writer(Observer):
    writes: ClassVar[bool] = True


class Run:
    """A loop over a linear map that learns zero, with plain PyTorch around it."""

    def __init__(self, **changed: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 2, bias=False)
        self.loop = StepLoop(self.model, settings(**changed))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)
        self.optimizer.register_step_pre_hook(lambda *_: self.loop.before_optimizer_step())
        self.flags: list[bool] = []

    def backward(self, loss: Tensor, last: bool) -> None:
        self.flags.append(last)
        loss.backward()  # type: ignore[no-untyped-call]

    def __call__(self, batches: Sequence[Tensor], n_batches: int | None = None) -> None:
        self.loop.run(
            batches,
            loss=lambda x: self.model(x).square().mean(),
            backward=self.backward,
            optimizer=self.optimizer,
            schedule=None,
            n_batches=len(batches) if n_batches is None else n_batches,
        )

    def gradient(self) -> Tensor:
        assert self.model.weight.grad is not None
        return self.model.weight.grad.clone()

    def weights(self) -> Tensor:
        return self.model.weight.detach().clone()


def batches(n: int) -> list[Tensor]:
    return list(torch.randn(n, 4, 3, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("writer_first", [True, False])
def test_who_reads_is_asked_before_who_writes(writer_first: bool) -> None:
    run, events = Run(), list[tuple[str, str]]()
    order = [Writer("writer", events), Observer("one", events), Observer("two", events)]
    for observer in order if writer_first else [*order[1:], order[0]]:
        run.loop.add(observer)
    run(batches(1))
    places = ("receiver", "before_clipping", "before_step", "after_step")
    assert events == [(name, place) for place in places for name in ("one", "two", "writer")]


def test_an_observer_is_asked_once_and_no_longer_when_removed() -> None:
    run, events = Run(), list[tuple[str, str]]()
    one, two = Observer("one", events), Observer("two", events)
    for observer in (one, two, one):
        run.loop.add(observer)
    run(batches(1))
    assert [name for name, place in events if place == "after_step"] == ["one", "two"]
    events.clear()
    run.loop.remove(one)
    run.loop.remove(one)
    run(batches(1))
    assert {name for name, _ in events} == {"two"}


def test_observers_see_gradients_before_and_after_clipping_and_weights_around_the_step() -> None:
    limit, run = 1e-3, Run(clip_value=1e-3, clip_algorithm="norm")
    points: dict[str, Tensor] = {}

    class Look(Observer):
        def before_clipping(self) -> None:
            points["raw"] = run.gradient()

        def before_step(self) -> None:
            points["clipped"], points["before"] = run.gradient(), run.weights()

        def after_step(self) -> None:
            points["after"] = run.weights()

    run.loop.add(Look("look", []))
    start = run.weights()
    run(batches(1))
    assert float(points["raw"].norm()) > 10 * limit
    torch.testing.assert_close(points["clipped"], points["raw"] * (limit / points["raw"].norm()))
    assert torch.equal(points["before"], start)
    torch.testing.assert_close(points["after"], start - RATE * points["clipped"])


def test_clipping_by_value() -> None:
    limit, run = 1e-3, Run(clip_value=1e-3, clip_algorithm="value")
    start = run.weights()
    run(batches(1))
    change = (run.weights() - start).abs()
    assert float(change.max()) == pytest.approx(RATE * limit, rel=1e-3)
    assert float(change.norm()) > 1.1 * RATE * limit


@pytest.mark.parametrize("blocks", [[7], [2, 2, 2, 1], [3, 4], [1] * 7])
def test_accumulated_batches_are_their_mean(blocks: list[int]) -> None:
    """Seven batches in threes are steps of 3, 3 and 1, wherever a block ends."""
    run, data = Run(accumulate=3), batches(7)
    by_hand = Run()
    steps = [data[:3], data[3:6], data[6:]]
    losses = []
    for group in steps:
        by_hand.optimizer.zero_grad()
        loss = torch.stack([by_hand.model(x).square().mean() for x in group]).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        by_hand.optimizer.step()
        losses.append(float(loss.detach()))
    seen: list[float] = []

    class Look(Observer):
        def before_step(self) -> None:
            seen.append(float(run.loop.step_loss))

    run.loop.add(Look("look", []))
    rest = list(data)
    for size in blocks:
        run(rest[:size], n_batches=7)
        del rest[:size]
    assert run.flags == [False, False, True] * 2 + [True]
    assert run.loop.steps_done == 3
    assert seen == pytest.approx(losses, rel=1e-6)
    torch.testing.assert_close(run.weights(), by_hand.weights())


def test_training_ends_at_the_last_step() -> None:
    run = Run(max_steps=3)
    run(batches(2), n_batches=5)
    assert not run.loop.ended
    run(batches(3), n_batches=5)
    assert run.loop.ended
    assert (run.loop.steps_done, run.loop.batches_done) == (3, 3)


@pytest.mark.parametrize("stop", [True, False])
def test_a_loop_that_diverged_ends_or_goes_on(stop: bool) -> None:
    run = Run()
    run.loop.stop_when_diverged = stop

    class Look(Observer):
        def after_step(self) -> None:
            if run.loop.steps_done >= 2:
                run.loop.mark_diverged(f"metric{run.loop.steps_done}", run.loop.steps_done)

    run.loop.add(Look("look", []))
    run(batches(5))
    assert run.loop.steps_done == (2 if stop else 5)
    assert run.loop.stopped is stop
    assert run.loop.diverged is not None
    assert (run.loop.diverged.metric, run.loop.diverged.step) == ("metric2", 2), "the first counts"


def test_the_schedule_follows_steps() -> None:
    run = Run(accumulate=2)
    schedule = torch.optim.lr_scheduler.LambdaLR(run.optimizer, lambda step: 0.5**step)
    run.loop.run(
        batches(4),
        loss=lambda x: run.model(x).square().mean(),
        backward=run.backward,
        optimizer=run.optimizer,
        schedule=schedule,
        n_batches=4,
    )
    assert run.optimizer.param_groups[0]["lr"] == RATE * 0.25
