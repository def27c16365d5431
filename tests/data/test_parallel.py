import gzip
from pathlib import Path
from typing import Any

import pytest

from attnscale.data.parallel import Parallel

PAIRS = {
    "train": [("Ein Hund.", "A dog."), ("Zwei Katzen.", "Two cats."), ("Ein Haus!", "A house!")],
    "val": [("Drei Hunde.", "Three dogs.")],
    "test": [("Eine Katze.", "A cat."), ("Vier.", "Four.")],
}


def write(folder: Path, split: str, pairs: list[tuple[str, str]], *, zipped: bool = False) -> None:
    for side, language in enumerate(("de", "en")):
        data = "".join(f"{pair[side]}\n" for pair in pairs).encode()
        name = f"{split}.{language}{'.gz' if zipped else ''}"
        (folder / name).write_bytes(gzip.compress(data) if zipped else data)


def build(dir: Path | str | None, **changed: Any) -> Parallel:
    parts: dict[str, Any] = {
        "source": "de",
        "target": "en",
        "test": None,
        "tokenizer": "moses",
        "lowercase": False,
        "min_frequency": 1,
        "max_length": 50,
        "too_long": "skip",
        "batch_tokens": 100,
        "batch_sentences": None,
        "eval_batch_sentences": 4,
        "seed": 3,
        **changed,
    }
    return Parallel(dir=None if dir is None else str(dir), **parts)


@pytest.mark.parametrize("zipped", [False, True])
def test_a_folder_is_read(tmp_path: Path, zipped: bool) -> None:
    for split, pairs in PAIRS.items():
        write(tmp_path, split, pairs, zipped=zipped)
    data = build(tmp_path)
    for split, pairs in PAIRS.items():
        assert data.pairs(split) == ([a for a, _ in pairs], [b for _, b in pairs])
    back = build(tmp_path, source="en", target="de")
    assert back.pairs("train") == data.pairs("train")[::-1]
    data.setup("fit")
    data.setup("test")
    assert {name: len(split.source) for name, split in data.splits.items()} == {
        "train": 3,
        "val": 1,
        "test": 2,
    }


def test_sides_may_be_packed_differently(tmp_path: Path) -> None:
    write(tmp_path, "train", PAIRS["train"])
    write(tmp_path, "train", PAIRS["train"], zipped=True)
    (tmp_path / "train.de").unlink()
    (tmp_path / "train.en.gz").unlink()
    assert build(tmp_path).pairs("train")[0][1] == "Zwei Katzen."


@pytest.mark.parametrize(
    ("present", "wanted", "found"),
    [
        (["test"], None, "test"),
        (["test_2017", "test_2016"], None, "test_2016"),
        (["test_2017", "test_2016"], "test_2017", "test_2017"),
        (["testset.v2"], None, "testset.v2"),
        ([], None, "test"),
        (["news"], "news", "news"),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_any_test_set_is_found(
    tmp_path: Path, present: list[str], wanted: str | None, found: str, zipped: bool
) -> None:
    for name in present:
        write(tmp_path, name, PAIRS["test"], zipped=zipped)
    write(tmp_path, "train", PAIRS["train"])
    data = build(tmp_path, test=wanted)
    assert data.test_split() == found
    if present:
        data.setup("test")
        assert data.splits[found].source_text == ["Eine Katze.", "Vier."]


def test_another_language_that_starts_alike_is_no_test_set(tmp_path: Path) -> None:
    write(tmp_path, "test_b", PAIRS["test"])
    (tmp_path / "test_a.deu").write_text("x\n")
    (tmp_path / "._test_a.de").write_bytes(b"\x00")
    assert build(tmp_path).test_split() == "test_b"


def test_a_missing_file_is_named_with_what_is_there(tmp_path: Path) -> None:
    write(tmp_path, "train", PAIRS["train"])
    (tmp_path / "val.de").write_text("x\n")
    (tmp_path / "._val.en").write_bytes(b"\x00")
    with pytest.raises(ValueError, match=r"val\.en \(or val\.en\.gz\) is missing") as caught:
        build(tmp_path).pairs("val")
    assert "there is train.de, train.en, val.de" in str(caught.value)
    assert f"data.dir={tmp_path}" in str(caught.value)
    assert "._val" not in str(caught.value)


def test_an_empty_folder_has_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"train\.de \(or .*there is nothing"):
        build(tmp_path).pairs("train")


def test_no_folder_is_an_error_that_says_what_to_put_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.dir is missing: .*train\.de, train\.en, val\.\*"):
        build(None)
    with pytest.raises(ValueError, match=r"no such folder; it should hold train\.de"):
        build(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="no such folder"):
        build(tmp_path / "file")
