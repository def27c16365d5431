"""Translation: cross-entropy of the next target token, teacher forcing."""

import itertools
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed
from torch import Tensor

from attnscale.attention.scale.base import widen
from attnscale.bleu import bleu_tokenizer as choose_tokenizer
from attnscale.bleu import score
from attnscale.checks import check_share
from attnscale.data.corpus import unspaced
from attnscale.data.translation import TranslationBatch, TranslationData
from attnscale.data.vocabulary import END, PADDING
from attnscale.decoding.greedy import greedy
from attnscale.files import write_text
from attnscale.metric import LossByLength, TokenFigures
from attnscale.model.cross_entropy import linear_cross_entropy
from attnscale.model.transformer import Transformer
from attnscale.task.module import TaskModule

log = logging.getLogger(__name__)

SAMPLES = 20


class Translation(TaskModule):
    """Trains a Transformer, and translates the test set."""

    model: Transformer

    def __init__(
        self,
        *,
        label_smoothing: float,
        length_edges: Sequence[int] = (),
        bleu_tokenizer: str | None = None,
        **parts: Any,
    ) -> None:
        """Take the parts of a :class:`TaskModule`.

        Args:
            label_smoothing: ε of the training loss, 0 to 1; never used in validation.
            length_edges: Longest target sentences of classes whose test losses are told apart, in
                tokens, ascending; none for no classes.
            bleu_tokenizer: sacreBLEU's tokeniser; None (as in earlier checkpoints) for that of the
                target language, see :func:`attnscale.bleu.bleu_tokenizer`.
            parts: See :class:`TaskModule`; the model is a :class:`Transformer`.

        Raises:
            ValueError: If the label smoothing is outside [0, 1), the edges do not ascend, or there
                is no such tokeniser.
        """
        super().__init__(**parts)
        check_share("task.label_smoothing", label_smoothing)
        edges = list(length_edges)
        if any(a >= b for a, b in itertools.pairwise([0, *edges])):
            raise ValueError(f"task.length_edges={edges}: must be above 0 and ascend")
        self.label_smoothing, self.bleu_tokenizer = label_smoothing, bleu_tokenizer
        if bleu_tokenizer is not None:
            choose_tokenizer("", unspaced=False, choice=bleu_tokenizer)
        self.by_length = LossByLength(edges) if edges else None
        self.metrics = {"val": TokenFigures(), "test": TokenFigures()}
        self.translations: dict[int, list[int]] = {}

    def _hidden(self, batch: TranslationBatch) -> tuple[Tensor, Tensor]:
        """Return what the output layer reads and the correct token, for real target positions."""
        hidden = self.model(batch.source, batch.target[:, :-1], PADDING)
        target = batch.target[:, 1:]
        # What follows END is padding, so positions that predict it are dropped with it.
        real = (target != PADDING).flatten().nonzero().flatten()
        return hidden.flatten(0, 1).index_select(0, real), target.flatten().index_select(0, real)

    def loss(self, batch: TranslationBatch) -> Tensor:
        """Return the mean cross-entropy per target token, times the batch's weight."""
        hidden, target = self._hidden(batch)
        output = self.model.output
        total = linear_cross_entropy(
            hidden, output.weight, output.bias, target, smoothing=self.label_smoothing
        )
        return total * (batch.loss_weight / len(target))

    def real_queries(self, side: str, batch: TranslationBatch) -> Tensor | None:
        """Return the source's tokens, or the target's positions that predict a token.

        There are none where a process has no sentence of its own.
        """
        tokens = batch.source if side == "source" else batch.target[:, 1:]
        return (tokens != PADDING) & (batch.loss_weight > 0)

    def evaluate(self, split: str, block: list[TranslationBatch]) -> None:
        """Add each batch's loss and correct tokens."""
        metric = self.metrics[split].to(self.device)
        output = self.model.output
        for batch in (batch for batch in block if batch.loss_weight):
            hidden, target = self._hidden(batch)
            logits = widen(output(hidden))
            nll = torch.nn.functional.cross_entropy(logits, target, reduction="none").double()
            metric.update(nll.sum(), (logits.argmax(dim=-1) == target).sum(), len(target))
            if split == "test" and self.by_length is not None:
                predicted = (batch.target[:, 1:] != PADDING).sum(dim=1)
                # END is predicted, and no token of the sentence.
                lengths = (predicted - 1).repeat_interleave(predicted)
                self.by_length.to(self.device).update(nll, lengths)

    def test_step(self, block: list[TranslationBatch], index: int) -> None:
        """Add a block to the test figures, and translate it."""
        super().test_step(block, index)
        for batch in (batch for batch in block if batch.loss_weight):
            sentences = greedy(self.model, batch.source)
            self.translations.update(zip(batch.indices.tolist(), sentences, strict=True))

    def on_test_epoch_end(self) -> None:
        """Score the translations of all processes, and keep them in the run's folder."""
        world = self.trainer.world_size
        if world > 1:
            parts: list[Any] = [None] * world
            torch.distributed.all_gather_object(parts, self.translations)
            self.translations = {index: tokens for part in parts for index, tokens in part.items()}
        figures = self._score()
        if self.by_length is not None:
            figures |= self.by_length.compute()
            self.by_length.reset()
        self.publish("test", figures)
        self.translations = {}

    def _score(self) -> dict[str, float]:
        data = cast(TranslationData, self.data)
        name = data.test_split()
        split, side = data.load(name), data.preprocessing["target"]
        cut, join = side.splitter(), side.joiner()
        vocabulary = data.vocabularies["target"]
        # With trainer.limit_test_batches only a part was translated, and only that is scored.
        rows = sorted(self.translations)
        tokens = [vocabulary.decode(self.translations[i]) for i in rows]
        correct = [cut(split.target_text[i]) for i in rows]
        rejoined = [join(sentence) for sentence in correct]
        # A corpus in tokens has no other text than what they make.
        in_tokens = side.tokenizer == "split"
        references = rejoined if in_tokens else [split.target_text[i] for i in rows]
        texts = [join(sentence) for sentence in tokens]
        scores = score(
            texts,
            references,
            [" ".join(side.words(sentence)) for sentence in tokens],
            [" ".join(side.words(sentence)) for sentence in correct],
            rejoined,
            lowercase=side.caseless,
            tokenize=choose_tokenizer(
                data.target, unspaced=unspaced(references), choice=self.bleu_tokenizer
            ),
        )
        if self.trainer.is_global_zero:
            cut_off = sum(self.translations[i][-1] != END for i in rows)
            if cut_off:
                log.info("test: %d of %d translations have no end and are cut", cut_off, len(rows))
            folder = Path(self.trainer.default_root_dir)
            records = [
                {"source": split.source_text[i], "reference": reference, "translation": text}
                for i, reference, text in zip(rows, references, texts, strict=True)
            ]
            samples = [
                "".join(f"{name:<13}{text}\n" for name, text in row.items())
                for row in records[:SAMPLES]
            ]
            files = {
                f"{name}.{data.target}": "".join(f"{text}\n" for text in texts),
                "samples.txt": "\n".join(samples),
                "translations.jsonl": "".join(
                    json.dumps(row, ensure_ascii=False) + "\n" for row in records
                ),
                "signatures.json": json.dumps(scores.signatures, indent=1),
            }
            for file, text in files.items():
                write_text(folder / file, text)
        return scores.figures
