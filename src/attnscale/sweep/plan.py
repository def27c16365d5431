"""The jobs of a launch before the first of them starts: composed, told apart, and placed.

A sweep that goes on knows its jobs by their identity: a finished one is taken with its result, an
interrupted one keeps its folder, a failed one starts anew in another, and new ones are added behind
the others.
"""

import copy
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus, filter_overrides
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from attnscale.config.build import resolve
from attnscale.config.schema import TrainConfig
from attnscale.config.section import typed
from attnscale.config.targets import Targets
from attnscale.experiment.demand import Demand, demand
from attnscale.experiment.identity import fingerprint, identity
from attnscale.sweep.machine import cores, gpus
from attnscale.sweep.overrides import describe
from attnscale.sweep.state import WAITING, Job, Launch, job_file, read_jobs
from attnscale.tracking.record import FAILED, FINISHED

UNKNOWN = Demand(threads=1, processes=1, gpus=0, work=0.0)
"""Of a job whose configuration is not that of a training run, or is mistaken: it will say so."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A job that is to run, or has run.

    Attributes:
        job: What is known of it.
        config: Its whole configuration, ``hydra`` included.
        demand: What it needs.
        result: What it came to before, or None.
    """

    job: Job
    config: DictConfig
    demand: Demand
    result: JobReturn | None


def _values(config: DictConfig, targets: Targets) -> dict[str, Any] | None:
    """Return a job's plain configuration, or None if it is mistaken, which the job will say."""
    own = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    try:
        return resolve(own, targets)
    except (OmegaConfBaseException, ValueError):
        return None


def _demand(values: dict[str, Any] | None, n_gpus: int) -> Demand:
    try:
        config = typed(TrainConfig, values or {})
        return demand(config, cores=cores(), n_gpus=n_gpus)
    except (ValueError, TypeError):
        return UNKNOWN


def _number(config: DictConfig, index: int) -> str:
    """Give a job its number, and return the folder that it then has, as Hydra finds it."""
    with read_write(config.hydra), open_dict(config.hydra):
        config.hydra.job.id = str(index)
        config.hydra.job.num = index
    HydraConfig.instance().set_config(config)
    folder = str(Path(str(config.hydra.sweep.dir)) / str(config.hydra.sweep.subdir))
    with read_write(config.hydra), open_dict(config.hydra):
        config.hydra.runtime.output_dir = folder
    # What asks Hydra for its settings, such as the key "folder", asks this one.
    HydraConfig.instance().set_config(config)
    return folder


def _place(config: DictConfig, sweep: Path, folder: str) -> None:
    """Let a job write into a folder of its sweep."""
    with read_write(config.hydra), open_dict(config.hydra):
        config.hydra.sweep.subdir = str(Path(folder).resolve().relative_to(sweep.resolve()))


def _again(folder: str) -> str:
    """Return a folder for a job that starts anew, beside its old ones."""
    first = re.sub(r"_\d+$", "", folder)
    first, attempt = first if Path(first).exists() else folder, 2
    while Path(f"{first}_{attempt}").exists():
        attempt += 1
    return f"{first}_{attempt}"


def _keep_hydra(config: DictConfig, folder: str) -> None:
    """Leave the files of the earlier launch alone that Hydra would write over."""
    name, attempt = str(config.hydra.output_subdir or ".hydra"), 2
    if not (Path(folder) / name).exists():
        return
    while (Path(folder) / f"{name}_{attempt}").exists():
        attempt += 1
    with read_write(config.hydra), open_dict(config.hydra):
        config.hydra.output_subdir = f"{name}_{attempt}"


def _returned(job: Job, config: DictConfig) -> JobReturn:
    assert job.result is not None
    return JobReturn(
        overrides=job.overrides,
        cfg=config,
        _return_value=job.result.objective,
        status=JobStatus.COMPLETED,
    )


def plan(
    loader: ConfigLoader,
    master: DictConfig,
    job_overrides: Sequence[Sequence[str]],
    first: int,
    sweep: Path,
) -> list[Planned]:
    """Compose the jobs of a launch, and leave word of each in the sweep's folder.

    Args:
        loader: Hydra's, of this launch.
        master: The configuration of the launch.
        job_overrides: Those of each job.
        first: Number of the first job in a sweep that is new.
        sweep: The sweep's folder.

    Raises:
        ValueError: If two jobs would write into one folder, or if a job that is to be taken up was
            trained on other data.
    """
    launch = Launch.load(sweep)
    targets = Targets(tuple(launch.allow))
    goes_on = master.get("resume") is not None
    known: dict[str, list[Job]] = {}
    for job in read_jobs(sweep) if goes_on else ():
        # Several where only what says how a job is run was swept.
        known.setdefault(job.identity, []).append(job)
    before, n_gpus = HydraConfig.instance().cfg, len(gpus())
    free = max([job.index for job in read_jobs(sweep)], default=-1) + 1
    next_index = free if goes_on else first
    jobs = []
    for overrides in job_overrides:
        config = loader.load_sweep_config(master, list(overrides))
        folder = _number(config, next_index)
        values = _values(config, targets)
        # One that is mistaken is known by what was asked for.
        mark = " ".join(sorted(overrides)) if values is None else identity(values)
        old = known[mark].pop(0) if known.get(mark) else None
        if old is None:
            index, next_index = next_index, next_index + 1
        else:
            index, folder = old.index, old.folder
            _number(config, index)
            if old.status == FAILED:
                folder = _again(folder)
            _place(config, sweep, folder)
            _keep_hydra(config, folder)
        data = "" if values is None else fingerprint(values.get("data", {}))
        if old is not None and old.data != data and not master.get("trust"):
            raise ValueError(
                f"resume={master.resume}: the data of job {index} have changed since it ran; start "
                "a new sweep, or go on all the same with trust=true"
            )
        job = Job(
            index=index,
            name=describe(overrides, launch.swept) or "job",
            status=WAITING,
            folder=folder,
            overrides=list(filter_overrides(list(overrides))),
            identity=mark,
            data=data,
        )
        if old is not None and old.status == FINISHED:
            jobs.append(
                Planned(job=old, config=config, demand=UNKNOWN, result=_returned(old, config))
            )
            continue
        need = _demand(values, n_gpus)
        if old is not None and old.threads:
            need = replace(need, threads=old.threads)
        job = replace(job, threads=need.threads)
        with read_write(config), open_dict(config):
            config.threads = need.threads
        jobs.append(Planned(job=job, config=config, demand=need, result=None))
    HydraConfig.instance().cfg = before
    _check_folders(jobs)
    for planned in jobs:
        if planned.result is None:
            planned.job.save(job_file(sweep, planned.job.index))
    return jobs


def _check_folders(jobs: Sequence[Planned]) -> None:
    """Check that no two jobs write into one folder.

    Raises:
        ValueError: Naming the key.
    """
    for key, folders in (
        ("hydra.sweep.subdir", [one.job.folder for one in jobs]),
        ("folder", [str(OmegaConf.to_container(copy.copy(one.config))["folder"]) for one in jobs]),  # type: ignore[index,call-overload]
    ):
        for folder, count in Counter(folders).items():
            if count > 1 and "${" not in folder:
                raise ValueError(
                    f"{key}={folder}: {count} jobs would write into one folder; leave it out, or "
                    "let it hold ${hydra.job.num}"
                )
