"""A sweep that goes on where it was broken off: what must hold for that, and how it is offered."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from attnscale.config.build import launch_id
from attnscale.sweep.state import SWEEP_FILE, Launch
from attnscale.tracking.record import FINISHED

LOCK_FILE = ".lock"
RESUMING = "hydra_plugins.attnscale.LocalLauncher"
"""The launcher that knows which jobs are left; others would start all of them."""

N_LOOKED_AT = 20
"""Newest sweeps among which an unfinished one is looked for."""


def take_lock(folder: Path, key: str, *, seconds: float = 0.0) -> FileLock:
    """Keep another process out of a folder for as long as this one lives, or until it is released.

    Args:
        folder: The folder; it is made if it is not there.
        key: Key and value that named it, for the message.
        seconds: How long one that is in it may take to leave.

    Raises:
        ValueError: If one stays in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK_FILE)
    try:
        lock.acquire(timeout=seconds)
    except Timeout:
        raise ValueError(f"{key}: {folder} is in use by a process that still runs") from None
    return lock


def in_use(folder: Path) -> bool:
    """Whether a process that lives holds a folder, on this host or another that shares it."""
    try:
        take_lock(folder, "").release()
    except ValueError:
        return True
    return False


def earlier(folder: Path, resume: str | None, launcher: str) -> Launch | None:
    """Return the launch that is to go on, or None for a new sweep.

    Raises:
        ValueError: If the folder holds a sweep that is not to go on, or if the launcher cannot.
    """
    there = (folder / SWEEP_FILE).is_file()
    if resume is None:
        if there:
            raise ValueError(
                f"hydra.sweep.dir={folder}: holds a sweep; choose another folder, or go on with "
                f"it by resume={folder}"
            )
        return None
    if not there:
        raise ValueError(f"resume={resume}: {folder} holds no sweep")
    if launcher != RESUMING:
        raise ValueError(
            f"resume={resume}: needs hydra/launcher=local, which knows jobs of others too"
        )
    return Launch.load(folder)


def sweep_name(folder: Path) -> str:
    """Return a sweep's name: that of its folder, with a mark of its own if a person named it."""
    mark = launch_id().rpartition("_")[2]
    return folder.name if folder.name[:4].isdigit() else f"{folder.name}_{mark}"


def check_code(old: Mapping[str, str], new: Mapping[str, str], *, trust: bool, resume: str) -> None:
    """Check that jobs that are taken and jobs that are run come from the same code.

    Raises:
        ValueError: If a commit is another one, or a checkout had changes that none names.
    """
    problem = ""
    if old.get("commit") != new.get("commit"):
        problem = f"the code was at commit {old.get('commit')}, and is at {new.get('commit')}"
    elif "true" in (old.get("dirty"), new.get("dirty")):
        problem = "the checkout has or had changes that are not committed"
    if problem and not trust:
        raise ValueError(f"resume={resume}: {problem}; go on all the same with trust=true")


def _of_jobs(overrides: Sequence[str]) -> list[str]:
    """Return overrides without those that only say that a sweep goes on."""
    return [word for word in overrides if not word.startswith(("resume=", "trust="))]


def command(launch: Launch, folder: Path) -> str:
    """Return the shell command that goes on with a sweep."""
    words = [*_of_jobs(launch.overrides), *launch.settings]
    name = folder.name if folder.parent.name == "multirun" else str(folder)
    return shlex.join(["python", "-m", "src.train", "-m", *words, f"resume={name}"])


def tell_unfinished(folder: Path, overrides: Sequence[str]) -> None:
    """Say if an earlier sweep of the same jobs was broken off."""
    files = sorted(folder.parent.glob(f"*/{SWEEP_FILE}"), key=lambda file: -file.stat().st_mtime)
    for file in files[:N_LOOKED_AT]:
        try:
            launch = Launch.load(file.parent)
        except (OSError, TypeError, ValueError):
            # Of another version, or cut short: nothing that this sweep should fail for.
            continue
        same = sorted(_of_jobs(launch.overrides)) == sorted(overrides) and file.parent != folder
        if same and launch.status != FINISHED and not in_use(file.parent):
            print(f"An unfinished sweep of these jobs can go on: {command(launch, file.parent)}")  # noqa: T201
            return
