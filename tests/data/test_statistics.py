"""What the scale modes may know of the training data."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from attnscale.attention import SCALES
from attnscale.data.gaussian import GaussianData
from attnscale.data.module import STATISTICS, data_statistics
from attnscale.data.parallel import Parallel

NAME = "length_p97_5"


class Lengths:
    """A training set of which only the lengths are known; None for one that may not be read."""

    def __init__(self, lengths: list[int] | None) -> None:
        self.lengths = lengths

    def train_lengths(self) -> npt.NDArray[np.int64]:
        assert self.lengths is not None, "the training data were read"
        return np.array(self.lengths, dtype=np.int64)


@pytest.mark.parametrize(
    ("lengths", "wanted"),
    [
        ([7], 7.0),
        ([5] * 40, 5.0),
        # 0, 1 … 40 in any order: 97.5 % of the way from 0 to 40.
        ([*range(40, -1, -1)], 39.0),
        # 97.5 % of the way from 0 to 2 is 1.95, between 20 and 40.
        ([40, 10, 20], 20 + 0.95 * 20),
    ],
)
def test_the_percentile_of_known_lengths(lengths: list[int], wanted: float) -> None:
    found = data_statistics(Lengths(lengths), (NAME,))
    assert found == {NAME: pytest.approx(wanted)}
    assert type(found[NAME]) is float, "it goes into checkpoints, which hold plain values"


def test_an_unknown_statistic_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown statistics of the data: length_mean, mood"):
        data_statistics(Lengths([7]), ("length_mean", NAME, "mood"))


def test_nothing_is_read_if_nothing_is_wanted() -> None:
    assert data_statistics(Lengths(None), ()) == {}


def test_all_that_modes_want_is_known() -> None:
    wanted = {name for mode in SCALES.values() for name in mode.statistics.values()}
    assert wanted == set(STATISTICS)


@pytest.mark.parametrize("length", [2, 8, 13])
def test_gaussian_sequences_have_one_length(length: int) -> None:
    data = GaussianData(
        n_train=5,
        n_val=3,
        n_test=2,
        length=length,
        d_model=4,
        batch_size=2,
        eval_batch_size=2,
        shuffle=True,
        seed=0,
    )
    assert data.train_lengths().tolist() == [length] * 5
    assert data_statistics(data, (NAME,)) == {NAME: float(length)}


def corpus(folder: Path, **changed: Any) -> Parallel:
    parts: dict[str, Any] = {
        "source": "de",
        "target": "en",
        "test": None,
        "tokenizer": "split",
        "lowercase": False,
        "min_frequency": 1,
        "max_length": 6,
        "too_long": "skip",
        "batch_tokens": 100,
        "batch_sentences": None,
        "eval_batch_sentences": 4,
        "seed": 0,
        **changed,
    }
    return Parallel(dir=str(folder), **parts)


@pytest.mark.parametrize(
    ("too_long", "wanted"), [("skip", [1, 2, 3, 5]), ("cut", [1, 2, 3, 4, 5, 6])]
)
def test_sentences_are_counted_on_both_sides_without_marks(
    tmp_path: Path, too_long: str, wanted: list[int]
) -> None:
    # (source, target) of 1 and 3 tokens, 5 and 2, an empty pair, and 9 and 4, which is too long.
    counts = [(1, 3), (5, 2), (0, 3), (9, 4)]
    for side, language in enumerate(("de", "en")):
        text = "".join(f"{' '.join('w' * pair[side])}\n" for pair in counts)
        (tmp_path / f"train.{language}").write_text(text)
        # Neither validation nor test sentences count.
        for split in ("val", "test"):
            (tmp_path / f"{split}.{language}").write_text("a b c d e f\n" * 9)
    data = corpus(tmp_path, too_long=too_long)
    assert sorted(data.train_lengths().tolist()) == wanted
    assert data_statistics(data, (NAME,))[NAME] == pytest.approx(np.percentile(wanted, 97.5))
