"""Sequences of independent standard normal vectors: nothing to learn but the identity.

x ~ N(0, 1) in every component, so Var(x) = 1 and a model that always answers 0 has an MSE of 1.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attnscale.checks import check_min
from attnscale.data.batching import BlockLoader, shuffled
from attnscale.data.module import DataModule

SPLITS = ("train", "val", "test")


class SequenceBatch(NamedTuple):
    """Vectors to reconstruct.

    Attributes:
        x: (batch, position, d_model).
        loss_weight: Of this process's mean loss, so that the mean over processes is the mean over
            the whole batch: its number of sequences × processes ÷ sequences of all. In training
            also × the batch's sequences ÷ their mean over the step's batches.
    """

    x: Tensor
    loss_weight: float


def draw(*, n: int, length: int, d_model: int, seed: int, split: str) -> Tensor:
    """Draw ``n`` sequences of a split, (n, length, d_model); the splits are independent streams."""
    generator = torch.Generator().manual_seed(seed * len(SPLITS) + SPLITS.index(split))
    return torch.randn(n, length, d_model, generator=generator)


class GaussianData(DataModule):
    """Seeded, disjoint training, validation and test sets of Gaussian sequences, held in memory."""

    def __init__(
        self,
        *,
        n_train: int,
        n_val: int,
        n_test: int,
        length: int,
        d_model: int,
        batch_size: int,
        eval_batch_size: int,
        shuffle: bool,
        seed: int,
    ) -> None:
        """Check the sizes; nothing is drawn before :meth:`setup`.

        Args:
            n_train: Number of training sequences.
            n_val: Number of validation sequences.
            n_test: Number of test sequences.
            length: Positions of a sequence.
            d_model: Components of a vector.
            batch_size: Sequences of a training batch, all processes together.
            eval_batch_size: Sequences of a validation or test batch, all processes together.
            shuffle: Whether each epoch has its own order.
            seed: Seed of the vectors and of the order.

        Raises:
            ValueError: If a size is below 1.
        """
        super().__init__()
        self.n = {"train": n_train, "val": n_val, "test": n_test}
        for split, size in self.n.items():
            check_min(f"data.n_{split}", size)
        check_min("data.length", length)
        check_min("data.d_model", d_model)
        check_min("data.batch_size", batch_size)
        check_min("data.eval_batch_size", eval_batch_size)
        self.length, self.d_model = length, d_model
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self.shuffle, self.seed = shuffle, seed
        self.sets: dict[str, Tensor] = {}

    def train_lengths(self) -> npt.NDArray[np.int64]:
        """Return the lengths of the training sequences: all the same."""
        return np.full(max(1, self.n["train"]), self.length, dtype=np.int64)

    def train_tokens(self) -> int:
        """Return the positions of the training set."""
        return self.n["train"] * self.length

    def setup(self, stage: str | None = None) -> None:
        """Draw the sets, once."""
        if not self.sets:
            self.sets = {
                split: draw(
                    n=n, length=self.length, d_model=self.d_model, seed=self.seed, split=split
                )
                for split, n in self.n.items()
            }

    def _fetch(self, split: str) -> Callable[[Tensor], SequenceBatch]:
        processes, data = self._processes(), self.sets[split]

        def fetch(indices: Tensor) -> SequenceBatch:
            part = processes.part(indices)
            return SequenceBatch(data[part], len(part) * processes.world / len(indices))

        return fetch

    def train_dataloader(self) -> BlockLoader[SequenceBatch]:
        """Return the training batches."""

        def plan(epoch: int) -> tuple[Tensor, ...]:
            n = self.n["train"]
            ordered = self.shuffle and not self.overfit
            order = shuffled(n, self.seed, epoch) if ordered else torch.arange(n)
            return torch.split(order, self.batch_size)

        return self._training_blocks(plan, self._fetch("train"))

    def _evaluation(self, split: str) -> BlockLoader[SequenceBatch]:
        batches = torch.split(torch.arange(self.n[split]), self.eval_batch_size)
        return self._evaluation_blocks(batches, self._fetch(split))

    def val_dataloader(self) -> BlockLoader[SequenceBatch]:
        """Return the validation batches, in order."""
        return self.train_dataloader() if self.overfit else self._evaluation("val")

    def test_dataloader(self) -> BlockLoader[SequenceBatch]:
        """Return the test batches, in order."""
        return self._evaluation("test")

    def examples(self, count: int) -> SequenceBatch:
        """Return the first validation sequences."""
        self.setup()
        return SequenceBatch(self.sets["val"][:count], 1.0)

    def labels(self, side: str, batch: SequenceBatch, count: int) -> list[list[str]]:
        """Return positions, counted from 1; the sides are the same."""
        positions = [str(i) for i in range(1, batch.x.shape[1] + 1)]
        return [positions] * min(count, len(batch.x))
