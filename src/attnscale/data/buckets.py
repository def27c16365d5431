"""Batches of sentences of similar length, in a seeded order.

Both plans give equally many batches in every epoch, the same ones for the same seed and epoch.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.int64]
POOL_BATCHES = 100


def _generator(seed: int, epoch: int) -> np.random.Generator:
    return np.random.default_rng([seed, epoch])


def by_sentences(lengths: Array, size: int, *, seed: int, epoch: int) -> list[Tensor]:
    """Cut into batches of ``size`` sentences, from pools of :data:`POOL_BATCHES` sorted by length.

    Args:
        lengths: Length of each example, the longer of source and target.
        size: Sentences of a batch.
        seed: Seed of the run.
        epoch: Epoch, from 0.
    """
    generator = _generator(seed, epoch)
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
    generator = _generator(seed, epoch)
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
