import gzip
import unicodedata
from pathlib import Path

import pytest

from attnscale.data.corpus import (
    MIN_PAIRS,
    find_file,
    length_correlation,
    read_lines,
    read_pairs,
    shift_warning,
)

SEPARATORS = {
    "carriage return": "\r",
    "line separator": "\u2028",
    "next line": "\u0085",
    "paragraph separator": "\u2029",
    "vertical tab": "\x0b",
    "form feed": "\x0c",
}


def made_up(n: int) -> tuple[list[str], list[str]]:
    """Return sentences whose lengths vary without a period, and their translations."""
    lengths = [1 + (7919 * i * i + 31 * i) % 23 for i in range(n)]
    first = [" ".join(f"Wort{i}x{j}" for j in range(length)) for i, length in enumerate(lengths)]
    second = [f"word{i} " + "and so on " * length for i, length in enumerate(lengths)]
    return first, second


def test_lines_are_read_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "train.de"
    path.write_bytes(b"Ein Hund.\n\n  Zwei  Hunde. \n")
    assert read_lines(path) == ["Ein Hund.", "", "  Zwei  Hunde. "]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"\xef\xbb\xbfeins\nzwei\n", ["eins", "zwei"]),
        (b"eins\n\xef\xbb\xbfzwei\n", ["eins", "\ufeffzwei"]),
        (b"eins\r\nzwei\r\n", ["eins", "zwei"]),
        (b"eins\r\nzwei", ["eins", "zwei"]),
        (b"eins\nzwei", ["eins", "zwei"]),
        (b"eins\nzwei\n\n", ["eins", "zwei", ""]),
        (b"\n", [""]),
        (b"", []),
    ],
)
def test_marks_and_line_ends_are_no_part_of_a_line(
    tmp_path: Path, data: bytes, lines: list[str]
) -> None:
    plain, zipped = tmp_path / "train.de", tmp_path / "train.de.gz"
    plain.write_bytes(data)
    zipped.write_bytes(gzip.compress(data))
    assert read_lines(plain) == lines
    assert read_lines(zipped) == lines


@pytest.mark.parametrize("separator", SEPARATORS.values(), ids=SEPARATORS.keys())
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_other_separators_do_not_split(tmp_path: Path, separator: str, suffix: str) -> None:
    first, second = made_up(64)
    first[20] = f"vorn{separator}hinten"
    first[41] = f"{separator}noch{separator}eins"
    for name, lines in (("train.de", first), ("train.en", second)):
        data = "".join(f"{line}\n" for line in lines).encode()
        (tmp_path / f"{name}{suffix}").write_bytes(gzip.compress(data) if suffix else data)
    a, b = read_pairs(tmp_path / f"train.de{suffix}", tmp_path / f"train.en{suffix}")
    assert len(a) == len(b) == 64
    assert (a[60], b[60]) == (first[60], second[60])
    assert (a, b) == (first, second)


def test_letters_are_composed(tmp_path: Path) -> None:
    text = "Die Ärztin grüßt schöne Mädchen, café."
    apart = unicodedata.normalize("NFD", text)
    assert apart != text
    path = tmp_path / "train.de"
    path.write_bytes(f"{apart}\n".encode())
    assert read_lines(path) == [text]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_wrong_byte_is_named_with_its_line(tmp_path: Path, suffix: str) -> None:
    data = "Eins.\nZwei.\nDrei Mädchen.\nVier.\n".encode("latin-1")
    path = tmp_path / f"train.de{suffix}"
    path.write_bytes(gzip.compress(data) if suffix else data)
    with pytest.raises(ValueError, match="not UTF-8") as caught:
        read_lines(path)
    assert str(path) in str(caught.value)
    assert "line 3" in str(caught.value)
    assert "0xe4" in str(caught.value)


def test_different_line_counts_are_an_error_with_both(tmp_path: Path) -> None:
    source, target = tmp_path / "train.de", tmp_path / "train.en"
    source.write_text("a\nb\nc\n")
    target.write_text("a\nb\nc\nd\ne\n")
    with pytest.raises(ValueError, match="must be a pair") as caught:
        read_pairs(source, target)
    assert f"{source} has 3 lines" in str(caught.value)
    assert f"{target} has 5" in str(caught.value)


def test_a_file_is_found_plain_or_zipped(tmp_path: Path) -> None:
    assert find_file(tmp_path, "train.de") is None
    (tmp_path / "train.de.gz").write_bytes(b"")
    assert find_file(tmp_path, "train.de") == tmp_path / "train.de.gz"
    (tmp_path / "train.de").write_bytes(b"")
    assert find_file(tmp_path, "train.de") == tmp_path / "train.de"


def test_hidden_files_and_folders_are_no_data(tmp_path: Path) -> None:
    (tmp_path / "._train.de").write_bytes(b"\x00\x05")
    (tmp_path / "._train.de.gz").write_bytes(b"\x00\x05")
    (tmp_path / "train.de").mkdir()
    assert find_file(tmp_path, "train.de") is None
    assert find_file(tmp_path, "._train.de") is None


def test_a_good_corpus_is_not_warned_about() -> None:
    assert shift_warning(*made_up(400)) is None


@pytest.mark.parametrize("at", [0, 200, 320])
def test_a_shift_is_warned_about(at: int) -> None:
    first, second = made_up(401)
    del second[at]
    warning = shift_warning(first[:400], second)
    assert warning is not None
    # The lines it names are among those that no longer belong together.
    lines, stop = warning.split()[1], warning.split()[3].rstrip(":")
    assert int(stop) > at
    assert int(lines) <= 401
    assert "is a line missing or extra" in warning


def test_a_shift_of_the_second_half_is_placed_there() -> None:
    first, second = made_up(400)
    second[200:] = [*second[201:], "odd"]
    warning = shift_warning(first, second)
    assert warning is not None
    assert warning.startswith(("lines 201 to 400:", "lines 1 to 400:"))
    (part,) = [length_correlation(first[200:], second[200:])]
    assert part is not None
    assert part < 0.3


def test_a_tiny_corpus_says_nothing() -> None:
    first, second = made_up(MIN_PAIRS)
    backwards = sorted(second, key=len, reverse=True)
    ordered = sorted(first, key=len)
    assert shift_warning(ordered, backwards) is not None
    assert shift_warning(ordered[:-1], backwards[:-1]) is None
    assert length_correlation(ordered[:-1], backwards[:-1]) is None
    assert shift_warning([], []) is None


def test_sentences_of_one_length_say_nothing() -> None:
    first, second = made_up(100)
    assert length_correlation(["abc"] * 100, second) is None
    assert length_correlation(first, ["abc"] * 100) is None
    assert shift_warning(["abc"] * 100, second) is None


def test_the_correlation_is_that_of_lengths() -> None:
    first = ["x" * n for n in range(1, 41)]
    assert length_correlation(first, ["y" * (3 * n) for n in range(1, 41)]) == pytest.approx(1.0)
    assert length_correlation(first, ["y" * n for n in range(40, 0, -1)]) == pytest.approx(-1.0)


@pytest.mark.parametrize(
    "content",
    [b"no gzip", gzip.compress(b"a line" * 50, mtime=0)[:-9]],
    ids=["no gzip", "cut off"],
)
def test_a_broken_gzip_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "train.de.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"train\.de\.gz: cannot be unpacked"):
        read_lines(path)


def test_a_shift_is_seen_where_sentences_repeat() -> None:
    lengths = [15, 29, 20, 32, 30, 28, 20, 17] * 8
    first = ["x" * n for n in lengths]
    second = ["y" * (n + n % 3) for n in lengths]
    assert shift_warning(first, second) is None
    shifted = [*second[:10], "", *second[10:-1]]
    assert "moved by a line" in str(shift_warning(first, shifted))
