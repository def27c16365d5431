r"""Reading parallel text, one sentence a line, so that line i of both files stays one pair.

Only ``\n`` ends a line: other separators of Unicode (U+2028, U+0085, a bare carriage return) are
part of a sentence, and splitting there would shift every later pair.
"""

import gzip
import unicodedata
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

MIN_PAIRS = 20
MIN_CORRELATION, CLEARLY_BETTER = 0.3, 0.2
UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
"""Scripts without spaces between words, as names of characters in Unicode begin."""
MAX_MEAN_WORD = 6
"""Characters of a word, on average, in these scripts; a phrase without spaces has more."""


def decode_line(line: bytes, name: str, number: int) -> str:
    """Return a line's text, without its end and without a byte-order mark in front of the first.

    Raises:
        ValueError: Naming ``name`` and the line, if a byte is not UTF-8.
    """
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    if number == 1:
        line = line.removeprefix(b"\xef\xbb\xbf")
    try:
        return unicodedata.normalize("NFC", line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name}, line {number}: byte 0x{line[error.start]:02x} is not UTF-8; convert it first"
        ) from error


def read_lines(path: Path) -> list[str]:
    r"""Read the lines of a UTF-8 file, plain or ``.gz``, in Unicode's composed form (NFC).

    A byte-order mark, a carriage return before ``\n`` and a missing last ``\n`` are no part of a
    line.

    Raises:
        ValueError: Naming the file and the line, if a byte is not UTF-8; naming the file, if it is
            no whole gzip file.
    """
    data = path.read_bytes()
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path}: cannot be unpacked: {error}") from error
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    return [decode_line(line, str(path), number) for number, line in enumerate(lines, start=1)]


def read_pairs(source: Path, target: Path) -> tuple[list[str], list[str]]:
    """Read two files that belong together.

    Raises:
        ValueError: If their line counts differ, naming both.
    """
    first, second = read_lines(source), read_lines(target)
    if len(first) != len(second):
        raise ValueError(
            f"{source} has {len(first)} lines and {target} has {len(second)}: "
            "line i of both must be a pair"
        )
    return first, second


def length_correlation(first: Sequence[str], second: Sequence[str], shift: int = 0) -> float | None:
    """Return the correlation of the pairs' lengths in characters, or None if it says nothing.

    Translations are about as long as their originals; lines that do not belong together are not.

    Args:
        first: Source texts.
        second: Target texts, as many.
        shift: Pair line i of the source with line i + shift of the target instead.
    """
    a = np.array([len(text) for text in first], dtype=float)
    b = np.array([len(text) for text in second], dtype=float)
    ahead, behind = max(0, shift), max(0, -shift)
    a, b = a[behind : len(a) - ahead], b[ahead : len(b) - behind]
    if len(a) < MIN_PAIRS or a.std() == 0 or b.std() == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def shift_warning(first: Sequence[str], second: Sequence[str]) -> str | None:
    """Return a warning if the pairs do not look like translations of each other.

    That is so if their lengths hardly go together, or go together clearly better one line further.
    One stray line in the middle shifts only what comes after it, so halves and quarters are looked
    at too.
    """
    n = len(first)
    for parts in (1, 2, 4):
        for part in range(parts):
            piece = slice(part * n // parts, (part + 1) * n // parts)
            a, b = first[piece], second[piece]
            aligned = length_correlation(a, b)
            if aligned is None:
                continue
            moved = max(length_correlation(a, b, shift) or 0.0 for shift in (-1, 1))
            if aligned < MIN_CORRELATION or moved > aligned + CLEARLY_BETTER:
                return (
                    f"lines {piece.start + 1} to {piece.stop}: lengths of source and target go "
                    f"together with correlation {aligned:.2f}, and {moved:.2f} if one side is "
                    "moved by a line; is a line missing or extra before?"
                )
    return None


def unspaced(texts: Sequence[str]) -> bool:
    """Whether most letters are of scripts without spaces between words, and there are no spaces."""
    letters = {c: n for c, n in Counter("".join(texts)).items() if c.isalpha()}
    count = sum(n for c, n in letters.items() if unicodedata.name(c, "").startswith(UNSPACED))
    words = sum(len(text.split()) for text in texts)
    return 2 * count > sum(letters.values()) > MAX_MEAN_WORD * words


def unspaced_warning(texts: Sequence[str], tokenizer: str, language: str) -> str | None:
    """Return a warning if a tokenizer that cuts at spaces and signs gets text without spaces."""
    if tokenizer == "char" or not unspaced(texts):
        return None
    return (
        f"the text in {language} has no spaces between words, and data.tokenizer={tokenizer} takes "
        "a phrase for a word: set data.tokenizer=char, or cut it into words or pieces and set split"
    )


def find_file(folder: Path, stem: str) -> Path | None:
    """Return ``folder/stem`` or ``folder/stem.gz``; hidden files are no data."""
    for name in (stem, f"{stem}.gz"):
        path = folder / name
        if path.is_file() and not name.startswith("."):
            return path
    return None
