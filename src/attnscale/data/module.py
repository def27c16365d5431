"""What a dataset owes: blocks of batches for training and evaluation, and what others ask of it.

A batch is a named tuple that the task understands, with a ``loss_weight`` for this process's mean
loss, so that the mean over processes, and over the batches that a step accumulates, is the mean
over all of them as one batch. A subclass gives the loaders,
:meth:`train_lengths` and :meth:`train_tokens`; the rest it gives where there is something to say:
:meth:`labels` wherever there are :meth:`examples`.

The loaders are made of a plan, the same on each process, and of what fetches one batch: it takes
``self._processes().part(indices)``. With ``overfit`` the plan does not depend on the epoch, and
validation is training's loader. ``data/gaussian.py`` has all of it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytorch_lightning as pl
from torch import Tensor

from attnscale.data.batching import Batch, BlockLoader, Processes

STATISTICS: dict[str, Callable[[npt.NDArray[np.int64]], float]] = {
    "length_p97_5": lambda lengths: float(np.percentile(lengths, 97.5)),
}
"""What a scale mode may want to know of the training data: name to function of the training
sequences' lengths in tokens, without marks of begin and end."""


class DataModule(pl.LightningDataModule):
    """Training, validation and test batches of one dataset.

    Attributes:
        block: Training batches that Lightning sees as one of its own.
        accumulate: Training batches of an optimizer step.
        limit_train: How many of an epoch's training batches are used, or which fraction; None for
            all.
        overfit: As ``limit_train``, and the same batches are used again and again, for validation
            too; 0 for none of this.
        batches_done: Training batches of the next epoch that were trained on before.
    """

    def __init__(self) -> None:
        """Start with all batches, one in a block."""
        super().__init__()
        self.block = self.accumulate = 1
        self.limit_train: float | None = None
        self.overfit: float = 0.0
        self.batches_done = 0

    def count_batches(
        self,
        *,
        block: int = 1,
        accumulate: int = 1,
        limit_train: float | None = None,
        overfit: float = 0.0,
    ) -> None:
        """Set how training batches are counted; see the attributes."""
        self.block, self.accumulate = block, accumulate
        self.limit_train, self.overfit = limit_train, overfit

    # --- batches ---

    def _processes(self) -> Processes:
        trainer = self.trainer
        return (
            Processes() if trainer is None else Processes(trainer.global_rank, trainer.world_size)
        )

    def _epoch(self) -> int:
        return 0 if self.trainer is None else self.trainer.current_epoch

    def _training_blocks(
        self,
        plan: Callable[[int], Sequence[Tensor]],
        fetch: Callable[[Tensor], Batch],
        weigh: Callable[[Tensor], int] = len,
    ) -> BlockLoader[Batch]:
        """Return training batches, counted as was set; the arguments are those of BlockLoader.

        Raises:
            ValueError: If a fraction of them is none.
        """
        limit = self.overfit or self.limit_train
        blocks = BlockLoader(
            plan=plan,
            fetch=fetch,
            epoch=self._epoch,
            block=self.block,
            limit=limit,
            done=self._take_batches_done,
            accumulate=self.accumulate,
            weigh=weigh,
        )
        if limit and not blocks.n_batches:
            key = "overfit_batches" if self.overfit else "limit_train_batches"
            raise ValueError(f"trainer.{key}={limit}: leaves no training batch of {len(plan(0))}")
        return blocks

    def _take_batches_done(self) -> int:
        done, self.batches_done = self.batches_done, 0
        return done

    def _evaluation_blocks(
        self, batches: Sequence[Tensor], fetch: Callable[[Tensor], Batch]
    ) -> BlockLoader[Batch]:
        """Return batches of these examples, the same in each epoch, each in a block of its own."""
        return BlockLoader(
            plan=lambda _: batches, fetch=fetch, epoch=self._epoch, block=1, limit=None
        )

    # --- what others ask ---

    def model_arguments(self) -> dict[str, int]:
        """Return what a model must know of the data, as arguments of its constructor."""
        return {}

    def train_lengths(self) -> npt.NDArray[np.int64]:
        """Return the lengths of the training sequences in tokens, without marks."""
        raise NotImplementedError

    def train_tokens(self) -> int:
        """Return the tokens of the training set that the loss is a mean over."""
        raise NotImplementedError

    def checkpoint_values(self) -> dict[str, Any]:
        """Return what a checkpoint must carry to be used: plain values."""
        return {}

    def take_checkpoint_values(self, values: Mapping[str, Any]) -> None:
        """Take up :meth:`checkpoint_values` of a checkpoint; called before :meth:`setup`."""

    def examples(self, count: int) -> Any:
        """Return a batch of ``count`` fixed validation examples to look at, or None for none."""
        return None

    def labels(self, side: str, batch: Any, count: int) -> list[list[str]]:
        """Return the tokens that an attention reads of the first ``count`` examples of a batch.

        Args:
            side: "source" or "target".
            batch: A batch of this dataset.
            count: Number of examples.
        """
        raise NotImplementedError


def data_statistics(data: Any, names: tuple[str, ...]) -> Mapping[str, float]:
    """Return statistics of a data module's training set.

    Args:
        data: A data module; its ``train_lengths()`` is called if there is something to measure.
        names: Which, of :data:`STATISTICS`.

    Raises:
        ValueError: If a name is unknown.
    """
    unknown = [name for name in names if name not in STATISTICS]
    if unknown:
        raise ValueError(f"unknown statistics of the data: {', '.join(unknown)}")
    if not names:
        return {}
    lengths = data.train_lengths()
    return {name: STATISTICS[name](lengths) for name in names}
