"""A corpus as two flat arrays: all tokens, and where each sentence starts."""

import tempfile
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

MAPPED_FROM_BYTES = 256 * 2**20


class Packed:
    """Sentences of numbers in one array; on disk where they are large."""

    def __init__(self, sentences: Iterable[Sequence[int]]) -> None:
        """Pack the sentences."""
        lengths: list[int] = []
        with tempfile.TemporaryFile() as file:
            for sentence in sentences:
                lengths.append(len(sentence))
                file.write(np.asarray(sentence, dtype=np.int32).tobytes())
            file.flush()
            self.offsets: npt.NDArray[np.int64] = np.concatenate(
                [[0], np.cumsum(lengths, dtype=np.int64)]
            ).astype(np.int64)
            size = int(self.offsets[-1])
            self.tokens: npt.NDArray[np.int32]
            if size * 4 >= MAPPED_FROM_BYTES:
                # The mapping keeps the unnamed file alive after it is closed.
                self.tokens = np.memmap(file, dtype=np.int32, mode="r", shape=(size,))
            else:
                file.seek(0)
                self.tokens = np.frombuffer(file.read(), dtype=np.int32)

    def __len__(self) -> int:
        """Return the number of sentences."""
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> npt.NDArray[np.int32]:
        """Return one sentence."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Return the sentences' lengths."""
        return np.diff(self.offsets)

    def padded(
        self, indices: Sequence[int] | npt.NDArray[np.int64], filler: int
    ) -> npt.NDArray[np.int64]:
        """Return sentences as the rows of one array, short ones filled up at the end."""
        width = max((len(self[i]) for i in indices), default=0)
        rows = np.full((len(indices), width), filler, dtype=np.int64)
        for row, i in enumerate(indices):
            sentence = self[i]
            rows[row, : len(sentence)] = sentence
        return rows


class FlatTokens:
    """Tokens of many sentences in one array, before a vocabulary: numbered as they come."""

    def __init__(self) -> None:
        """Start empty."""
        self.index: dict[str, int] = {}
        self.numbers, self.lengths = array("i"), array("i")

    def add(self, tokens: Sequence[str]) -> None:
        """Append a sentence."""
        index = self.index
        self.numbers.extend(index.setdefault(token, len(index)) for token in tokens)
        self.lengths.append(len(tokens))

    def counts(self) -> Counter[str]:
        """Return how often each token occurs."""
        counts = np.bincount(np.asarray(self.numbers, dtype=np.int64), minlength=len(self.index))
        return Counter(dict(zip(self.index, counts.tolist(), strict=True)))

    def numbered(self, index: Mapping[str, int], unknown: int) -> Iterator[npt.NDArray[np.int32]]:
        """Yield the sentences under a vocabulary's numbers."""
        table = np.array([index.get(token, unknown) for token in self.index], dtype=np.int32)
        numbers = table[np.asarray(self.numbers, dtype=np.int64)]
        ends = np.cumsum(np.asarray(self.lengths, dtype=np.int64))
        for end, length in zip(ends, self.lengths, strict=True):
            yield numbers[end - length : end]
