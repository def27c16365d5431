"""What the app translate does."""

import sys
from collections.abc import Iterable
from pathlib import Path

from omegaconf import DictConfig

from attnscale.config.app_schema import TranslateConfig
from attnscale.config.build import to_object
from attnscale.config.targets import Targets
from attnscale.sweep.overrides import allowed


def translate(composed: DictConfig) -> None:
    """Translate ``input`` to ``output``, line by line in order.

    Raises:
        ValueError: If the checkpoint or the input cannot be read.
    """
    from attnscale.data.corpus import decode_line, read_lines
    from attnscale.experiment.translator import Translator

    targets = Targets(allowed(sys.argv[1:]))
    config = to_object(composed, TranslateConfig, targets)
    if config.checkpoint is None:
        raise ValueError("checkpoint is missing: give checkpoint=PATH")
    translator = Translator(config.checkpoint, config.device, targets)
    sentences: Iterable[str]
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
    lines = translator.lines(sentences, config.batch_sentences)
    if config.output == "-":
        for line in lines:
            sys.stdout.buffer.write(f"{line}\n".encode())
        sys.stdout.buffer.flush()
    else:
        Path(config.output).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
