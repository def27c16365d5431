"""Reading checkpoints: with torch's safe default, and what they carry beside the weights."""

from pathlib import Path
from typing import Any

import torch

from attnscale.config.targets import NO_ALLOWANCE, Targets
from attnscale.renamed import update_checkpoint


def load_checkpoint(path: str, targets: Targets = NO_ALLOWANCE) -> dict[str, Any]:
    """Load a checkpoint with torch's safe default, and check what its configuration names.

    Args:
        path: The file.
        targets: Which classes its configuration may name.

    Raises:
        ValueError: If it is missing, unreadable, not one of this project, or names a target that is
            not allowed.
    """
    if not Path(path).is_file():
        raise ValueError(f"checkpoint={path}: no such file")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        update_checkpoint(state)
        config = dict(state["attnscale"]["config"])
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"checkpoint={path}: not a checkpoint of this project: {first}") from error
    try:
        targets.check(config)
    except ValueError as error:
        raise ValueError(f"checkpoint={path}: {error}") from error
    return dict(state)
