"""Callbacks of a task: whose they are, and from when to when they look inside steps."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
import pytorch_lightning as pl

from attnscale.task.callback import StepCallback, TaskCallback
from tests.task.toy import N_BATCHES, data, task, trainer


class Count(StepCallback):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def before_clipping(self) -> None:
        self.calls.append("before_clipping")

    def before_step(self) -> None:
        self.calls.append("before_step")

    def after_step(self) -> None:
        self.calls.append("after_step")


def test_a_step_callback_looks_in_while_it_trains(tmp_path: Path) -> None:
    module, count = task(accumulate=2), Count()
    trainer(tmp_path, count).fit(module, datamodule=data())
    assert count.module is module
    assert count.calls == ["before_clipping", "before_step", "after_step"] * (N_BATCHES // 2)
    assert module.loop.observers == []


def test_it_does_nothing_by_itself(tmp_path: Path) -> None:
    module, other = task(), task()
    trainer(tmp_path, StepCallback()).fit(module, datamodule=data())
    trainer(tmp_path).fit(other, datamodule=data())
    for mine, plain in zip(module.parameters(), other.parameters(), strict=True):
        assert mine.equal(plain)


def test_it_only_reads_unless_it_says_that_it_writes() -> None:
    """Who writes is asked last, so what a callback measures is of the step alone."""

    class Write(StepCallback):
        writes: ClassVar[bool] = True

    loop, write, read = task().loop, Write(), StepCallback()
    loop.add(write)
    loop.add(read)
    assert loop.observers == [read, write]


def test_a_second_fit_does_not_ask_twice(tmp_path: Path) -> None:
    module, count = task(), Count()

    class Fail(StepCallback):
        def after_step(self) -> None:
            raise RuntimeError("broken on purpose")

    fail = Fail()
    with pytest.raises(RuntimeError, match="broken on purpose"):
        trainer(tmp_path, count, fail).fit(module, datamodule=data())
    module.loop.remove(fail)
    count.calls.clear()
    trainer(tmp_path, count).fit(module, datamodule=data())
    assert len(count.calls) == 3 * N_BATCHES


def test_evaluation_has_no_steps(tmp_path: Path) -> None:
    registered: list[int] = []

    class Look(StepCallback):
        writes: ClassVar[bool] = False

        def on_validation_start(self, *_: Any) -> None:
            registered.append(len(self.module.loop.observers))

    module = task()
    trainer(tmp_path, Look(), limit_val_batches=1).validate(
        module, datamodule=data(), verbose=False
    )
    assert registered == [0]


def test_without_a_run_there_is_no_task() -> None:
    with pytest.raises(RuntimeError, match="Count has no task before a run has set it up"):
        _ = Count().module


def test_a_module_of_others_is_refused(tmp_path: Path) -> None:
    class Other(pl.LightningModule):
        def training_step(self, *_: Any) -> None:
            pass

        def validation_step(self, *_: Any) -> None:
            pass

        def configure_optimizers(self) -> None:
            pass

    with pytest.raises(TypeError, match="TaskCallback watches a TaskModule, not a Other"):
        trainer(tmp_path, TaskCallback()).fit(Other(), datamodule=data())
