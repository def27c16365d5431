"""Batches in a seeded order, shared out over processes, and handed over in blocks.

A *block* is a list of batches. Lightning sees one block as one of its batches, so that the cost of
its loop is paid once for several optimizer steps. What a user counts (limits, steps, batches) are
batches.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

Batch = TypeVar("Batch")


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


class BlockLoader(Generic[Batch]):
    """An epoch's batches in blocks.

    ``plan(epoch)`` gives the example indices of every batch, the same on each process; ``fetch``
    makes a batch from them. The loader applies the limit, so a limit counts batches and not blocks.
    """

    def __init__(
        self,
        *,
        plan: Callable[[int], Sequence[Tensor]],
        fetch: Callable[[Tensor], Batch],
        epoch: Callable[[], int],
        block: int,
        limit: float | None,
    ) -> None:
        """Keep what makes the batches.

        Args:
            plan: Epoch to the batches' example indices; every epoch has equally many batches.
            fetch: Example indices of one batch to the batch.
            epoch: Gives the current epoch, from 0.
            block: Number of batches in a block, at least 1.
            limit: As in :func:`limited`.
        """
        self.plan, self.fetch, self.epoch, self.block = plan, fetch, epoch, block
        self.n_batches = limited(len(plan(0)), limit)

    def __len__(self) -> int:
        """Return the number of blocks."""
        return math.ceil(self.n_batches / self.block)

    def __iter__(self) -> Iterator[list[Batch]]:
        """Yield the blocks of the current epoch."""
        batches = self.plan(self.epoch())[: self.n_batches]
        for start in range(0, self.n_batches, self.block):
            yield [self.fetch(indices) for indices in batches[start : start + self.block]]
