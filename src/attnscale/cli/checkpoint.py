"""What the apps evaluate and translate do, both with the model of a checkpoint."""

import copy
import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from tabulate import tabulate

from attnscale.bleu import bleu_remarks
from attnscale.checks import check_writable
from attnscale.cli.job import writing
from attnscale.cli.screen import COLUMNS, number, say
from attnscale.config.app_schema import EvaluateConfig, TranslateConfig
from attnscale.config.build import project_root, to_object
from attnscale.config.limits import check_limits
from attnscale.config.schema import TrainConfig
from attnscale.config.section import plain
from attnscale.config.targets import Targets
from attnscale.files import write_text
from attnscale.sweep.overrides import allowed
from attnscale.tracking.store import find_store


def _run_config(trained: TrainConfig, evaluation: EvaluateConfig) -> TrainConfig:
    """Return the checkpoint's configuration, with a split to score and nothing to train.

    Args:
        trained: The checkpoint's configuration.
        evaluation: That of the app; null stands for what it was in training.
    """
    split, tokenizer = evaluation.data.split, evaluation.task.bleu_tokenizer
    config = replace(
        copy.deepcopy(trained),
        folder=evaluation.folder,
        checkpoint=evaluation.checkpoint,
        tracking=replace(evaluation.tracking, run_name=f"evaluate {split or 'test'}"),
    )
    if evaluation.data.dir is not None:
        config.data["dir"] = evaluation.data.dir
    if split is not None and "test" in config.data:
        config.data["test"] = split
    elif split not in (None, "test"):
        raise ValueError(f"data.split={split}: this checkpoint's data have one test set, test")
    if tokenizer is not None:
        config.task["bleu_tokenizer"] = tokenizer
    place = {key: value for key, value in plain(evaluation.trainer).items() if value is not None}
    config.trainer = replace(
        config.trainer,
        **place,
        limit_train_batches=0,
        limit_val_batches=0,
        limit_test_batches=1.0,
        fast_dev_run=False,
        overfit_batches=0.0,
        default_root_dir=config.folder,
    )
    return config


def evaluate(composed: DictConfig) -> None:
    """Score one split with a checkpoint, record it, and print the figures.

    Raises:
        ValueError: If the checkpoint or the split cannot be read.
    """
    from attnscale.experiment.checkpoints import load_checkpoint

    targets = Targets(allowed(sys.argv[1:]))
    evaluation = to_object(composed, EvaluateConfig, targets)
    if evaluation.checkpoint is None:
        raise ValueError("checkpoint is missing: give checkpoint=PATH")
    config = _run_config(load_checkpoint(evaluation.checkpoint, targets).config, evaluation)
    from attnscale.experiment import run

    store = find_store(config.tracking.uri, project_root())
    say(f"Recording to {store.uri} ({store.origin})")
    overrides = " ".join(HydraConfig.get().overrides.task)
    tags = {"kind": "evaluation", "overrides": overrides}
    result = run(config, tags=tags, allow=targets.allow)
    rows = [
        (COLUMNS.get(name, name).replace("test", evaluation.data.split or "test", 1), number(value))
        for name, value in result.metrics.items()
        if name.startswith("test/")
    ]
    say(tabulate(rows, tablefmt="plain"))
    for remark in bleu_remarks([result.metrics]):
        say(remark)
    signatures = Path(config.folder, "signatures.json")
    if signatures.is_file():
        for name, text in json.loads(signatures.read_text(encoding="utf-8")).items():
            say(f"{name}: {text}")


def translate(composed: DictConfig) -> None:
    """Translate ``input`` to ``output``, line by line in order.

    Raises:
        ValueError: If the checkpoint or the input cannot be read.
    """
    from attnscale.data.corpus import decode_line, read_lines
    from attnscale.experiment.translator import Translator

    targets = Targets(allowed(sys.argv[1:]))
    config = to_object(composed, TranslateConfig, targets)
    check_limits(plain(config), TranslateConfig, {})
    if config.checkpoint is None:
        raise ValueError("checkpoint is missing: give checkpoint=PATH")
    if config.output != "-":
        check_writable("output", Path(config.output).parent)
    sentences: Iterable[str]
    if config.input == "-" and sys.stdin is None:
        raise ValueError("input=-: standard input is closed; give input=FILE")
    if config.input == "-":
        sentences = (
            decode_line(line, "standard input", number)
            for number, line in enumerate(sys.stdin.buffer, start=1)
        )
    else:
        path = Path(config.input)
        if not path.is_file():
            raise ValueError(f"input={path}: no such file")
        sentences = read_lines(path)
    translator = Translator(config.checkpoint, config.device, targets)
    lines = translator.lines(sentences, config.batch_sentences)
    if config.output == "-":
        # Not through sys.stdout, which goes on where nobody reads.
        with writing("output", "-"), open(sys.stdout.fileno(), "wb", closefd=False) as output:
            output.writelines(f"{line}\n".encode() for line in lines)
    else:
        text = "".join(f"{line}\n" for line in lines)
        with writing("output", config.output):
            write_text(config.output, text)
