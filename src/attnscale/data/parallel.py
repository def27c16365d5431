"""People's own files: ``train.<language>``, ``val.<language>``, any ``test*.<language>``."""

from pathlib import Path
from typing import Any

from attnscale.data.corpus import find_file, read_pairs
from attnscale.data.translation import TranslationData


class Parallel(TranslationData):
    """A folder of parallel text, one sentence a line, plain or gzipped."""

    def __init__(self, *, dir: str | None, **rest: Any) -> None:
        """Take the folder, and what every corpus takes.

        Raises:
            ValueError: If the folder is not given or not there, saying what to put where.
        """
        super().__init__(**rest)
        names = f"train.{self.source}, train.{self.target}, val.*, test*.* (each may end in .gz)"
        if dir is None:
            raise ValueError(f"data.dir is missing: the folder with {names}")
        self.folder = Path(dir)
        if not self.folder.is_dir():
            raise ValueError(f"data.dir={dir}: no such folder; it should hold {names}")

    def _tests(self) -> list[str]:
        names = {path.name.removesuffix(".gz") for path in self.folder.glob("test*")}
        end = f".{self.source}"
        return sorted(name.removesuffix(end) for name in names if name.endswith(end))

    def test_split(self) -> str:
        """Return the named test set, or the first that is there."""
        return self.test or next(iter(self._tests()), "test")

    def _file(self, split: str, language: str) -> Path:
        path = find_file(self.folder, f"{split}.{language}")
        if path is None:
            there = ", ".join(sorted(p.name for p in self.folder.glob("[!.]*"))) or "nothing"
            raise ValueError(
                f"data.dir={self.folder}: {split}.{language} (or {split}.{language}.gz) is "
                f"missing; there is {there}"
            )
        return path

    def pairs(self, split: str) -> tuple[list[str], list[str]]:
        """Read a split."""
        return read_pairs(self._file(split, self.source), self._file(split, self.target))
