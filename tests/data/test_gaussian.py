import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from attnscale.data.batching import BlockLoader
from attnscale.data.gaussian import SPLITS, GaussianData, SequenceBatch, draw

N_TRAIN, N_VAL, N_TEST, LENGTH, D_MODEL = 23, 11, 13, 7, 5


def build(**changed: int | bool) -> GaussianData:
    parts = {
        "n_train": N_TRAIN,
        "n_val": N_VAL,
        "n_test": N_TEST,
        "length": LENGTH,
        "d_model": D_MODEL,
        "batch_size": 4,
        "eval_batch_size": 6,
        "shuffle": True,
        "seed": 3,
        **changed,
    }
    data = GaussianData(**parts)  # type: ignore[arg-type]
    data.setup()
    return data


def attach(
    monkeypatch: pytest.MonkeyPatch,
    data: GaussianData,
    *,
    epoch: int = 0,
    rank: int = 0,
    world: int = 1,
) -> GaussianData:
    trainer = SimpleNamespace(current_epoch=epoch, global_rank=rank, world_size=world)
    monkeypatch.setattr(data, "trainer", trainer)
    return data


def batches(loader: BlockLoader[SequenceBatch]) -> list[SequenceBatch]:
    return [batch for block in loader for batch in block]


def joined(loader: BlockLoader[SequenceBatch]) -> Tensor:
    return torch.cat([batch.x for batch in batches(loader)])


def rows(x: Tensor) -> set[tuple[float, ...]]:
    return {tuple(row) for row in x.flatten(1).tolist()}


def test_sizes_of_the_sets() -> None:
    data = build()
    shapes = {split: tuple(x.shape) for split, x in data.sets.items()}
    assert shapes == {
        "train": (N_TRAIN, LENGTH, D_MODEL),
        "val": (N_VAL, LENGTH, D_MODEL),
        "test": (N_TEST, LENGTH, D_MODEL),
    }


def test_the_sets_are_disjoint() -> None:
    data = build()
    train, val, test = (rows(data.sets[split]) for split in SPLITS)
    assert len(train | val | test) == N_TRAIN + N_VAL + N_TEST


def test_no_stream_is_used_twice() -> None:
    firsts = {
        float(draw(n=16, length=1, d_model=1, seed=seed, split=split)[0])
        for seed in range(20)
        for split in SPLITS
    }
    assert len(firsts) == 60


def test_the_components_are_independent_standard_normal() -> None:
    n = 50_000
    train, val = (
        draw(n=n, length=1, d_model=1, seed=0, split=split).flatten() for split in ("train", "val")
    )
    statistics = {
        "mean": (float(train.mean()), 0.0, 1.0),
        "variance": (float(train.square().mean()), 1.0, 2.0),
        "fourth moment": (float(train.pow(4).mean()), 3.0, 96.0),
        "correlation of the sets": (float((train * val).mean()), 0.0, 1.0),
        "correlation of neighbours": (float((train[1:] * train[:-1]).mean()), 0.0, 1.0),
    }
    for name, (found, wanted, variance) in statistics.items():
        allowed = 5 * math.sqrt(variance / n)
        assert abs(found - wanted) < allowed, f"{name} {found}, allowed {wanted} ± {allowed}"


def test_the_sets_depend_on_the_seed_only() -> None:
    data = build()
    torch.manual_seed(8)
    state = torch.get_rng_state()
    same, other = build(), build(seed=4)
    assert torch.equal(torch.get_rng_state(), state)
    for split in SPLITS:
        assert torch.equal(data.sets[split], same.sets[split])
        assert not rows(data.sets[split]) & rows(other.sets[split])


def test_setting_up_again_draws_nothing() -> None:
    data = build()
    before = dict(data.sets)
    data.setup("fit")
    assert all(data.sets[split] is before[split] for split in SPLITS)


def test_each_epoch_has_its_own_seeded_order(monkeypatch: pytest.MonkeyPatch) -> None:
    data = build()
    first = joined(attach(monkeypatch, data, epoch=0).train_dataloader())
    second = joined(attach(monkeypatch, data, epoch=1).train_dataloader())
    again = joined(attach(monkeypatch, build(), epoch=1).train_dataloader())
    assert torch.equal(second, again)
    assert not torch.equal(first, second)
    assert rows(first) == rows(second) == rows(data.sets["train"])
    assert not torch.equal(first, data.sets["train"])


def test_the_order_follows_the_epoch_of_one_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    data = build()
    loader = attach(monkeypatch, data, epoch=0).train_dataloader()
    first = joined(loader)
    attach(monkeypatch, data, epoch=1)
    assert torch.equal(joined(loader), joined(data.train_dataloader()))
    assert not torch.equal(joined(loader), first)


def test_without_shuffling_the_order_is_that_of_the_set(monkeypatch: pytest.MonkeyPatch) -> None:
    data = attach(monkeypatch, build(shuffle=False), epoch=3)
    assert torch.equal(joined(data.train_dataloader()), data.sets["train"])


def test_without_a_trainer_it_is_the_first_epoch_of_one_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = joined(build().train_dataloader())
    assert torch.equal(alone, joined(attach(monkeypatch, build()).train_dataloader()))


@pytest.mark.parametrize("block", [1, 2, 4, 100])
def test_training_batches_come_in_blocks(block: int) -> None:
    data = build()
    data.count_batches(block=block)
    loader = data.train_dataloader()
    assert [len(batch.x) for batch in batches(loader)] == [4, 4, 4, 4, 4, 3]
    assert len(loader) == math.ceil(6 / block)
    assert torch.equal(joined(loader), joined(build().train_dataloader()))
    assert all(batch.loss_weight == 1 for batch in batches(loader))


@pytest.mark.parametrize(("limit", "left"), [(None, 6), (0, 0), (2, 2), (0.5, 3), (1.0, 6)])
def test_training_batches_are_limited(limit: float | None, left: int) -> None:
    data = build()
    data.count_batches(block=4, limit_train=limit)
    everything = batches(build().train_dataloader())
    made = batches(data.train_dataloader())
    assert len(made) == left
    assert all(torch.equal(a.x, b.x) for a, b in zip(made, everything, strict=False))


@pytest.mark.parametrize("split", ["val", "test"])
def test_evaluation_is_in_order_and_whole(split: str) -> None:
    data = build()
    data.count_batches(block=4, limit_train=1)
    loader = data.val_dataloader() if split == "val" else data.test_dataloader()
    assert [[len(batch.x) for batch in block] for block in loader] == [
        [6],
        [{"val": 5, "test": 6}[split]],
        *([[1]] if split == "test" else []),
    ]
    assert torch.equal(joined(loader), data.sets[split])


@pytest.mark.parametrize(("overfit", "n_batches"), [(2, 2), (0.5, 3), (1.0, 6)])
def test_overfitting_repeats_the_same_batches(
    overfit: float, n_batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = attach(monkeypatch, build(), epoch=3)
    data.count_batches(overfit=overfit)
    made = joined(data.train_dataloader())
    assert torch.equal(made, data.sets["train"][: 4 * n_batches])
    assert torch.equal(joined(data.val_dataloader()), made)
    assert torch.equal(joined(data.test_dataloader()), data.sets["test"])


@pytest.mark.parametrize("world", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("split", SPLITS)
def test_processes_share_each_batch(
    split: str, world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(rank: int, of: int) -> list[SequenceBatch]:
        data = attach(monkeypatch, build(), epoch=1, rank=rank, world=of)
        loaders = (data.train_dataloader, data.val_dataloader, data.test_dataloader)
        return batches(loaders[SPLITS.index(split)]())

    whole = made(0, 1)
    shares = [made(rank, world) for rank in range(world)]
    assert {len(share) for share in shares} == {len(whole)}
    for i, batch in enumerate(whole):
        parts = [share[i] for share in shares]
        union = torch.cat([part.x for part in parts])
        assert len(union) == len(batch.x)
        assert rows(union) == rows(batch.x)
        wanted = batch.x.double().square().mean()
        # A process without a sequence has share 0, whatever it takes the mean of nothing to be.
        means = [
            part.x.double().square().mean().nan_to_num(0.0) * part.loss_weight for part in parts
        ]
        torch.testing.assert_close(torch.stack(means).mean(), wanted, rtol=1e-12, atol=0)
        assert all((part.loss_weight == 0) == (len(part.x) == 0) for part in parts)
    if world == 7:
        assert min(part.loss_weight for share in shares for part in share) == 0


@pytest.mark.parametrize(
    "key", ["n_train", "n_val", "n_test", "length", "d_model", "batch_size", "eval_batch_size"]
)
@pytest.mark.parametrize("wrong", [0, -1])
def test_refuses_a_size_below_one(key: str, wrong: int) -> None:
    with pytest.raises(ValueError, match=rf"^data\.{key}={wrong}: must be at least 1$"):
        build(**{key: wrong})


def test_a_model_needs_to_know_nothing() -> None:
    assert build().model_arguments() == {}
