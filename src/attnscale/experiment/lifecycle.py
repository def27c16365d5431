"""A run from its configuration to its result, recorded whatever happens."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from attnscale.checks import check_writable
from attnscale.config.build import project_root
from attnscale.config.choice_schema import TrainerConfig
from attnscale.config.schema import TrainConfig
from attnscale.config.section import plain, typed
from attnscale.config.targets import Targets
from attnscale.experiment.checkpoints import newest_checkpoint
from attnscale.experiment.identity import fingerprint
from attnscale.experiment.processes import (
    RESULT_FILE,
    check_launch,
    launched_from_outside,
    meet,
    processes_wanted,
    rank,
    run_in_processes,
)
from attnscale.experiment.result import RUN_FILE, Result, default_name, write_json
from attnscale.experiment.surroundings import same_environment
from attnscale.experiment.train import train
from attnscale.tracking.address import public
from attnscale.tracking.heartbeat import heartbeat
from attnscale.tracking.provenance import code_state, provenance
from attnscale.tracking.record import Record
from attnscale.tracking.store import Store, find_store

ABOUT_RESUMING = ("resume", "trust")
"""Keys that say how a run goes on, and nothing of what it is."""

DESCRIBED_TAG = "git.commit"
"""A tag among the last that describe a run."""

ARTIFACTS = ("samples.txt", "signatures.json", "translations.jsonl")
"""Files that a task may leave in the run's folder, kept with the record."""


def _device(trainer: TrainerConfig) -> str:
    n = processes_wanted(trainer)
    gpu = trainer.accelerator in ("gpu", "cuda", "auto") and torch.cuda.is_available()
    name = torch.cuda.get_device_name() if gpu else "cpu"
    return name if n == 1 else f"{n} × {name}"


def _open(
    config: TrainConfig, store: Store, folder: Path, parent: str | None, tags: Mapping[str, str]
) -> tuple[Record, str]:
    """Return the run's record and readable name."""
    name = config.tracking.run_name or default_name(config)
    own = {f"note.{key}": value for key, value in config.tags.items()}
    own["folder"] = str(folder)
    if config.checkpoint is not None:
        own["resumed_from"] = config.checkpoint
    record = Record.start(
        store,
        experiment=config.tracking.experiment,
        name=name,
        parent=parent,
        tags={**tags, **own},
    )
    entries = {
        "run_id": record.run_id,
        "name": name,
        "store": store.uri,
        "parent": parent,
        "code": code_state(project_root()),
        "config": plain(config),
        "data": fingerprint(config.data),
    }
    write_json(folder / RUN_FILE, entries)
    return record, name


def _reopen(store: Store, folder: Path) -> tuple[Record, str]:
    """Return the record and name of the run that was broken off in a folder."""
    entries = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
    return Record.reopen(store, entries["run_id"]), entries["name"]


def _describe(record: Record, config: TrainConfig) -> None:
    values = plain(config)
    for key in ABOUT_RESUMING:
        del values[key]
    record.parameters(values)
    record.text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), "config.yaml")
    record.tags(provenance(project_root(), _device(config.trainer)))


def _close(record: Record, result: Result, folder: Path) -> None:
    diverged = result.diverged
    tags = {"diverged": str(diverged is not None).lower(), "objective": repr(result.objective)}
    tags |= {f"diverged.{key}": str(value) for key, value in (diverged or {}).items()}
    if result.best_checkpoint is not None:
        tags["best_checkpoint"] = result.best_checkpoint
    if result.last_checkpoint is not None:
        tags["last_checkpoint"] = result.last_checkpoint
    for name in ARTIFACTS:
        if (folder / name).is_file():
            record.file(folder / name)
    record.tags(tags)


@same_environment()
def run(
    config: TrainConfig | Mapping[str, Any],
    *,
    parent: str | None = None,
    tags: Mapping[str, str] | None = None,
    allow: Sequence[str] = (),
) -> Result:
    """Train, validate, test and record one model.

    Works without Hydra: ``attnscale.config.build.compose`` makes a configuration, and so does a
    plain mapping of what ``conf/train.yaml`` composes to, as ``config.yaml`` in the record has it.

    Args:
        config: The configuration; it is copied.
        parent: MLflow run id of the sweep that the run belongs to.
        tags: Further tags of the run.
        allow: Packages of your own whose classes the configuration may name.

    Returns:
        The result, in plain values.

    Raises:
        ValueError: If a value is not allowed, naming its key. If it is a target there is no run,
            else the run is FAILED.
        ProcessFailedError: If a process of a run of several failed; the run is then FAILED.
        KeyboardInterrupt: On Ctrl-C; the run is then KILLED.
    """
    targets = Targets(tuple(allow))
    values = plain(config) if isinstance(config, TrainConfig) else config
    targets.check(values)
    config = typed(TrainConfig, values)
    check_launch(config.trainer)
    if config.tracking.uri is not None:
        config.tracking.uri = public(config.tracking.uri)
    folder = Path(config.folder)
    check_writable("folder", folder)
    store = find_store(config.tracking.uri, project_root())
    _meeting = meet()  # held until the processes have their group
    if rank() != 0:
        return train(config, None, targets)
    goes_on = config.resume is not None and (folder / RUN_FILE).is_file()
    if goes_on:
        record, name = _reopen(store, folder)
    else:
        record, name = _open(config, store, folder, parent, tags or {})
    with record.ending(), heartbeat(record):
        if not goes_on or DESCRIBED_TAG not in record.all_tags():
            _describe(record, config)
        if goes_on:
            config.checkpoint = newest_checkpoint(folder, targets) or config.checkpoint
        if config.checkpoint is None:
            # There is nothing to go on from: it begins again, as the same run.
            config.resume = None
        n = processes_wanted(config.trainer)
        if n > 1 and launched_from_outside() is None:
            run_in_processes(
                config, n=n, run_id=record.run_id, store=store.uri, allow=targets.allow
            )
            result = Result.load(folder / RESULT_FILE)
        else:
            result = train(config, record, targets)
        result = dataclasses.replace(result, name=name)
        _close(record, result, folder)
        result.save(folder / RESULT_FILE)
    return result
