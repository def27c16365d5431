"""Hydra's hook at the start of a sweep: checks, the parent run, and where jobs find it."""

import json
import sys
import time
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from attnscale.config.build import project_root
from attnscale.sweep import state
from attnscale.sweep.overrides import check, describe, swept_keys
from attnscale.sweep.screen import shown_path
from attnscale.tracking.record import Record
from attnscale.tracking.store import find_store

SWEEP_FILE = "sweep.json"


def _parameters(config: DictConfig) -> dict[str, Any]:
    params = OmegaConf.select(config, "hydra.sweeper.params")
    made = {} if params is None else OmegaConf.to_container(params, resolve=True)
    assert isinstance(made, dict)
    return {str(key): value for key, value in made.items()}


class SweepHook(Callback):
    """Starts the parent run of a sweep before its first job."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Check the overrides, then record the sweep. Hydra turns exceptions here into warnings."""
        try:
            self._start(config)
        except Exception as error:
            state.problem = " ".join(str(error).split()) or type(error).__name__
            sys.exit(1)

    def _start(self, config: DictConfig) -> None:
        overrides = list(config.hydra.overrides.task)
        params = _parameters(config)
        given = [*(f"{key}={value}" for key, value in params.items()), *overrides]
        if "model" in config:
            check(given, config.attention.scale)
        folder = Path(str(config.hydra.sweep.dir))
        name = folder.name
        swept = swept_keys(overrides, params)
        store = find_store(config.tracking.uri, project_root())
        print(f"Recording to {store.uri} ({store.origin})")  # noqa: T201 -- before logging is set up
        print(f"See it with: {store.ui_command()}")  # noqa: T201
        folder.mkdir(parents=True, exist_ok=True)
        described = describe(given, swept) or "one job"
        short = name.rpartition("_")[2]
        record = Record.start(
            store,
            experiment=config.tracking.experiment,
            name=f"sweep {described} ({short})",
            tags={
                "sweep": name,
                "kind": "sweep",
                "overrides": " ".join(overrides),
                "folder": str(folder),
                "mlflow.note.content": f"Sweeps {described}. Since {time.strftime('%F %T')}.",
            },
        )
        # From here on the program's end also ends the record.
        state.sweep = state.Sweep(
            folder, record, described, config.tracking.experiment, bool(config.get("report"))
        )
        (folder / SWEEP_FILE).write_text(
            json.dumps(
                {
                    "parent": record.run_id,
                    "name": name,
                    "short": short,
                    "swept": swept,
                    "described": described,
                    "store": store.uri,
                    "overrides": overrides,
                },
                indent=1,
            )
        )
        print(f"Sweep in {shown_path(folder)}", flush=True)  # noqa: T201
