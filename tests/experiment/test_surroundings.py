"""A run leaves the process as it was; what it relies on inside Lightning is still there."""

import gc
import logging
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
import torch.distributed

from attnscale.experiment.surroundings import QUIET_LOGGERS, surroundings

SHORT = ("trainer=smoke", "data.n_train=64", "data.n_val=16", "data.n_test=16")


def process() -> dict[str, Any]:
    """Return what a run could change of this process."""
    return {
        "environment": dict(os.environ),
        "filters": list(warnings.filters),
        "handlers": {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)},
        "threads": torch.get_num_threads(),
        "levels": {name: logging.getLogger(name).level for name in QUIET_LOGGERS},
        "frozen": gc.get_freeze_count(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "group": torch.distributed.is_initialized(),
        "cudnn": (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
    }


def terminate(number: int, frame: object) -> None:
    raise AssertionError


@pytest.fixture
def handler() -> Iterator[None]:
    """Have a handler of SIGTERM, as a program that calls ``run`` may have."""
    before = signal.signal(signal.SIGTERM, terminate)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def unfrozen() -> Iterator[None]:
    """Have nothing frozen, as a program has at its start."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("handler", "unfrozen")
def test_a_run_leaves_the_process_as_it_was(lab: Any) -> None:
    # The first run of a process also imports libraries, which set their own levels.
    lab.run(*SHORT)
    before = process()
    lab.run(*SHORT, "threads=2", "trainer.deterministic=true", "trainer.strategy=ddp")
    assert process() == before
    with pytest.raises(ValueError, match=r"optimizer\.lr=-1"):
        lab.run(*SHORT, "threads=2", "trainer.benchmark=true", "optimizer.lr=-1")
    assert process() == before


@pytest.mark.slow
@pytest.mark.usefixtures("handler", "unfrozen")
def test_a_frozen_process_stays_frozen(lab: Any) -> None:
    gc.freeze()
    before = gc.get_freeze_count()
    lab.run(*SHORT)
    assert 0.9 * before < gc.get_freeze_count() <= before


def test_the_surroundings_come_back_after_an_error_and_in_any_thread() -> None:
    before = process()
    errors: list[BaseException] = []

    def change() -> None:
        try:
            with surroundings(3):
                os.environ["PL_GLOBAL_SEED"] = "1"
                del os.environ["PATH"]
                assert torch.get_num_threads() == 3
                raise ValueError("end")
        except BaseException as error:
            errors.append(error)

    change()
    assert process() == before
    thread = threading.Thread(target=change)
    thread.start()
    thread.join()
    assert [str(error) for error in errors] == ["end", "end"]
    assert dict(os.environ) == before["environment"]


def test_lightning_still_registers_its_handlers_where_they_are_switched_off() -> None:
    """``make_trainer`` replaces this private method; if it moves, SIGTERM can hang again."""
    trainer: Any = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
    before = signal.getsignal(signal.SIGTERM)
    connector = trainer._signal_connector
    try:
        connector.register_signal_handlers()
        assert signal.getsignal(signal.SIGTERM) is not before
    finally:
        connector.teardown()
        signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("handler")
def test_training_leaves_sigterm_to_the_caller(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[object] = []
    fit = pl.Trainer._run_stage

    def watched(self: pl.Trainer) -> Any:
        handlers.append(signal.getsignal(signal.SIGTERM))
        return fit(self)

    monkeypatch.setattr(pl.Trainer, "_run_stage", watched)
    lab.run(*SHORT)
    assert handlers
    assert set(handlers) == {terminate}
