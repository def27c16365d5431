"""What of Lightning has no effect in this project's loop, and what Lightning itself refuses.

A run trains by itself, in blocks of batches (``task/module.py``), and a configuration holds plain
values only. What cannot work under the one or the other is refused by name: nothing that was asked
for is left out silently.
"""

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import pytorch_lightning as pl
from pytorch_lightning import callbacks as lightnings
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from attnscale.config.targets import Targets
from attnscale.task.callback import TaskCallback

T = TypeVar("T")

BASE = "a base class, which does nothing; name one that derives from it"
FINETUNING = "no model here has the backbone that it trains apart"
REFUSED_CALLBACKS: dict[type[pl.Callback], str] = {
    pl.Callback: BASE,
    lightnings.Checkpoint: BASE,
    lightnings.ProgressBar: BASE,
    lightnings.BaseFinetuning: FINETUNING,
    lightnings.BackboneFinetuning: FINETUNING,
    lightnings.BasePredictionWriter: "no app predicts; python -m src.translate writes translations",
    lightnings.BatchSizeFinder: "a batch is as large as the keys of data say",
    lightnings.GradientAccumulationScheduler: "set trainer.accumulate_grad_batches instead",
    lightnings.LambdaCallback: "wants functions, which a configuration cannot hold; name a class "
    "of your own",
    lightnings.LearningRateFinder: "sweep optimizer.lr instead",
    lightnings.ModelPruning: "attention reads its weights as they are, without the masks",
    lightnings.SpikeDetection: "wants the loss of single batches; callbacks.watchdog looks at it",
    lightnings.StochasticWeightAveraging: "its average is in no checkpoint; name "
    "pytorch_lightning.callbacks.WeightAveraging",
}
"""Callbacks without effect here, with what to write instead. What derives from them is its
author's affair."""

TRANSFORMER_ENGINE = "Requirement 'transformer_engine"
"""What Lightning says of a precision whose package is not installed."""

BATCH_HOOKS = ("on_train_batch_start", "on_train_batch_end")
REFUSALS = (
    *(AttributeError, ImportError, KeyError, NotImplementedError, RuntimeError),
    *(TypeError, ValueError, MisconfigurationException),
)
"""What Lightning raises where it refuses a value."""


def check_callback(callback: pl.Callback, node: Mapping[str, Any], key: str) -> None:
    """Check that a callback, built from a node, can have its effect.

    Raises:
        ValueError: If it has none here, naming its key, its class and what to write.
    """
    kind = type(callback)
    if kind in REFUSED_CALLBACKS:
        raise ValueError(f"{key}: {kind.__name__}: {REFUSED_CALLBACKS[kind]}")
    if isinstance(callback, lightnings.ModelCheckpoint) and node.get("train_time_interval"):
        raise ValueError(
            f"{key}.train_time_interval={node['train_time_interval']}: {kind.__name__} counts no "
            "time where a module steps by itself; set every_n_train_steps"
        )
    if kind.on_before_zero_grad is not pl.Callback.on_before_zero_grad:
        raise ValueError(f"{key}: {kind.__name__}.on_before_zero_grad is never called here")


def counts_batches(callback: pl.Callback) -> bool:
    """Whether a callback of others looks at training batches one by one, so blocks must be of one.

    A checkpoint does where it counts steps and not epochs. A timer comes at most a block late.
    """
    if isinstance(callback, TaskCallback | lightnings.Timer):
        return False
    base: type[pl.Callback] = pl.Callback
    if isinstance(callback, lightnings.ModelCheckpoint):
        if callback.every_n_epochs == 0:
            return True
        base = lightnings.ModelCheckpoint
    return any(getattr(type(callback), hook) is not getattr(base, hook) for hook in BATCH_HOOKS)


def built(targets: Targets, node: object, kind: type[T], key: str, /, **arguments: Any) -> T:
    """Build a node; what its class does not take is the configuration's mistake.

    Raises:
        ValueError: Naming the key.
    """
    try:
        return targets.build(node, kind, key, **arguments)
    except REFUSALS as error:
        text = words(error)
        raise ValueError(text if text.startswith(key) else f"{key}: {text}") from error


def words(error: BaseException) -> str:
    """Return an error's text in one line, or its type where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def _culprits(text: str, keys: Mapping[str, Any]) -> list[str]:
    """Return the arguments of the Trainer that an error's text is about, the surest sign first."""

    def plain(word: str) -> str:
        return word.lower().replace("-", "_")

    signs: tuple[Callable[[str], bool], ...] = (
        lambda key: f"{key}=" in text or f"`{key}`" in text,
        lambda key: "_" in key and key in text,
        lambda key: key == "precision" and text.startswith(("Precision", TRANSFORMER_ENGINE)),
        lambda key: isinstance(keys[key], str) and plain(keys[key]) in plain(text),
    )
    named = next((some for sign in signs if (some := list(filter(sign, keys)))), [])
    return sorted(named, key=text.find)


def _refusing_callback(error: BaseException) -> str | None:
    """Return the class of Lightning's own callback that raised an error, if one did."""
    name = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__"))
        if module.startswith("pytorch_lightning.callbacks."):
            kind = type(frame.f_locals.get("self"))
            name = None if kind.__module__.startswith("attnscale.") else kind.__name__
        elif module.startswith("attnscale."):
            name = None
    return name


@contextmanager
def refusals_named(keys: Mapping[str, Any]) -> Iterator[None]:
    """Turn what Lightning refuses inside the block into a ValueError that names its origin.

    Args:
        keys: Arguments of the Trainer.

    Raises:
        ValueError: Naming the key of ``trainer`` or the class of the callback.
    """
    try:
        yield
    except REFUSALS as error:
        if name := _refusing_callback(error):
            raise ValueError(f"callbacks: {name}: {words(error)}") from error
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        refused = isinstance(error, MisconfigurationException | ValueError)
        if not refused or package not in ("pytorch_lightning", "lightning_fabric"):
            raise
        raise ValueError(f"{named_keys(words(error), keys)}: {words(error)}") from error


def named_keys(text: str, keys: Mapping[str, Any]) -> str:
    """Return the keys of ``trainer``, with their values, that a text of Lightning's is about."""
    return ", ".join(f"trainer.{key}={keys[key]}" for key in _culprits(text, keys)) or "trainer"
