"""Resuming: a checkpoint's own settings, with the few changes that resuming allows."""

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path

from attnscale.config.build import project_root
from attnscale.config.schema import TrainConfig
from attnscale.config.section import plain, typed
from attnscale.config.targets import NO_ALLOWANCE, Targets
from attnscale.experiment.identity import fingerprint, identity
from attnscale.experiment.result import RUN_FILE
from attnscale.sweep.going_on import check_code
from attnscale.sweep.overrides import parse
from attnscale.tracking.provenance import code_state

FREE = (
    "trainer",
    "tracking",
    "callbacks",
    "tags",
    "threads",
    "allocator",
    "folder",
    "checkpoint",
    "resume",
    "trust",
    "hydra",
    "allow",
)
"""Sections that a resumed run may set anew; the others belong to what was trained."""

PLACE = ("accelerator", "devices", "strategy", "num_nodes")
"""What ``trainer=NAME`` changes of a resumed run."""

MOVABLE = ("data.dir", "data.cache", "data.address")
"""Where the data are; they may have moved."""


def _get(section: object, keys: Sequence[str]) -> object:
    for key in keys:
        section = section.get(key) if isinstance(section, Mapping) else getattr(section, key, None)
    return section


def _set(config: TrainConfig, keys: Sequence[str], value: object) -> None:
    section = _get(config, keys[:-1])
    if isinstance(section, dict):
        section[keys[-1]] = value
    else:
        setattr(section, keys[-1], value)


def resumed_config(
    composed: TrainConfig, overrides: Iterable[str], targets: Targets = NO_ALLOWANCE
) -> TrainConfig:
    """Return the checkpoint's configuration, where only ``overrides`` may change it.

    Raises:
        ValueError: If an override contradicts what was trained, naming both values, or if the file
            is no checkpoint of this project.
    """
    from attnscale.experiment.checkpoints import load_checkpoint

    assert composed.checkpoint is not None
    stored = load_checkpoint(composed.checkpoint, targets).config
    return changed_config(composed, stored, overrides)


def run_config(
    composed: TrainConfig, overrides: Sequence[str], targets: Targets = NO_ALLOWANCE
) -> TrainConfig:
    """Return the configuration of the run in the folder, where only ``overrides`` may change it.

    Raises:
        ValueError: If an override contradicts it, or if the code or the data have changed since and
            that is not trusted.
    """
    file = Path(composed.folder) / RUN_FILE
    if not file.is_file():
        # It was broken off before there was a run.
        return composed
    entries = json.loads(file.read_text(encoding="utf-8"))
    resume = str(composed.resume)
    check_code(entries["code"], code_state(project_root()), trust=composed.trust, resume=resume)
    targets.check(entries["config"])
    stored = typed(TrainConfig, entries["config"])
    config = changed_config(composed, stored, overrides)
    if identity(plain(config)) != identity(entries["config"]):
        raise ValueError(
            f"resume={resume}: {' '.join(overrides)} make it another run; leave out what is no "
            "place, or train on with checkpoint=PATH as a new one"
        )
    if fingerprint(config.data) != entries.get("data", "") and not composed.trust:
        raise ValueError(
            f"resume={resume}: the data have changed since it ran; go on all the same with "
            "trust=true"
        )
    return replace(config, checkpoint=stored.checkpoint, resume=resume, threads=stored.threads)


def changed_config(
    composed: TrainConfig, stored: TrainConfig, overrides: Iterable[str]
) -> TrainConfig:
    """Return the configuration of what was trained, where only ``overrides`` may change it.

    Raises:
        ValueError: If an override contradicts it, naming both values.
    """
    # What belongs to the new run and not to the one that wrote the checkpoint.
    config = replace(
        copy.deepcopy(stored),
        folder=composed.folder,
        checkpoint=composed.checkpoint,
        tags=composed.tags,
        tracking=composed.tracking,
        threads=composed.threads,
        allocator=composed.allocator,
    )
    for override in parse(overrides):
        key = override.key_or_group
        keys = key.split(".")
        if key in MOVABLE:
            _set(config, keys, _get(composed, keys))
        elif keys[0] not in FREE:
            old, new = _get(stored, keys), _get(composed, keys)
            if old != new:
                raise ValueError(
                    f"{override.input_line}: it was trained with {key}={_brief(old)}; "
                    "leave it out, or start a new run"
                )
        elif key == "trainer":
            # A whole group: where to train, not how long or how.
            place = {name: getattr(composed.trainer, name) for name in PLACE}
            config.trainer = replace(config.trainer, **place)
        elif hasattr(composed, keys[0]):
            _set(config, keys, _get(composed, keys))
    config.trainer.default_root_dir = composed.folder
    return config


def _brief(value: object) -> str:
    if isinstance(value, Mapping):
        return str(value.get("_target_", "other settings"))
    return "other settings" if is_dataclass(value) else str(value)
