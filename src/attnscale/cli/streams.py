"""A screen that ends no program: whoever reads it may go, and it may not know a character."""

import io
import logging
import os
import sys
from typing import TYPE_CHECKING

from attnscale.files import FULL

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _Steady(io.FileIO):
    """A process's stream that never fails: after the first error what is written is dropped."""

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            # For the libraries and processes that write to the same number, too.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            if error.errno in FULL and self.fileno() == 1:
                print(f"Standard output: {error.strerror}", file=sys.stderr)  # noqa: T201
            return memoryview(data).nbytes


def steady_streams() -> None:
    """Let the process's output go on where its reader is gone, the disk full, or it was closed.

    A character that the encoding does not have is written as ``?``. Streams that somebody else put
    in place of the process's own stay as they are.
    """
    logging.raiseExceptions = False
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__"):
            continue
        place = os.devnull if stream is None else stream.fileno()
        steady = io.TextIOWrapper(
            io.BufferedWriter(_Steady(place, "w", closefd=stream is None)),
            encoding=getattr(stream, "encoding", "utf-8"),
            errors="replace",
            line_buffering=name == "stderr" or getattr(stream, "line_buffering", False),
            write_through=getattr(stream, "write_through", False),
        )
        setattr(sys, name, steady)
