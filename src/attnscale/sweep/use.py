"""What the apps translate and evaluate do."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from tabulate import tabulate

from attnscale.config.build import plain, project_root
from attnscale.config.targets import Targets
from attnscale.sweep.overrides import allowed
from attnscale.sweep.screen import COLUMNS, number, say
from attnscale.tracking.store import find_store


def _checkpoint(config: DictConfig) -> tuple[dict[str, Any], Targets]:
    targets = Targets(allowed(sys.argv[1:]))
    made = plain(config, targets)
    targets.check(made)
    if made["checkpoint"] is None:
        raise ValueError("checkpoint is missing: give checkpoint=PATH")
    return made, targets


def translate(config: DictConfig) -> None:
    """Translate ``input`` to ``output``, line by line in order.

    Raises:
        ValueError: If the checkpoint or the input cannot be read.
    """
    from attnscale.data.corpus import decode_line, read_lines
    from attnscale.experiment.trained import Translator

    made, targets = _checkpoint(config)
    translator = Translator(made["checkpoint"], made["device"], targets)
    given: Iterable[str]
    if made["input"] == "-":
        given = (
            decode_line(line, "standard input", number)
            for number, line in enumerate(sys.stdin.buffer, start=1)
        )
    else:
        path = Path(made["input"])
        if not path.is_file():
            raise ValueError(f"input={path}: no such file")
        given = read_lines(path)
    lines = translator.lines(given, made["batch_sentences"])
    if made["output"] == "-":
        for line in lines:
            sys.stdout.buffer.write(f"{line}\n".encode())
        sys.stdout.buffer.flush()
    else:
        Path(made["output"]).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def evaluate(config: DictConfig) -> None:
    """Score one split with a checkpoint, record it, and print the figures.

    Raises:
        ValueError: If the checkpoint or the split cannot be read.
    """
    from attnscale.experiment import run
    from attnscale.experiment.checkpoints import load_checkpoint
    from attnscale.experiment.trained import evaluation_config

    made, targets = _checkpoint(config)
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
