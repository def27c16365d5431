"""What the app translate does."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from attnscale.config.build import plain
from attnscale.config.targets import Targets
from attnscale.sweep.overrides import allowed


def checkpoint_config(config: DictConfig) -> tuple[dict[str, Any], Targets]:
    """Return an app's configuration, which must name a checkpoint, and what it may name.

    Raises:
        ValueError: If it names none, or a target is not allowed.
    """
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

    made, targets = checkpoint_config(config)
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
