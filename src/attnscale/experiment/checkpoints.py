"""Reading checkpoints: with torch's safe default, and what they carry beside the weights."""

from pathlib import Path
from typing import Any

import torch


def load_checkpoint(path: str) -> dict[str, Any]:
    """Load a checkpoint with torch's safe default.

    Raises:
        ValueError: If it is missing, unreadable, or not one of this project.
    """
    if not Path(path).is_file():
        raise ValueError(f"checkpoint={path}: no such file")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        _ = state["attnscale"]["config"]
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"checkpoint={path}: not a checkpoint of this project: {first}") from error
    return dict(state)
