"""What the app evaluate does."""

import json
import sys
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from tabulate import tabulate

from attnscale.cli.screen import COLUMNS, number, say
from attnscale.config.app_schema import EvaluateConfig
from attnscale.config.build import project_root, to_object
from attnscale.config.targets import Targets
from attnscale.sweep.overrides import allowed
from attnscale.tracking.store import find_store


def evaluate(composed: DictConfig) -> None:
    """Score one split with a checkpoint, record it, and print the figures.

    Raises:
        ValueError: If the checkpoint or the split cannot be read.
    """
    from attnscale.experiment import run
    from attnscale.experiment.checkpoints import load_checkpoint
    from attnscale.experiment.translator import evaluation_config

    targets = Targets(allowed(sys.argv[1:]))
    asked = to_object(composed, EvaluateConfig, targets)
    if asked.checkpoint is None:
        raise ValueError("checkpoint is missing: give checkpoint=PATH")
    config = evaluation_config(load_checkpoint(asked.checkpoint, targets).config, asked)
    store = find_store(config.tracking.uri, project_root())
    say(f"Recording to {store.uri} ({store.origin})")
    overrides = " ".join(HydraConfig.get().overrides.task)
    tags = {"kind": "evaluation", "overrides": overrides}
    result = run(config, tags=tags, allow=targets.allow)
    rows = [
        (COLUMNS.get(name, name).replace("test", asked.data.split, 1), number(value))
        for name, value in result.metrics.items()
        if name.startswith("test/")
    ]
    say(tabulate(rows, tablefmt="plain"))
    signatures = Path(config.folder, "signatures.json")
    if signatures.is_file():
        for name, text in json.loads(signatures.read_text()).items():
            say(f"{name}: {text}")
