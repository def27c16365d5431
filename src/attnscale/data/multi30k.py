"""Multi30k: a local copy in any of its usual layouts, or a download of the raw files.

Elliott et al. 2016; the files are those of the repository multi30k/dataset, folder ``data/task1``.
"""

import hashlib
import logging
import os
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any

from attnscale.checks import check_choice
from attnscale.data.corpus import find_file, read_pairs
from attnscale.data.translation import TranslationData

log = logging.getLogger(__name__)

FORMS = ("auto", "raw", "tok")
TESTS = ("test_2016_flickr", "test_2017_flickr", "test_2018_flickr", "test_2017_mscoco")
LAYOUTS = {
    "raw": ("data/task1/raw", "raw", "."),
    "tok": ("data/task1/tok", "tok"),
}
SUFFIX = {"raw": "", "tok": ".lc.norm.tok"}
TIMEOUT_SECONDS = 20
CHUNK = 2**16

SHA256 = {
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2016_flickr.fr.gz": "6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90",
    "test_2017_flickr.de.gz": "a2c89666db00c495cd8513b9d708d5a3acc205d7de312ef2bf5fb7ebc1540aee",
    "test_2017_flickr.en.gz": "76a444ee25172e72695cddb13ae4a3bda59430617be88e0bb46b60504f054074",
    "test_2017_flickr.fr.gz": "3ba671ceb2299f3304ffafefea7a833d08632fbaf0ba18546f8a2ec2391af496",
    "test_2017_mscoco.de.gz": "799e4854c25d601cb6cb6be29eabe5667734c61ace2f495e03e429031a0bc338",
    "test_2017_mscoco.en.gz": "aab300bfb4427697987e02cd0aacd44bfe8aa50456231b6474c08038bbed2b58",
    "test_2017_mscoco.fr.gz": "754f3072ba9f124569ba5258b32730fc1d214bbf8e0c6dfb2b74401676220db0",
    "test_2018_flickr.de.gz": "ddd0130c7d97482dc5197a02141dae8dd79f20f03586c480d675c09a32daf608",
    "test_2018_flickr.en.gz": "ef4f4844037d4c5dea75c9a8ed5fd78905967a26f67c255e230cc9780032654d",
    "test_2018_flickr.fr.gz": "fb2b83fcceb937a4f7e3e93c1c51c22aba92f1e342391e6b5ba392b16a920501",
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "train.fr.gz": "622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "val.fr.gz": "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9",
}
"""Checksums of the raw files that are downloaded."""


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def download(address: str, path: Path, digest: str) -> None:
    """Download one file, whole or not at all; a broken download goes on where it stopped.

    Args:
        address: Where from.
        path: Where to; the file appears here only when its checksum is right.
        digest: SHA-256 of the whole file.

    Raises:
        ValueError: If the checksum is wrong. The partial file is removed then.
        OSError: If the connection fails. The partial file stays, to go on from.
    """
    if path.is_file() and _digest(path) == digest:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    size = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(address, headers={"Range": f"bytes={size}-"} if size else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            # A server that ignores the range sends the whole file again.
            mode = "ab" if size and answer.status == 206 else "wb"
            with part.open(mode) as file:
                while chunk := answer.read(CHUNK):
                    file.write(chunk)
                if answer.length:
                    raise ConnectionError(f"the connection ended {answer.length} bytes early")
    except urllib.error.HTTPError as error:
        if error.code != 416:  # "range not satisfiable": everything is there already
            raise
    if _digest(part) != digest:
        part.unlink()
        raise ValueError(f"{address}: the checksum is wrong; nothing was kept, try again")
    part.replace(path)


class Multi30k(TranslationData):
    """Multi30k in any direction between languages that there are files of."""

    def __init__(
        self,
        *,
        dir: str | None,
        form: str,
        address: str | None,
        cache: str,
        **rest: Any,
    ) -> None:
        """Take the place of the files, and what every corpus takes.

        Args:
            dir: A clone of multi30k/dataset, or a folder with ``train.de`` and so on; plain or
                gzipped.
            form: "raw", "tok" (lower-cased, tokenised) or "auto" (raw where it is there).
            address: Where the raw files can be downloaded from if ``dir`` is null; None for
                never.
            cache: Folder for downloaded files.
            rest: See :class:`TranslationData`.

        Raises:
            ValueError: If a choice is not allowed.
        """
        super().__init__(**rest)
        check_choice("data.form", form, FORMS)
        self.folder = None if dir is None else Path(dir)
        self.form, self.address, self.cache = form, address, Path(cache)

    def test_split(self) -> str:
        """Return the named test set, or that of 2016."""
        return self.test or TESTS[0]

    def _names(self, split: str, form: str) -> tuple[str, ...]:
        if split == TESTS[0] and form == "raw":
            return split, "test2016", "test"
        return (split,)

    def _local(self, split: str, folder: Path) -> tuple[Path, Path] | None:
        for form in ("raw", "tok") if self.form == "auto" else (self.form,):
            for layout in LAYOUTS[form]:
                for name in self._names(split, form):
                    paths = [
                        find_file(folder / layout, f"{name}{SUFFIX[form]}.{language}")
                        for language in (self.source, self.target)
                    ]
                    if paths[0] is not None and paths[1] is not None:
                        return paths[0], paths[1]
        return None

    def _missing(self, split: str, reason: str) -> ValueError:
        form = "tok" if self.form == "tok" else "raw"
        names = [f"{split}{SUFFIX[form]}.{language}" for language in (self.source, self.target)]
        return ValueError(
            f"data.dir={self.folder}: Multi30k's {' and '.join(names)} {reason}. Clone "
            "multi30k/dataset and give data.dir=PATH, or put these files (plain or .gz) in a folder"
        )

    def _downloaded(self, split: str) -> tuple[Path, Path]:
        names = [f"{split}.{language}.gz" for language in (self.source, self.target)]
        paths = [self.cache / name for name in names]
        if self.address is None or not all(name in SHA256 for name in names):
            if all(path.is_file() for path in paths):
                return paths[0], paths[1]
            reason = "are none of those that can be downloaded"
            if self.address is None:
                reason = "data.address names no place to get them"
            raise self._missing(split, f"are not here, and {reason}")
        for name, path in zip(names, paths, strict=True):
            try:
                download(f"{self.address.rstrip('/')}/{name}", path, SHA256[name])
            except (OSError, HTTPException, ValueError) as error:
                raise self._missing(split, f"could not be downloaded ({error})") from error
            log.info("data: %s is in %s", name, os.path.relpath(path))
        return paths[0], paths[1]

    def pairs(self, split: str) -> tuple[list[str], list[str]]:
        """Read a split."""
        if self.folder is None:
            return read_pairs(*self._downloaded(split))
        paths = self._local(split, self.folder)
        if paths is None:
            raise self._missing(split, "are missing")
        return read_pairs(*paths)
