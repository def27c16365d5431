"""Resuming: a checkpoint's own settings, with the few changes that resuming allows."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from attnscale.config.targets import NO_ALLOWANCE, Targets
from attnscale.sweep.overrides import parse

FREE = (
    "trainer",
    "tracking",
    "callbacks",
    "tags",
    "threads",
    "allocator",
    "folder",
    "checkpoint",
    "hydra",
    "allow",
)
"""Sections that a resumed run may set anew; the others belong to what was trained."""


PLACE = ("accelerator", "devices", "strategy", "num_nodes")
"""What ``trainer=NAME`` changes of a resumed run."""

MOVABLE = ("data.dir", "data.cache", "data.address")
"""Where the data are; they may have moved."""


def stored_config(path: str, targets: Targets = NO_ALLOWANCE) -> dict[str, Any]:
    """Return the configuration that a checkpoint carries.

    Raises:
        ValueError: If the file is missing, unreadable, not a checkpoint of this project, or names a
            target that is not allowed.
    """
    from attnscale.experiment.checkpoints import load_checkpoint

    config = load_checkpoint(path, targets)["attnscale"]["config"]
    assert isinstance(config, dict)
    return config


def _get(config: Mapping[str, Any], keys: list[str]) -> Any:
    found: Any = config
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _set(config: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        config = config[key]
    config[keys[-1]] = value


def resumed_config(
    composed: Mapping[str, Any], overrides: Iterable[str], targets: Targets = NO_ALLOWANCE
) -> dict[str, Any]:
    """Return the checkpoint's configuration with what the command line changes.

    Args:
        composed: The configuration as composed, ``checkpoint`` set.
        overrides: The command line's overrides; only these may differ from the checkpoint.
        targets: Which classes the checkpoint's configuration may name.

    Raises:
        ValueError: If an override contradicts what was trained, naming both values.
    """
    stored = stored_config(composed["checkpoint"], targets)
    made = copy.deepcopy(stored)
    # What belongs to the new run and not to the one that wrote the checkpoint.
    made |= {
        key: composed[key]
        for key in ("folder", "checkpoint", "tags", "tracking", "threads", "allocator")
    }
    made["trainer"]["default_root_dir"] = composed["folder"]
    for override in parse(overrides):
        key = override.key_or_group
        keys = key.split(".")
        if key in MOVABLE:
            _set(made, keys, _get(composed, keys))
        elif keys[0] not in FREE:
            old, new = _get(stored, keys), _get(composed, keys)
            if old != new:
                raise ValueError(
                    f"{override.input_line}: the checkpoint was trained with {key}={_brief(old)}; "
                    "leave it out, or start a new run"
                )
        elif key == "trainer":
            # A whole group: where to train, not how long or how.
            made["trainer"] |= {name: composed["trainer"][name] for name in PLACE}
        elif keys[0] in composed:
            _set(made, keys, _get(composed, keys))
    made["trainer"]["default_root_dir"] = composed["folder"]
    return made


def _brief(value: Any) -> str:
    return (
        str(value.get("_target_", "other settings")) if isinstance(value, Mapping) else str(value)
    )
