"""The corpus that comes with the project: German and English sentences of a small grammar."""

from typing import Any

from attnscale.data.grammar import draw_pairs
from attnscale.data.translation import TranslationData


class ToyTranslation(TranslationData):
    """Seeded pairs of the grammar; no source sentence is in two splits."""

    def __init__(
        self, *, n_train: int, n_val: int, n_test: int, corpus_seed: int, **rest: Any
    ) -> None:
        """Take the sizes, and what every corpus takes.

        Args:
            n_train: Training pairs.
            n_val: Validation pairs.
            n_test: Test pairs.
            corpus_seed: Seed of the sentences; not that of the run, so that runs are comparable.
            rest: See :class:`TranslationData`.

        Raises:
            ValueError: If a size is below 1, or the languages are not German and English.
        """
        super().__init__(**rest)
        for name, size in (("n_train", n_train), ("n_val", n_val), ("n_test", n_test)):
            if size < 1:
                raise ValueError(f"data.{name}={size}: must be at least 1")
        if {self.source, self.target} != {"de", "en"}:
            raise ValueError(
                f"data.source={self.source}, data.target={self.target}: this corpus has de and en"
            )
        self.n = {"train": n_train, "val": n_val, "test": n_test}
        if self.test not in (None, *self.n):
            raise ValueError(f"data.test={self.test}: this corpus has {', '.join(self.n)}")
        self.corpus_seed = corpus_seed

    def pairs(self, split: str) -> tuple[list[str], list[str]]:
        """Draw the whole corpus and return one part of it."""
        if split not in self.n:
            raise ValueError(f"data.split={split}: this corpus has {', '.join(self.n)}")
        drawn = draw_pairs(sum(self.n.values()), self.corpus_seed)
        start = 0
        for name, size in self.n.items():
            if name == split:
                break
            start += size
        texts = {"de": [a for a, _ in drawn], "en": [b for _, b in drawn]}
        part = slice(start, start + self.n[split])
        return texts[self.source][part], texts[self.target][part]
