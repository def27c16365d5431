"""What the app evaluate does."""

import json
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from tabulate import tabulate

from attnscale.cli.screen import COLUMNS, number, say
from attnscale.cli.translate import checkpoint_config
from attnscale.config.build import project_root
from attnscale.tracking.store import find_store


def evaluate(config: DictConfig) -> None:
    """Score one split with a checkpoint, record it, and print the figures.

    Raises:
        ValueError: If the checkpoint or the split cannot be read.
    """
    from attnscale.experiment import run
    from attnscale.experiment.checkpoints import load_checkpoint
    from attnscale.experiment.trained import evaluation_config

    made, targets = checkpoint_config(config)
    state = load_checkpoint(made["checkpoint"], targets)
    data = {
        key: value for key, value in made["data"].items() if key != "split" and value is not None
    }
    trainer = {key: value for key, value in made["trainer"].items() if value is not None}
    changes = {
        "data": data,
        "trainer": trainer,
        "tracking": {**made["tracking"], "run_name": f"evaluate {made['data']['split']}"},
        **{key: made[key] for key in ("folder", "checkpoint")},
    }
    wanted = evaluation_config(state, made["data"]["split"], changes)
    store = find_store(made["tracking"]["uri"], project_root())
    say(f"Recording to {store.uri} ({store.origin})")
    overrides = " ".join(HydraConfig.get().overrides.task)
    tags = {"kind": "evaluation", "overrides": overrides}
    result = run(wanted, tags=tags, allow=targets.allow)
    figures = {name: value for name, value in result.metrics.items() if name.startswith("test/")}
    split = made["data"]["split"]
    rows = [
        (COLUMNS.get(name, name).replace("test", split, 1), number(value))
        for name, value in figures.items()
    ]
    say(tabulate(rows, tablefmt="plain"))
    signatures = Path(wanted["folder"], "signatures.json")
    if signatures.is_file():
        for name, text in json.loads(signatures.read_text()).items():
            say(f"{name}: {text}")
