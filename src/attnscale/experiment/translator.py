"""Translation with the model of a checkpoint."""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

import torch

from attnscale.config.targets import NO_ALLOWANCE, Targets
from attnscale.data.vocabulary import END, PADDING, Preprocessing, Vocabulary
from attnscale.decoding.greedy import greedy
from attnscale.experiment.checkpoints import load_checkpoint
from attnscale.experiment.consistency import scale_factory
from attnscale.model.transformer import Transformer

log = logging.getLogger(__name__)


class Translator:
    """Translates text with the model of a checkpoint."""

    def __init__(self, path: str, device: str = "cpu", targets: Targets = NO_ALLOWANCE) -> None:
        """Load model, vocabularies and preprocessing from a checkpoint.

        Raises:
            ValueError: If the checkpoint holds no translation model.
        """
        checkpoint = load_checkpoint(path, targets)
        # Seconds of importing, which a file that is none should not wait for.
        from attnscale.experiment.assemble import make_model

        if not checkpoint.data:
            raise ValueError(f"checkpoint={path}: holds no translation model")
        data = checkpoint.config.data
        self.source = Vocabulary(checkpoint.data["source"])
        self.target = Vocabulary(checkpoint.data["target"])
        self.split = Preprocessing(data.tokenizer, data.lowercase, data.source).splitter()
        self.join = Preprocessing(data.tokenizer, data.lowercase, data.target).joiner()
        self.max_length = data.max_length
        sizes = {"source_size": len(self.source), "target_size": len(self.target)}
        scale = scale_factory(checkpoint.config)
        scale = replace(scale, statistics=checkpoint.statistics or {})
        model = make_model(checkpoint.config, scale, sizes, targets)
        assert isinstance(model, Transformer)
        prefix = "model."
        weights = {
            name.removeprefix(prefix): tensor
            for name, tensor in checkpoint.tensors.items()
            if name.startswith(prefix)
        }
        model.load_state_dict(weights)
        self.model, self.device = model.eval().to(device), device

    def batch(self, texts: list[str], first: int = 1) -> list[str]:
        """Translate some sentences; an empty one gives an empty one.

        What is longer than the model reads or writes is cut, which is told with the line's number.

        Args:
            texts: The sentences.
            first: The first one's line, counted from 1.
        """
        whole = [self.split(text) for text in texts]
        for line, words in enumerate(whole, start=first):
            if len(words) > self.max_length:
                text = "line %d: %d tokens, of which the first %d are read (data.max_length)"
                log.warning(text, line, len(words), self.max_length)
        tokens = [words[: self.max_length] for words in whole]
        rows = [i for i, sentence in enumerate(tokens) if sentence]
        result = [""] * len(texts)
        if not rows:
            return result
        numbers = [[*self.source.encode(tokens[i]), END] for i in rows]
        width = max(map(len, numbers))
        padded = torch.tensor(
            [n + [PADDING] * (width - len(n)) for n in numbers], device=self.device
        )
        translations = greedy(self.model, padded)
        for row, sentence in zip(rows, translations, strict=True):
            if sentence[-1] != END:
                text = "line %d: the translation has no end after %d tokens, and is cut there"
                log.warning(text, first + row, len(sentence))
            result[row] = self.join(self.target.decode(sentence))
        return result

    def lines(self, texts: Iterable[str], size: int) -> Iterator[str]:
        """Translate line by line, in order, ``size`` at a time."""
        stream = iter(texts)
        first = 1
        while some := list(islice(stream, size)):
            yield from self.batch(some, first)
            first += len(some)
