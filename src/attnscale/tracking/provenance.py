"""Where a run came from: commit, versions, machine."""

import os
import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import torch

PACKAGES = ("torch", "pytorch-lightning", "hydra-core", "mlflow", "torchmetrics", "numpy")


def _git(root: Path, *arguments: str) -> str | None:
    # GIT_OPTIONAL_LOCKS: looking must not take the index lock from a person who is committing.
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        process = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
            env=environment,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip()


def _command(root: Path) -> str:
    """Return the command as a person would give it again from the project's folder."""
    program = Path(sys.argv[0]).resolve()
    if program.parent == root / "src":
        return shlex.join(["python", "-m", f"src.{program.stem}", *sys.argv[1:]])
    return shlex.join(sys.argv)


def code_state(root: Path) -> dict[str, str]:
    """Return the commit of a checkout and whether it has changes, "unknown" where git is not."""
    commit, changes = _git(root, "rev-parse", "HEAD"), _git(root, "status", "--porcelain")
    return {
        "commit": commit or "unknown",
        "dirty": "unknown" if changes is None else str(bool(changes)).lower(),
    }


def provenance(root: Path, device: str) -> dict[str, str]:
    """Return commit, whether the checkout had changes, versions, device and machine as tags.

    Args:
        root: The project's folder.
        device: What the run trains on, such as "cpu" or "2 × NVIDIA H200".
    """
    from attnscale import __version__

    tags = {
        **{f"git.{key}": value for key, value in code_state(root).items()},
        "device": device,
        "host": platform.node(),
        "version.python": platform.python_version(),
        "version.attnscale": __version__,
        "torch.threads": str(torch.get_num_threads()),
        "command": _command(root)[:4000],
    }
    for package in PACKAGES:
        tags[f"version.{package}"] = metadata.version(package)
    return tags
