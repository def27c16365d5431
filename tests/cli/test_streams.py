"""The screen ends no program: closed, without a reader, full, or of few characters."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from attnscale.cli.job import reason, writing

TALKS = """
import logging, sys
from attnscale.cli.streams import steady_streams

steady_streams()
handlers = [logging.StreamHandler(sys.stdout), logging.FileHandler("/dev/full")]
logging.basicConfig(handlers=handlers, format="%(message)s")
for _ in range(3):
    logging.warning("√d_k")
    print("√" * 10_000, flush=True)
print("at the end", file=sys.stderr)
"""


def talk(redirection: str, **variables: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        ["bash", "-c", f'set -o pipefail; "$0" -c "$1" {redirection}', sys.executable, TALKS],
        env={**os.environ, **variables},
        capture_output=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("redirection", "errors"),
    [
        ("| true", b"at the end\n"),
        (">&-", b"at the end\n"),
        ("> /dev/full", b"Standard output: No space left on device\nat the end\n"),
        ("2>&-", b""),
        ("2> /dev/full", b""),
        (">&- 2>&- <&-", b""),
    ],
)
def test_a_program_goes_on_without_its_screen(redirection: str, errors: bytes) -> None:
    done = talk(redirection)
    assert (done.returncode, done.stderr) == (0, errors)


@pytest.mark.parametrize(
    ("encoding", "shown"), [("ascii", b"?d_k"), ("latin-1", b"?d_k"), ("utf-8", "√d_k".encode())]
)
def test_a_character_that_the_screen_does_not_know_is_replaced(encoding: str, shown: bytes) -> None:
    done = talk("", PYTHONIOENCODING=encoding)
    assert done.stdout.splitlines()[0] == shown
    assert (done.returncode, done.stderr) == (0, b"at the end\n")


def test_answers_that_nobody_reads_end_as_a_closed_pipe_does() -> None:
    with pytest.raises(SystemExit) as end, writing("output", "-"):
        raise BrokenPipeError
    assert end.value.code == 128 + signal.SIGPIPE


def test_a_key_whose_file_cannot_be_written_is_named() -> None:
    with (
        pytest.raises(ValueError, match=r"^output=/dev/full: cannot be written: No space left"),
        writing("output", "/dev/full"),
    ):
        Path("/dev/full").write_text("x")


def test_a_full_disk_is_one_line_with_the_keys_that_write_elsewhere() -> None:
    text = reason(OSError(28, "No space left on device", "/r/best.ckpt"))
    assert text.startswith("/r/best.ckpt: No space left on device; ")
    assert {"hydra.run.dir=PATH", "hydra.sweep.dir=PATH"} <= set(text.replace(",", "").split())
