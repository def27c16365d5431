"""What a dataset owes, asked of each kind there is."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attnscale.data.batching import Processes
from attnscale.data.gaussian import GaussianData, SequenceBatch
from attnscale.data.module import DataModule
from attnscale.data.toy_translation import ToyTranslation
from attnscale.data.vocabulary import PADDING

Make = Callable[[], DataModule]


def gaussian() -> DataModule:
    return GaussianData(
        n_train=23,
        n_val=11,
        n_test=13,
        length=7,
        d_model=5,
        batch_size=4,
        eval_batch_size=6,
        shuffle=True,
        seed=3,
    )


def translation() -> DataModule:
    return ToyTranslation(
        n_train=23,
        n_val=11,
        n_test=13,
        corpus_seed=0,
        source="de",
        target="en",
        test=None,
        tokenizer="split",
        lowercase=False,
        min_frequency=1,
        max_length=50,
        too_long="skip",
        batch_tokens=None,
        batch_sentences=4,
        eval_batch_sentences=6,
        seed=3,
    )


KINDS: dict[str, Make] = {"gaussian": gaussian, "translation": translation}
every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


def ready(make: Make) -> DataModule:
    data = make()
    for stage in ("fit", "test"):
        data.setup(stage)
    return data


def tensors(batches: list[Any]) -> list[Tensor]:
    return [x for batch in batches for x in batch if isinstance(x, Tensor)]


@every_kind
def test_batches_have_a_share_and_blocks_a_length(make: Make) -> None:
    data = ready(make)
    data.count_batches(block=4)
    blocks = list(data.train_dataloader())
    assert [len(block) for block in blocks] == [4, 2]
    assert data.train_dataloader().n_batches == 6
    for loader in (data.val_dataloader(), data.test_dataloader()):
        assert [len(block) for block in loader] == [1] * loader.n_batches
        blocks += list(loader)
    assert {batch.loss_weight for block in blocks for batch in block} == {1.0}


@every_kind
def test_limits_and_overfitting(make: Make) -> None:
    data = ready(make)
    data.count_batches(limit_train=2)
    assert data.train_dataloader().n_batches == 2
    assert data.val_dataloader().n_batches == 2, "11 examples in batches of 6, whatever the limit"
    data.count_batches(limit_train=5, overfit=3)
    train, val = (
        tensors([batch for block in loader for batch in block])
        for loader in (data.train_dataloader(), data.val_dataloader())
    )
    assert data.train_dataloader().n_batches == 3
    assert len(train) == len(val)
    assert all(torch.equal(a, b) for a, b in zip(train, val, strict=True))
    data.count_batches()
    assert data.train_dataloader().n_batches == 6


def elements(batch: Any) -> Tensor:
    """Return numbers, one for each component or target token that the loss is a mean over."""
    if isinstance(batch, SequenceBatch):
        return batch.x.double().flatten()
    tokens: Tensor = batch.target[:, 1:]
    return tokens[(tokens != PADDING) & (batch.loss_weight > 0)].double()


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("accumulate", [1, 2, 4, 9])
@every_kind
def test_a_steps_loss_is_a_mean_over_all_that_its_batches_and_processes_have(
    monkeypatch: pytest.MonkeyPatch, make: Make, accumulate: int, world: int
) -> None:
    """Five of six batches, one of which has three examples and the others four."""
    shares = []
    for rank in range(world):
        data = ready(make)
        monkeypatch.setattr(data, "_processes", lambda rank=rank: Processes(rank, world))
        data.count_batches(block=2, accumulate=accumulate, limit_train=5)
        shares.append([batch for block in data.train_dataloader() for batch in block])
    for start in range(0, 5, accumulate):
        steps = [share[start : start + accumulate] for share in shares]
        parts = [(elements(batch), batch.loss_weight) for step in steps for batch in step]
        means = [values.mean().nan_to_num(0.0) * weight for values, weight in parts]
        wanted = torch.cat([values for values, _ in parts]).mean()
        torch.testing.assert_close(torch.stack(means).mean(), wanted, rtol=1e-12, atol=0)


@every_kind
def test_a_record_of_plain_values_makes_another_the_same(make: Make) -> None:
    data, other = ready(make), make()
    assert all(
        isinstance(token, str) for tokens in data.checkpoint_values().values() for token in tokens
    ), "checkpoints hold plain values"
    other.take_checkpoint_values(data.checkpoint_values())
    assert other.checkpoint_values() == data.checkpoint_values()
    assert other.model_arguments() == data.model_arguments()


@every_kind
def test_lengths_and_tokens(make: Make) -> None:
    data = ready(make)
    lengths = data.train_lengths()
    assert lengths.dtype == np.int64
    assert len(lengths) >= 23
    assert int(lengths.min()) >= 1
    assert 0 < data.train_tokens() <= int(lengths.sum()) + 23


@every_kind
def test_examples_to_look_at_are_fixed_and_have_labels(make: Make) -> None:
    data = ready(make)
    batch = data.examples(5)
    assert batch.loss_weight == 1.0
    first, again = tensors([batch]), tensors([data.examples(5)])
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert all(len(x) == 5 for x in first)
    for side in ("source", "target"):
        labels = data.labels(side, batch, 3)
        assert len(labels) == 3
        assert all(row and all(isinstance(token, str) for token in row) for row in labels)


def test_a_dataset_need_not_have_examples() -> None:
    assert DataModule().examples(3) is None
    assert DataModule().model_arguments() == DataModule().checkpoint_values() == {}


def test_legible_examples_come_first() -> None:
    data = translation()
    assert isinstance(data, ToyTranslation)
    texts = [" ".join(["w"] * n) for n in (30, 3, 23, 24, 5)]
    setattr(data, "pairs", lambda _: (texts, texts))  # noqa: B010 -- one instance only
    # 23 words and END are 24 tokens.
    assert data.examples(5).indices.tolist() == [1, 2, 4, 0, 3]
    labels = data.labels("target", data.examples(1), 1)
    assert labels == [["<bos>", "w", "w", "w"]]
    assert data.labels("source", data.examples(1), 1) == [["w", "w", "w", "<eos>"]]
