"""Files that are whole or not there: a full disk, or an end in between, leaves what was before."""

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""No space left on the file system, in a person's quota, or for a file of that size."""


def write_bytes(path: str | os.PathLike[str], content: bytes | memoryview) -> None:
    """Write a file, whole or not at all; its folder is made if it is not there.

    The content goes into a hidden file beside it, to the disk, and only then under its name: a
    rename is atomic within one file system. What is no regular file, such as a pipe or a device,
    is written directly.

    Raises:
        OSError: If it cannot be written, with the file's path. What was there before stays.
    """
    target = Path(path).resolve()
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        if Path(path).exists() and not Path(path).is_file():
            Path(path).write_bytes(content)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, part)
        part.replace(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):
            part.unlink()


def remove_parts(*folders: Path) -> None:
    """Remove what a process that was killed while it wrote has left in folders that are ours."""
    for folder in folders:
        for part in folder.glob(".*.part"):
            with suppress(OSError):
                part.unlink()


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text as UTF-8, as :func:`write_bytes` does.

    Raises:
        OSError: If it cannot be written.
    """
    write_bytes(path, text.encode())
