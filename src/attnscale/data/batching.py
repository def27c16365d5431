"""Batches in a seeded order, shared out over processes, and handed over in blocks.

Every plan gives equally many batches in every epoch, the same ones for the same seed and epoch.

A *block* is a list of batches. Lightning sees one block as one of its batches, so that the cost of
its loop is paid once for several optimizer steps. What a user counts (limits, steps, batches) are
batches.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.int64]
Batch = TypeVar("Batch")
POOL_BATCHES = 100


@dataclass(frozen=True)
class Processes:
    """Which of how many processes this one is."""

    rank: int = 0
    world: int = 1

    def part(self, indices: Tensor) -> Tensor:
        """Return this process's part of a batch: every ``world``-th example."""
        return indices if self.world == 1 else indices[self.rank :: self.world]


def limited(n_batches: int, limit: float | None) -> int:
    """Return how many batches a limit leaves: Lightning's rule for ``trainer.limit_*_batches``.

    Args:
        n_batches: How many there are.
        limit: A whole number of batches, a fraction from 0.0 to 1.0, or None for all.

    Raises:
        ValueError: If the limit is negative, or a fraction above 1.
    """
    if limit is None:
        return n_batches
    if limit < 0 or (isinstance(limit, float) and limit > 1):
        raise ValueError(
            f"trainer.limit_*_batches={limit}: allowed is an integer from 0 or a fraction 0.0–1.0"
        )
    return int(n_batches * limit) if isinstance(limit, float) else min(n_batches, limit)


def shuffled(n: int, seed: int, epoch: int) -> Tensor:
    """Return the order of ``n`` examples in an epoch: the same for the same seed and epoch."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return torch.randperm(n, generator=generator)


def by_sentences(lengths: Array, size: int, *, seed: int, epoch: int) -> list[Tensor]:
    """Cut into batches of ``size`` sentences, from pools of :data:`POOL_BATCHES` sorted by length.

    Args:
        lengths: Length of each example, the longer of source and target.
        size: Sentences of a batch.
        seed: Seed of the run.
        epoch: Epoch, from 0.
    """
    generator = np.random.default_rng([seed, epoch])
    order = generator.permutation(len(lengths))
    pool = size * POOL_BATCHES
    batches = []
    for start in range(0, len(order), pool):
        members = order[start : start + pool]
        members = members[np.argsort(lengths[members], kind="stable")]
        batches += [members[i : i + size] for i in range(0, len(members), size)]
    return [torch.from_numpy(batches[i]) for i in generator.permutation(len(batches))]


def by_tokens(lengths: Array, max_tokens: int, *, seed: int, epoch: int) -> list[Tensor]:
    """Fill batches up to ``max_tokens`` tokens, padding counted.

    Examples are sorted by length and shuffled among those of equal length, so that where batches
    end does not depend on the epoch, and their number neither.

    Args:
        lengths: Length of each example, the longer of source and target.
        max_tokens: Tokens of a batch: sentences × the longest of them.
        seed: Seed of the run.
        epoch: Epoch, from 0.
    """
    generator = np.random.default_rng([seed, epoch])
    order = generator.permutation(len(lengths))
    order = order[np.argsort(lengths[order], kind="stable")]
    batches, start = [], 0
    for position, index in enumerate(order):
        # Sorted, so that the newest example is the longest of its batch.
        if position > start and (position - start + 1) * lengths[index] > max_tokens:
            batches.append(order[start:position])
            start = position
    if start < len(order):
        batches.append(order[start:])
    return [torch.from_numpy(batches[i]) for i in generator.permutation(len(batches))]


class BlockLoader(Generic[Batch]):
    """An epoch's batches in blocks.

    ``plan(epoch)`` gives the example indices of every batch, the same on each process; ``fetch``
    makes a batch from them. The loader applies the limit, so a limit counts batches and not blocks.

    Where a step accumulates batches b of sizes n_b, each ``loss_weight`` is multiplied by
    n_b / (mean n over the step), so that the mean over the step's batches is the loss of them as
    one: a plain mean would count a token of a small batch more than one of a large batch.
    """

    def __init__(
        self,
        *,
        plan: Callable[[int], Sequence[Tensor]],
        fetch: Callable[[Tensor], Batch],
        epoch: Callable[[], int],
        block: int,
        limit: float | None,
        accumulate: int = 1,
        weigh: Callable[[Tensor], int] = len,
        done: Callable[[], int] = lambda: 0,
    ) -> None:
        """Keep what makes the batches.

        Args:
            plan: Epoch to the batches' example indices; every epoch has equally many batches.
            fetch: Example indices of one batch to the batch.
            epoch: Gives the current epoch, from 0.
            block: Number of batches in a block, at least 1.
            limit: As in :func:`limited`.
            accumulate: Batches of a step, counted from the epoch's first; if above 1, a batch is a
                named tuple with a ``loss_weight``.
            weigh: Example indices of one batch to its size, in what the loss is a mean over.
            done: Gives how many batches of the epoch that begins were trained on before.
        """
        self.plan, self.fetch, self.epoch, self.block = plan, fetch, epoch, block
        self.accumulate, self.weigh, self.done = accumulate, weigh, done
        self.n_batches = limited(len(plan(0)), limit)

    def __len__(self) -> int:
        """Return the number of blocks."""
        return math.ceil(self.n_batches / self.block)

    def __iter__(self) -> Iterator[list[Batch]]:
        """Yield the blocks of the current epoch.

        Of one that goes on: what is left of the block with the last batch that was trained on,
        which may be nothing, and those behind it.
        """
        batches = self.plan(self.epoch())[: self.n_batches]
        shares, done = self._shares(batches), self.done()
        first = max(0, done - 1) // self.block * self.block
        for start in range(first, self.n_batches, self.block):
            places = range(max(start, done), min(start + self.block, self.n_batches))
            yield [self._weighted(self.fetch(batches[i]), shares[i]) for i in places]

    def _shares(self, batches: Sequence[Tensor]) -> list[float]:
        """Return each batch's size ÷ the mean size of its step's batches."""
        if self.accumulate == 1:
            return [1.0] * len(batches)
        sizes = [self.weigh(indices) for indices in batches]
        steps = [sizes[i : i + self.accumulate] for i in range(0, len(sizes), self.accumulate)]
        return [size * len(step) / sum(step) for step in steps for size in step]

    @staticmethod
    def _weighted(batch: Batch, share: float) -> Batch:
        if share == 1.0:
            return batch
        whole = cast(Any, batch)
        return cast(Batch, whole._replace(loss_weight=whole.loss_weight * share))
