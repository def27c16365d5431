"""Machines that lack what is elsewhere taken for granted."""

import os
from pathlib import Path
from typing import Any

import pytest

LACKING = """
import builtins, os, signal

def without(name, globals=None, *rest, **more):
    # portalocker asks for the system's name, and has another way on Windows.
    importer = (globals or {}).get("__name__", "").partition(".")[0]
    if name in ("fcntl", "resource") and importer != "portalocker":
        raise ImportError(name)
    return whole(name, globals, *rest, **more)

whole, builtins.__import__ = builtins.__import__, without
for module, names in (
    (os, ("fork", "killpg", "sched_getaffinity", "setsid", "sysconf")),
    (signal, ("SIGHUP", "SIGUSR1")),
):
    for name in names:
        delattr(module, name)
"""
"""A ``sitecustomize`` that hides what only Unix has."""

TINY = (
    *("model=transformer", "model.d_model=16", "model.d_k=4", "model.d_v=4", "model.n_layers=1"),
    *("data.n_train=64", "data.n_val=8", "data.n_test=8"),
    *("trainer.max_epochs=1", "trainer.limit_train_batches=2", "threads=1"),
)


@pytest.mark.slow
def test_a_system_without_what_only_unix_has_nor_its_signs(shell: Any, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(LACKING)
    paths = os.pathsep.join((str(tmp_path / "site"), str(shell.root / "src")))
    lacking = {
        "PYTHONPATH": paths,
        "PYTHONIOENCODING": "ascii",
        "PATH": str(tmp_path),  # no git
        "TMPDIR": "/proc/nowhere",
        "HOME": "/proc/nowhere",
    }
    trained = shell(
        "-m", "attention.scale=sqrt,none", *TINY, whole=True, fresh=True, extra=lacking, timeout=600
    )
    assert trained.returncode == 0, trained.stdout + trained.stderr
    assert "?" in trained.stdout  # the sign of an interval
    assert "Report: " in trained.stdout
    assert "Matplotlib" not in trained.stderr
    assert [run.info.status for run in shell.jobs()] == ["FINISHED"] * 2
    reported = shell(app="src.report", fresh=True, extra=lacking, timeout=600)
    assert reported.returncode == 0, reported.stderr
    (sentences,) = tmp_path.glob("multirun/*/0/checkpoints/best.ckpt")
    source = tmp_path / "source.txt"
    source.write_text("ein mann .\neine frau .\n")
    translated = shell(
        *(f"checkpoint={sentences}", f"input={source}"),
        app="src.translate",
        fresh=True,
        extra=lacking,
        timeout=600,
    )
    assert translated.returncode == 0, translated.stderr
    assert len(translated.stdout.splitlines()) == 2


@pytest.mark.parametrize(
    "arguments", [["hydra.run.dir=/proc/x"], ["-m", "hydra.sweep.dir=/proc/x"]]
)
def test_a_folder_that_cannot_be_written_is_told_with_the_keys_that_move_it(
    shell: Any, arguments: list[str]
) -> None:
    refused = shell(*arguments, "model.d_k=4", where=False)
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    for words in (
        "/proc/x: cannot be written",
        "hydra.run.dir=",
        "hydra.sweep.dir=",
        "tracking.uri=",
    ):
        assert words in line
