"""Sequences of independent standard normal vectors: nothing to learn but the identity.

x ~ N(0, 1) in every component, so Var(x) = 1 and a model that always answers 0 has an MSE of 1.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytorch_lightning as pl
import torch
from torch import Tensor

from attnscale.data.batching import BlockLoader, Processes, shuffled

SPLITS = ("train", "val", "test")


class SequenceBatch(NamedTuple):
    """Vectors to reconstruct.

    Attributes:
        x: (batch, position, d_model).
        share: Weight of this process's mean loss, so that the mean over processes is the mean over
            the whole batch: its number of sequences × processes ÷ sequences of all.
    """

    x: Tensor
    share: float


def draw(*, n: int, length: int, d_model: int, seed: int, split: str) -> Tensor:
    """Draw ``n`` sequences of a split, (n, length, d_model); the splits are independent streams."""
    generator = torch.Generator().manual_seed(seed * len(SPLITS) + SPLITS.index(split))
    return torch.randn(n, length, d_model, generator=generator)


class GaussianData(pl.LightningDataModule):
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
        sizes = {
            "n_train": n_train,
            "n_val": n_val,
            "n_test": n_test,
            "length": length,
            "d_model": d_model,
            "batch_size": batch_size,
            "eval_batch_size": eval_batch_size,
        }
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"data.{name}={size}: must be at least 1")
        self.n = {"train": n_train, "val": n_val, "test": n_test}
        self.length, self.d_model = length, d_model
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self.shuffle, self.seed = shuffle, seed
        self.block = 1
        self.limit_train: float | None = None
        self.overfit: float = 0.0
        self.sets: dict[str, Tensor] = {}

    def model_arguments(self) -> dict[str, int]:
        """Return what a model must know of the data: nothing, sizes come from the model."""
        return {}

    def train_lengths(self) -> npt.NDArray[np.int64]:
        """Return the lengths of the training sequences: all the same."""
        return np.full(max(1, self.n["train"]), self.length, dtype=np.int64)

    def train_tokens(self) -> int:
        """Return the positions of the training set."""
        return self.n["train"] * self.length

    def record(self) -> dict[str, Any]:
        """Return what a checkpoint must carry to be used: nothing here."""
        return {}

    def setup(self, stage: str | None = None) -> None:
        """Draw the sets, once."""
        if not self.sets:
            self.sets = {
                split: draw(
                    n=n, length=self.length, d_model=self.d_model, seed=self.seed, split=split
                )
                for split, n in self.n.items()
            }

    def _processes(self) -> Processes:
        trainer = self.trainer
        return (
            Processes() if trainer is None else Processes(trainer.global_rank, trainer.world_size)
        )

    def _epoch(self) -> int:
        return 0 if self.trainer is None else self.trainer.current_epoch

    def _loader(
        self,
        split: str,
        plan: Callable[[int], tuple[Tensor, ...]],
        *,
        block: int,
        limit: float | None,
    ) -> BlockLoader[SequenceBatch]:
        processes, data = self._processes(), self.sets[split]

        def fetch(indices: Tensor) -> SequenceBatch:
            part = processes.share(indices)
            return SequenceBatch(data[part], len(part) * processes.world / len(indices))

        return BlockLoader(plan=plan, fetch=fetch, epoch=self._epoch, block=block, limit=limit)

    def first(self, split: str, count: int, device: torch.device) -> SequenceBatch:
        """Return the first sequences of a split, on a device."""
        self.setup()
        return SequenceBatch(self.sets[split][:count].to(device), 1.0)

    def train_dataloader(self) -> BlockLoader[SequenceBatch]:
        """Return the training batches in blocks of ``block``."""

        def plan(epoch: int) -> tuple[Tensor, ...]:
            n = self.n["train"]
            ordered = self.shuffle and not self.overfit
            order = shuffled(n, self.seed, epoch) if ordered else torch.arange(n)
            return torch.split(order, self.batch_size)

        limit = self.overfit or self.limit_train
        return self._loader("train", plan, block=self.block, limit=limit)

    def _evaluation(self, split: str) -> BlockLoader[SequenceBatch]:
        if self.overfit and split == "val":
            return self.train_dataloader()
        batches = torch.split(torch.arange(self.n[split]), self.eval_batch_size)
        return self._loader(split, lambda _: batches, block=1, limit=None)

    def val_dataloader(self) -> BlockLoader[SequenceBatch]:
        """Return the validation batches, in order, each in a block of its own."""
        return self._evaluation("val")

    def test_dataloader(self) -> BlockLoader[SequenceBatch]:
        """Return the test batches, in order, each in a block of its own."""
        return self._evaluation("test")
