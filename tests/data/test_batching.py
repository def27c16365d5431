import math

import pytest
import torch
from torch import Tensor

from attnscale.data.batching import BlockLoader, Processes, limited, shuffled


@pytest.mark.parametrize("world", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("n", [0, 1, 2, 5, 7, 16])
def test_shares_are_the_whole_batch(n: int, world: int) -> None:
    batch = torch.randperm(100)[:n]
    shares = [Processes(rank, world).part(batch) for rank in range(world)]
    assert sorted(torch.cat(shares).tolist()) == sorted(batch.tolist())
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_one_process_has_everything() -> None:
    batch = torch.arange(7)
    assert torch.equal(Processes().part(batch), batch)


@pytest.mark.parametrize(
    ("n_batches", "limit", "left"),
    [
        (7, None, 7),
        (7, 0, 0),
        (7, 1, 1),
        (7, 5, 5),
        (7, 7, 7),
        (7, 100, 7),
        (7, 0.0, 0),
        (7, 1.0, 7),
        (7, 0.5, 3),
        (7, 0.1, 0),
        (10, 0.3, 3),
        (0, None, 0),
        (0, 3, 0),
        (0, 1.0, 0),
    ],
)
def test_limits(n_batches: int, limit: float | None, left: int) -> None:
    assert limited(n_batches, limit) == left


@pytest.mark.parametrize("wrong", [-1, -0.5, 1.5, math.inf])
def test_refuses_a_limit(wrong: float) -> None:
    with pytest.raises(ValueError, match=rf"^trainer\.limit_\*_batches={wrong}: allowed is"):
        limited(7, wrong)


def test_the_order_depends_on_seed_and_epoch_only() -> None:
    order = shuffled(101, seed=3, epoch=5)
    torch.manual_seed(8)
    assert torch.equal(shuffled(101, seed=3, epoch=5), order)
    assert sorted(order.tolist()) == list(range(101))
    others = [shuffled(101, seed=3, epoch=e) for e in (0, 1, 6)] + [shuffled(101, seed=4, epoch=5)]
    assert not any(torch.equal(other, order) for other in others)


def test_the_global_generator_is_left_alone() -> None:
    state = torch.get_rng_state()
    shuffled(101, seed=3, epoch=5)
    assert torch.equal(torch.get_rng_state(), state)


def test_no_two_epochs_of_any_seed_share_an_order() -> None:
    orders = {
        tuple(shuffled(50, seed, epoch).tolist()) for seed in range(10) for epoch in range(50)
    }
    assert len(orders) == 500


def test_a_huge_seed_has_an_order() -> None:
    assert sorted(shuffled(5, seed=2**63 - 1, epoch=10**9).tolist()) == list(range(5))


def loader(
    *, epoch: int = 0, block: int = 1, limit: float | None = None, n: int = 23, size: int = 3
) -> BlockLoader[Tensor]:
    return BlockLoader(
        plan=lambda e: torch.split(torch.arange(n).roll(e), size),
        fetch=lambda indices: indices * 10,
        epoch=lambda: epoch,
        block=block,
        limit=limit,
    )


@pytest.mark.parametrize("limit", [None, 0, 1, 5, 8, 100, 0.0, 0.5, 1.0])
@pytest.mark.parametrize("block", [1, 2, 3, 5, 8, 100])
def test_blocks_joined_are_the_batches(block: int, limit: float | None) -> None:
    blocks = list(loader(block=block, limit=limit, epoch=2))
    wanted = [i * 10 for i in torch.split(torch.arange(23).roll(2), 3)][: limited(8, limit)]
    joined = [batch for made in blocks for batch in made]
    assert len(joined) == len(wanted)
    assert all(torch.equal(a, b) for a, b in zip(joined, wanted, strict=True))
    assert len(blocks) == len(loader(block=block, limit=limit))
    assert all(len(made) == block for made in blocks[:-1])
    assert all(1 <= len(made) <= block for made in blocks[-1:])


def test_the_limit_counts_batches_and_not_blocks() -> None:
    made = loader(block=4, limit=6)
    assert made.n_batches == 6
    assert [len(block) for block in made] == [4, 2]


def test_each_pass_asks_for_the_epoch() -> None:
    epochs = iter([0, 1, 1])
    made: BlockLoader[Tensor] = BlockLoader(
        plan=lambda e: (torch.tensor([e]),),
        fetch=lambda indices: indices,
        epoch=lambda: next(epochs),
        block=1,
        limit=None,
    )
    assert [[int(batch) for block in made for batch in block] for _ in range(3)] == [[0], [1], [1]]


def test_batches_are_fetched_block_by_block() -> None:
    fetched: list[int] = []
    made: BlockLoader[None] = BlockLoader(
        plan=lambda _: torch.split(torch.arange(6), 1),
        fetch=lambda indices: fetched.append(int(indices)),
        epoch=lambda: 0,
        block=2,
        limit=None,
    )
    blocks = iter(made)
    assert fetched == []
    next(blocks)
    assert fetched == [0, 1]
