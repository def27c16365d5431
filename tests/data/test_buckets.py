from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from attnscale.data.batching import POOL_BATCHES, Array, by_sentences, by_tokens

Plan = Callable[[int, int], list[Tensor]]

LENGTHS: Array = np.random.default_rng(5).poisson(13, 1237).astype(np.int64) + 1
SIZE, MOST = 7, 190


def sentences(seed: int, epoch: int) -> list[Tensor]:
    return by_sentences(LENGTHS, SIZE, seed=seed, epoch=epoch)


def tokens(seed: int, epoch: int) -> list[Tensor]:
    return by_tokens(LENGTHS, MOST, seed=seed, epoch=epoch)


PLANS = pytest.mark.parametrize("plan", [sentences, tokens])


def listed(batches: Sequence[Tensor]) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


def padding(batches: Sequence[Tensor]) -> float:
    whole = sum(len(batch) * int(LENGTHS[batch.numpy()].max()) for batch in batches)
    return 1 - int(LENGTHS.sum()) / whole


@PLANS
def test_each_example_comes_once_in_an_epoch(plan: Plan) -> None:
    for epoch in range(3):
        batches = plan(3, epoch)
        assert all(len(batch) for batch in batches)
        assert torch.cat(batches).sort().values.tolist() == list(range(len(LENGTHS)))


@PLANS
def test_the_same_epoch_of_a_seed_is_the_same(plan: Plan) -> None:
    assert listed(plan(3, 4)) == listed(plan(3, 4))


@PLANS
def test_epochs_and_seeds_differ(plan: Plan) -> None:
    drawn = [listed(plan(*which)) for which in ((3, 4), (3, 5), (4, 3), (4, 4))]
    # Not only in the order of the batches: in what is in them.
    members = [{frozenset(batch) for batch in batches} for batches in drawn]
    assert all(len(a & b) < len(a) / 2 for i, a in enumerate(members) for b in members[:i])


@PLANS
def test_batches_do_not_come_in_the_order_of_length(plan: Plan) -> None:
    longest = np.array([LENGTHS[batch.numpy()].max() for batch in plan(3, 0)], dtype=float)
    order = np.corrcoef(longest, np.arange(len(longest)))[0, 1]
    assert abs(order) < 0.3


@PLANS
def test_every_epoch_has_equally_many_batches(plan: Plan) -> None:
    assert len({len(plan(seed, epoch)) for seed in (0, 1) for epoch in range(10)}) == 1


def test_sentences_of_a_batch() -> None:
    sizes = sorted(len(batch) for batch in sentences(0, 0))
    assert sizes == [len(LENGTHS) % SIZE, *[SIZE] * (len(LENGTHS) // SIZE)]
    assert len(by_sentences(LENGTHS, 1, seed=0, epoch=0)) == len(LENGTHS)
    assert listed(by_sentences(LENGTHS[:3], 5, seed=0, epoch=0))[0] != []
    assert len(by_sentences(LENGTHS[:3], 5, seed=0, epoch=0)) == 1


def test_only_the_last_batch_of_all_pools_is_short() -> None:
    n = 2 * SIZE * POOL_BATCHES + SIZE + 3
    lengths = np.arange(n, dtype=np.int64) % 11 + 1
    sizes = sorted(len(batch) for batch in by_sentences(lengths, SIZE, seed=0, epoch=0))
    assert sizes == [3, *[SIZE] * (2 * POOL_BATCHES + 1)]


@pytest.mark.parametrize("most", [40, 97, MOST, 1000, 10**6])
def test_tokens_stay_below_the_limit(most: int) -> None:
    batches = by_tokens(LENGTHS, most, seed=1, epoch=0)
    for batch in batches:
        assert len(batch) * int(LENGTHS[batch.numpy()].max()) <= most
    if most == 10**6:
        assert len(batches) == 1


def test_batches_are_as_full_as_they_can_be() -> None:
    batches = sorted(sorted(LENGTHS[batch.numpy()].tolist())[::-1] for batch in tokens(1, 0))
    batches.sort(key=lambda batch: (batch[0], batch[-1], -len(batch)))
    for batch, after in pairwise(batches):
        assert (len(batch) + 1) * after[-1] > MOST


def test_one_sentence_may_be_longer_than_the_limit() -> None:
    lengths = np.array([2, 50, 2, 60, 2, 2], dtype=np.int64)
    batches = by_tokens(lengths, 10, seed=0, epoch=0)
    assert torch.cat(batches).sort().values.tolist() == list(range(6))
    assert sorted(sorted(batch) for batch in listed(batches) if len(batch) == 1) == [[1], [3]]
    for batch in batches:
        assert len(batch) == 1 or len(batch) * int(lengths[batch.numpy()].max()) <= 10


@PLANS
def test_no_examples_make_no_batches(plan: Plan) -> None:
    make = by_sentences if plan is sentences else by_tokens
    assert make(LENGTHS[:0], 5, seed=0, epoch=0) == []


@PLANS
def test_there_is_less_padding_than_in_random_batches(plan: Plan) -> None:
    batches = plan(2, 1)
    order = torch.randperm(len(LENGTHS))
    size = round(len(LENGTHS) / len(batches))
    random = padding(torch.split(order, size))
    assert random > 0.2
    assert padding(batches) < random / 4
