"""Hydra's hook at the start of a sweep: checks, the parent run, and where jobs find it."""

import copy
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from attnscale.config.app_schema import TheoryConfig
from attnscale.config.build import project_root, resolve, shown_path
from attnscale.config.hydra_section import cannot_write
from attnscale.config.limits import check_limits
from attnscale.config.schema import SECTIONS, TrainConfig
from attnscale.config.targets import Targets
from attnscale.files import remove_parts
from attnscale.sweep.forecast import duration, n_jobs, runs_in_turn
from attnscale.sweep.going_on import (
    check_code,
    earlier,
    sweep_name,
    take_lock,
    tell_unfinished,
)
from attnscale.sweep.mistakes import explain
from attnscale.sweep.orphans import mark_orphans
from attnscale.sweep.overrides import allowed, check, describe, listed, parse, swept_keys
from attnscale.sweep.state import LAUNCHED, Launch, Sweep
from attnscale.tracking.heartbeat import heartbeat
from attnscale.tracking.liveness import Process
from attnscale.tracking.provenance import code_state
from attnscale.tracking.record import Record
from attnscale.tracking.store import Store, find_store
from attnscale.tracking.ui import save_view

SLURM_LAUNCHER = "hydra_plugins.attnscale.SlurmSweepLauncher"
"""``_target_`` of ``hydra/launcher=slurm``; what it needs is loaded only where it is named."""

OF_EACH_LAUNCH = ("hydra.mode=", "hydra.sweep.dir=", "hydra/launcher=")
"""Overrides of Hydra's own settings that a launch that goes on does not repeat."""

LOCAL_LAUNCHER = "hydra_plugins.attnscale.LocalLauncher"
"""``_target_`` of ``hydra/launcher=local``."""


def _checked(config: DictConfig, targets: Targets) -> dict[str, Any]:
    """Return the values of a configuration, within their limits.

    Nothing is returned where a job alone can resolve it; each job checks its own once more.
    """
    own = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    with open_dict(own):
        # Hydra knows it when a job starts.
        own.folder = ""
    try:
        values = resolve(own, targets)
    except OmegaConfBaseException:
        return {}
    check_limits(values, TrainConfig if "model" in values else TheoryConfig, SECTIONS)
    return values


def _check_swept(config: DictConfig, overrides: Sequence[str]) -> None:
    """Check that there are the keys that a sweep varies, and that its values are of their types.

    Nothing is checked that depends on a choice which is swept as well. A value of the right type
    that is not allowed is the affair of its job: the others run.
    """
    groups = set(config.hydra.runtime.choices)
    swept = [override for override in parse(overrides) if override.is_sweep_override()]
    choices = {override.key_or_group for override in swept} & groups
    if "experiment" in choices:
        return
    for override in swept:
        key = override.key_or_group
        if key in groups or override.is_add() or any(key.startswith(f"{c}.") for c in choices):
            continue
        for value in listed(override):
            OmegaConf.update(copy.deepcopy(config), key, value)


def record_launch(
    folder: Path, launch: Launch, store: Store, *, report: bool, lock: FileLock
) -> None:
    """Start the parent run of a sweep, or take it up again, and leave word of it to all."""
    print(f"Recording to {store.uri} ({store.origin})")  # noqa: T201 -- before logging is set up
    mark_orphans(store, launch.experiment)
    overrides = {"overrides": " ".join(launch.overrides)}
    if launch.parent:
        record = Record.reopen(store, launch.parent)
        record.tags(overrides)
    else:
        record = Record.start(
            store,
            experiment=launch.experiment,
            name=f"sweep {launch.described} ({launch.name.rpartition('_')[2]})",
            tags={
                "sweep": launch.name,
                "kind": "sweep",
                **({} if launch.jobs is None else {"jobs": str(launch.jobs)}),
                **overrides,
                "folder": str(folder),
                "mlflow.note.content": (
                    f"Sweeps {launch.described}. Since {time.strftime('%F %T')}."
                ),
            },
        )
    launch = replace(launch, parent=record.run_id)
    # From here on the program's end also ends the record.
    held = ExitStack()
    held.enter_context(heartbeat(record))
    LAUNCHED.get([]).append(Sweep(folder, record, launch, report, lock, held))
    launch.save(folder)
    view = save_view(
        record,
        launch.experiment,
        sweep=launch.name,
        described=launch.described,
        swept=launch.swept,
    )
    print(f"See it:  {view}")  # noqa: T201


class SweepHook(Callback):
    """Starts the parent run of a sweep before its first job, and says how long the rest takes.

    Attributes:
        jobs: How many jobs run one after the other; None where they do not.
        first_start: When the first job started, in seconds of ``time.monotonic``.
    """

    jobs: int | None = None
    first_start = 0.0

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Check the overrides, then record the sweep. Hydra turns exceptions here into warnings."""
        try:
            self._start(config)
        except OmegaConfBaseException as error:
            sys.exit(explain(error))
        except Exception as error:
            sys.exit(cannot_write(error) or " ".join(str(error).split()) or type(error).__name__)

    def _start(self, config: DictConfig) -> None:
        overrides = list(config.hydra.overrides.task)
        # As Hydra's own sweeper reads them.
        params = config.hydra.sweeper.get("params") or {}
        from_file = [f"{key}={value}" for key, value in params.items()]
        all_overrides = [*from_file, *overrides]
        targets = Targets(allowed(sys.argv[1:]))
        if any(override.key_or_group == "allow" for override in parse(from_file)):
            raise ValueError("hydra.sweeper.params.allow: counts on the command line only")
        values = _checked(config, targets)
        if config.hydra.launcher.get("_target_") == SLURM_LAUNCHER:
            from attnscale.sweep.slurm import register

            register(SLURM_LAUNCHER)
        if "model" in config:
            check(all_overrides, config)
        _check_swept(config, all_overrides)
        # Last: whose classes these are is imported.
        targets.check(values)
        if swept_keys(overrides, ()).count("budget"):
            raise ValueError("budget: is one for all jobs; start a sweep for each")
        swept = swept_keys(overrides, params)
        if "tracking.uri" in swept:
            raise ValueError("tracking.uri: is one for all jobs; start a sweep for each")
        launcher = str(config.hydra.launcher.get("_target_"))
        folder = Path(str(config.hydra.sweep.dir))
        count = n_jobs(config.hydra, all_overrides)
        self.jobs = count if runs_in_turn(config.hydra) else None
        if config.get("budgets") and count is not None:
            seconds = count * config.budgets[config.budget].seconds
            print(  # noqa: T201
                f"Budget {config.budget}: {count} jobs, about {duration(seconds)} on one core "
                "if nothing is overridden"
            )
        old = earlier(folder, config.get("resume"), launcher)
        if launcher == LOCAL_LAUNCHER:
            from attnscale.sweep import local

            local.register(LOCAL_LAUNCHER)
            # Before this process opens anything that a fork would share.
            local.warm_up()
        lock = take_lock(folder, f"hydra.sweep.dir={folder}")
        code = code_state(project_root())
        if old is not None:
            remove_parts(folder, folder / "jobs")
            check_code(old.code, code, trust=bool(config.get("trust")), resume=str(config.resume))
            swept = [*old.swept, *(key for key in swept if key not in old.swept)]
        store = find_store(config.tracking.uri, project_root())
        if old is not None and old.store not in ("", store.uri):
            raise ValueError(
                f"resume={config.resume}: the sweep is recorded in {old.store}, and not in "
                f"{store.uri}; give tracking.uri="
            )
        # As they were written: what each job resolves is not known here.
        settings: Any = OmegaConf.to_container(config.hydra.overrides.hydra, resolve=False)
        launch = Launch(
            parent="" if old is None else old.parent,
            name=sweep_name(folder) if old is None else old.name,
            swept=swept,
            allow=list(targets.allow),
            store=store.uri,
            experiment=config.tracking.experiment,
            described=describe(all_overrides, swept) or "one job",
            overrides=overrides,
            settings=[word for word in settings if not word.startswith(OF_EACH_LAUNCH)],
            process=str(Process.current()),
            jobs=count,
            code=code,
            launcher=launcher,
        )
        record_launch(folder, launch, store, report=bool(config.get("report")), lock=lock)
        print(f"Sweep in {shown_path(folder)}", flush=True)  # noqa: T201
        if old is None:
            tell_unfinished(folder, overrides)

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Say how many jobs are left, and how long that takes at the mean of those before."""
        index = config.hydra.job.get("num", 0)
        if index == 0:
            self.first_start = time.monotonic()
        elif self.jobs is not None:
            left = self.jobs - index
            seconds = (time.monotonic() - self.first_start) / index * left
            print(f"{left} of {self.jobs} jobs left, about {duration(seconds)}", flush=True)  # noqa: T201
