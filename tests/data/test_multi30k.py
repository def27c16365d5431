import gzip
import hashlib
import http.server
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attnscale.data import multi30k
from attnscale.data.multi30k import Multi30k, download

TEXTS = {"en": "Two dogs", "de": "Zwei Hunde", "fr": "Deux chiens", "cs": "Dva psi"}


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = f"{text}\n".encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def lay(folder: Path, names: list[str], mark: str, languages: str = "de en fr") -> None:
    """Write files whose text says which language, split and kind they are."""
    for name in names:
        for language in languages.split():
            put(folder / name.replace("*", language), f"{TEXTS[language]} {mark}")


def build(dir: Path | None, **changed: Any) -> Multi30k:
    parts: dict[str, Any] = {
        "dir": None if dir is None else str(dir),
        "form": "auto",
        "address": None,
        "cache": "/nonexistent",
        "source": "de",
        "target": "en",
        "test": None,
        "tokenizer": "split",
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
    return Multi30k(**parts)


# --- local files ---

RAW = ["data/task1/raw/*", "raw/*", "*"]
TOK = ["data/task1/tok/*", "tok/*"]


@pytest.mark.parametrize("place", RAW)
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("form", ["raw", "auto"])
def test_raw_files_are_found(tmp_path: Path, place: str, suffix: str, form: str) -> None:
    names = [place.replace("*", f"{split}.*{suffix}") for split in ("train", "val")]
    lay(tmp_path, names, "raw")
    data = build(tmp_path, form=form)
    assert data.pairs("train") == (["Zwei Hunde raw"], ["Two dogs raw"])
    data.setup("fit")
    assert set(data.splits) == {"train", "val"}


@pytest.mark.parametrize("place", TOK)
@pytest.mark.parametrize("form", ["tok", "auto"])
def test_tokenised_files_are_found(tmp_path: Path, place: str, form: str) -> None:
    lay(tmp_path, [place.replace("*", "train.lc.norm.tok.*")], "tok")
    assert build(tmp_path, form=form).pairs("train") == (["Zwei Hunde tok"], ["Two dogs tok"])


@pytest.mark.parametrize(("form", "mark"), [("auto", "raw"), ("raw", "raw"), ("tok", "tok")])
def test_the_form_chooses(tmp_path: Path, form: str, mark: str) -> None:
    lay(tmp_path, ["data/task1/raw/train.*.gz"], "raw")
    lay(tmp_path, ["data/task1/tok/train.lc.norm.tok.*"], "tok")
    assert build(tmp_path, form=form).pairs("train")[0] == [f"Zwei Hunde {mark}"]


@pytest.mark.parametrize(("form", "there"), [("tok", "raw/train.*"), ("raw", "tok/train.*")])
def test_another_form_is_not_taken(tmp_path: Path, form: str, there: str) -> None:
    lay(tmp_path, [there.replace("train.", "train.lc.norm.tok.") if form == "raw" else there], "x")
    with pytest.raises(ValueError, match="are missing"):
        build(tmp_path, form=form).pairs("train")


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("en", "de"),
        ("de", "en"),
        ("en", "fr"),
        ("fr", "en"),
        ("de", "fr"),
        ("fr", "de"),
        ("en", "cs"),
    ],
)
def test_any_direction(tmp_path: Path, source: str, target: str) -> None:
    lay(tmp_path, ["raw/train.*"], "raw", "de en fr cs")
    made = build(tmp_path, source=source, target=target).pairs("train")
    assert made == ([f"{TEXTS[source]} raw"], [f"{TEXTS[target]} raw"])


@pytest.mark.parametrize("name", ["test_2016_flickr", "test2016", "test"])
def test_the_test_set_of_2016_goes_by_several_names(tmp_path: Path, name: str) -> None:
    lay(tmp_path, ["train.*"], "raw")
    lay(tmp_path, [f"{name}.*"], "2016")
    data = build(tmp_path)
    assert data.test_split() == "test_2016_flickr"
    data.setup("test")
    assert data.splits["test_2016_flickr"].source_text == ["Zwei Hunde 2016"]


def test_another_test_set_can_be_named(tmp_path: Path) -> None:
    lay(tmp_path, ["raw/test_2016_flickr.*"], "2016")
    lay(tmp_path, ["raw/test_2017_mscoco.*"], "coco")
    data = build(tmp_path, test="test_2017_mscoco")
    assert data.pairs(data.test_split())[0] == ["Zwei Hunde coco"]
    with pytest.raises(ValueError, match=r"test_2018_flickr\.de"):
        build(tmp_path, test="test_2018_flickr").pairs("test_2018_flickr")


def test_files_of_both_languages_come_from_one_place(tmp_path: Path) -> None:
    lay(tmp_path, ["data/task1/raw/train.*"], "half", "de")
    lay(tmp_path, ["raw/train.*.gz"], "whole")
    assert build(tmp_path).pairs("train") == (["Zwei Hunde whole"], ["Two dogs whole"])


def test_a_missing_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    lay(tmp_path, ["train.*"], "raw", "de")
    (tmp_path / "._train.en").write_bytes(b"\x00")
    with pytest.raises(ValueError, match="are missing") as caught:
        build(tmp_path).pairs("train")
    for part in ("train.de and train.en", f"data.dir={tmp_path}", "Clone multi30k/dataset"):
        assert part in str(caught.value)
    with pytest.raises(ValueError, match=r"train\.lc\.norm\.tok\.de and train\.lc\.norm\.tok\.en"):
        build(tmp_path, form="tok").pairs("train")
    with pytest.raises(ValueError, match="are missing"):
        build(tmp_path / "nowhere").pairs("val")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"form": "bpe"}, r"data\.form=bpe: allowed are auto, raw, tok"),
        ({"source": "en"}, r"data\.source=en: is also data\.target"),
    ],
)
def test_what_is_not_allowed_is_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(None, **changed)


# --- downloads ---


def whole_file(language: str) -> bytes:
    lines = "".join(f"{TEXTS[language]} {i * i}\n" for i in range(3000))
    return gzip.compress(lines.encode(), mtime=0)


FILES = {f"/raw/train.{language}.gz": whole_file(language) for language in ("de", "en")}


class Server(http.server.ThreadingHTTPServer):
    """Serves :data:`FILES` and notes what it was asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.ranges = True
        self.files = dict(FILES)
        self.asked: list[tuple[str, str | None]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/raw"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.asked.append((self.path, asked))
        data = self.server.files.get(self.path)
        if data is None:
            self.send_error(404)
            return
        status = 200
        if asked is not None and self.server.ranges:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(data):
                self.send_error(416)
                return
            status, data = 206, data[start:]
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name, value in (("no_proxy", "127.0.0.1"), ("NO_PROXY", "127.0.0.1")):
        monkeypatch.setenv(name, value)
    digests = {Path(p).name: hashlib.sha256(data).hexdigest() for p, data in FILES.items()}
    monkeypatch.setattr(multi30k, "SHA256", digests)
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize("end", ["", "/"])
def test_files_are_downloaded_once(server: Server, tmp_path: Path, end: str) -> None:
    cache = tmp_path / "cache" / "multi30k"
    data = build(None, address=f"{server.address}{end}", cache=str(cache))
    first, second = data.pairs("train")
    assert len(first) == len(second) == 3000
    assert (first[7], second[7]) == ("Zwei Hunde 49", "Two dogs 49")
    assert names(cache) == ["train.de.gz", "train.en.gz"]
    assert server.asked == [("/raw/train.de.gz", None), ("/raw/train.en.gz", None)]
    assert data.pairs("train") == (first, second)
    assert len(server.asked) == 2


def test_a_file_that_changed_on_disk_is_fetched_again(server: Server, tmp_path: Path) -> None:
    data = build(None, address=server.address, cache=str(tmp_path))
    put(tmp_path / "train.de.gz", "something else")
    assert len(data.pairs("train")[0]) == 3000
    assert len(server.asked) == 2


def test_a_wrong_file_is_not_kept(server: Server, tmp_path: Path) -> None:
    server.files["/raw/train.de.gz"] = FILES["/raw/train.en.gz"]
    data = build(None, address=server.address, cache=str(tmp_path))
    with pytest.raises(ValueError, match="could not be downloaded") as caught:
        data.pairs("train")
    assert "the checksum is wrong" in str(caught.value)
    assert names(tmp_path) == []
    server.files = dict(FILES)
    assert len(data.pairs("train")[0]) == 3000


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_download_goes_on(server: Server, tmp_path: Path, ranges: bool) -> None:
    server.ranges = ranges
    whole = FILES["/raw/train.de.gz"]
    part = tmp_path / "train.de.gz.part"
    part.write_bytes(whole[:1001])
    path = tmp_path / "train.de.gz"
    download(f"{server.address}/train.de.gz", path, hashlib.sha256(whole).hexdigest())
    assert server.asked == [("/raw/train.de.gz", "bytes=1001-")]
    assert path.read_bytes() == whole
    assert not part.exists()


def test_a_download_that_only_lacks_its_name_is_kept(server: Server, tmp_path: Path) -> None:
    whole = FILES["/raw/train.de.gz"]
    (tmp_path / "train.de.gz.part").write_bytes(whole)
    path = tmp_path / "train.de.gz"
    download(f"{server.address}/train.de.gz", path, hashlib.sha256(whole).hexdigest())
    assert path.read_bytes() == whole
    assert names(tmp_path) == ["train.de.gz"]


def test_a_wrong_beginning_is_not_kept(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "train.de.gz"
    (tmp_path / "train.de.gz.part").write_bytes(b"x" * 500)
    whole = FILES["/raw/train.de.gz"]
    digest = hashlib.sha256(whole).hexdigest()
    with pytest.raises(ValueError, match="checksum is wrong"):
        download(f"{server.address}/train.de.gz", path, digest)
    assert names(tmp_path) == []
    download(f"{server.address}/train.de.gz", path, digest)
    assert path.read_bytes() == whole


def test_a_connection_that_ends_early_leaves_what_came(server: Server, tmp_path: Path) -> None:
    whole = FILES["/raw/train.de.gz"]

    class Early(Handler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(whole)))
            self.end_headers()
            self.wfile.write(whole[:700])

    server.RequestHandlerClass = Early
    data = build(None, address=server.address, cache=str(tmp_path))
    with pytest.raises(ValueError, match="could not be downloaded"):
        data.pairs("train")
    assert not (tmp_path / "train.de.gz").exists()
    server.RequestHandlerClass = Handler
    assert len(data.pairs("train")[0]) == 3000
    assert server.asked[0] == ("/raw/train.de.gz", "bytes=700-")


def test_a_missing_address_is_named(server: Server, tmp_path: Path) -> None:
    server.files = {}
    data = build(None, address=server.address, cache=str(tmp_path))
    with pytest.raises(ValueError, match=r"train\.de and train\.en could not be .*404"):
        data.pairs("train")
    assert names(tmp_path) == []


def test_a_refused_connection_is_one_clear_error(server: Server, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    half = FILES["/raw/train.de.gz"][:300]
    (tmp_path / "train.de.gz.part").write_bytes(half)
    data = build(None, address=f"http://127.0.0.1:{port}", cache=str(tmp_path))
    start = time.monotonic()
    with pytest.raises(ValueError, match="could not be downloaded") as caught:
        data.pairs("train")
    assert time.monotonic() - start < 5
    assert "Clone multi30k/dataset" in str(caught.value)
    # What came before stays to go on from, and is never data.
    assert names(tmp_path) == ["train.de.gz.part"]
    assert (tmp_path / "train.de.gz.part").read_bytes() == half
    with pytest.raises(ValueError, match="are missing"):
        build(tmp_path).pairs("train")
    with pytest.raises(ValueError, match=r"data\.address names no place"):
        build(None, cache=str(tmp_path)).pairs("train")


def test_without_an_address_the_cache_is_used(tmp_path: Path) -> None:
    data = build(None, cache=str(tmp_path))
    with pytest.raises(ValueError, match=r"data\.address names no place to get them") as caught:
        data.pairs("train")
    assert "Clone multi30k/dataset" in str(caught.value)
    lay(tmp_path, ["train.*.gz"], "cached")
    assert data.pairs("train") == (["Zwei Hunde cached"], ["Two dogs cached"])


def test_what_has_no_checksum_is_not_downloaded(server: Server, tmp_path: Path) -> None:
    data = build(None, address=server.address, cache=str(tmp_path))
    with pytest.raises(ValueError, match=r"test_2018_flickr\.de"):
        data.pairs("test_2018_flickr")
    assert server.asked == []


def test_a_language_that_cannot_be_downloaded_is_told(server: Server, tmp_path: Path) -> None:
    data = build(None, address=server.address, cache=str(tmp_path), target="cs")
    with pytest.raises(ValueError, match=r"train\.cs are not here, and are none of those that can"):
        data.pairs("train")


def test_there_is_a_checksum_of_every_file_of_the_default_set() -> None:
    wanted = {
        f"{split}.{language}.gz"
        for split in ("train", "val", "test_2016_flickr")
        for language in ("en", "de", "fr")
    }
    assert wanted <= set(multi30k.SHA256)
    assert all(len(bytes.fromhex(digest)) == 32 for digest in multi30k.SHA256.values())
    assert len(set(multi30k.SHA256.values())) == len(multi30k.SHA256)
