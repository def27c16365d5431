import numpy as np
import pytest

from attnscale.data import packing
from attnscale.data.packing import Packed

SENTENCES = [[3, 1, 4, 1, 5], [], [9], [2, 6, 5, 3, 5, 8, 9, 7], [], [2**31 - 1, 0]]


@pytest.fixture(params=["in memory", "mapped"])
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Packed:
    if request.param == "mapped":
        monkeypatch.setattr(packing, "MAPPED_FROM_BYTES", 0)
    found = Packed(SENTENCES)
    assert isinstance(found.tokens, np.memmap) is (request.param == "mapped")
    return found


def test_it_gives_back_what_was_packed(made: Packed) -> None:
    assert len(made) == len(SENTENCES)
    assert [made[i].tolist() for i in range(len(made))] == SENTENCES
    assert made.lengths.tolist() == [len(sentence) for sentence in SENTENCES]


def test_it_takes_an_iterator() -> None:
    made = Packed([i] * i for i in range(20))
    assert [made[i].tolist() for i in range(20)] == [[i] * i for i in range(20)]


def test_nothing_can_be_packed() -> None:
    assert len(Packed([])) == 0
    assert Packed([]).lengths.tolist() == []
    none = Packed([[], []])
    assert len(none) == 2
    assert none[1].tolist() == []
    assert none.padded([0, 1], 7).shape == (2, 0)


def test_rows_are_filled_up_at_the_end(made: Packed) -> None:
    rows = made.padded([2, 0, 1], 77)
    assert rows.dtype == np.int64
    assert rows.tolist() == [[9, 77, 77, 77, 77], [3, 1, 4, 1, 5], [77] * 5]


def test_rows_are_no_wider_than_needed(made: Packed) -> None:
    assert made.padded([2, 1], -1).tolist() == [[9], [-1]]
    assert made.padded(np.array([3, 3], dtype=np.int64), 0).tolist() == [SENTENCES[3]] * 2
    assert made.padded([], 0).shape == (0, 0)


def test_rows_can_be_changed_without_changing_the_corpus(made: Packed) -> None:
    made.padded([0, 3], 0)[:] = 42
    assert made[0].tolist() == SENTENCES[0]
