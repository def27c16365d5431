"""What every translation corpus shares: from pairs of texts to batches of numbers."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attnscale.checks import check_alternative, check_choice, check_min
from attnscale.data.batching import BlockLoader, Processes, by_sentences, by_tokens
from attnscale.data.corpus import shift_warning, unspaced_warning
from attnscale.data.module import DataModule
from attnscale.data.packing import FlatTokens, Packed
from attnscale.data.vocabulary import BEGIN, END, PADDING, UNKNOWN, Preprocessing, Vocabulary

log = logging.getLogger(__name__)

TOO_LONG = ("skip", "cut")
LEGIBLE_TOKENS = 24  # of the longest source, END counted, whose attention map is still legible
SIDES = ("source", "target")


class TranslationBatch(NamedTuple):
    """Sentence pairs as numbers, padded at the end.

    Attributes:
        source: (batch, source position), each sentence ends with END.
        target: (batch, target position), each sentence starts with BEGIN and ends with END.
        indices: Which examples of the split these are, (batch,).
        loss_weight: Of this process's mean loss per token, so that the mean over processes is the
            mean over the tokens of the whole batch: its target tokens × processes ÷ those of all.
            In training also × the batch's target tokens ÷ their mean over the step's batches.
    """

    source: Tensor
    target: Tensor
    indices: Tensor
    loss_weight: float


class Split(NamedTuple):
    """One split: the texts as they are, and packed."""

    source_text: list[str]
    target_text: list[str]
    source: Packed
    target: Packed

    def predicted(self, indices: npt.NDArray[np.int64] | slice = slice(None)) -> int:
        """Return the target tokens of some pairs, or all, that are predicted: not BEGIN."""
        return int((self.target.lengths[indices] - 1).sum())


class TranslationData(DataModule):
    """A parallel corpus in one direction. A subclass says where the pairs come from."""

    def __init__(
        self,
        *,
        source: str,
        target: str,
        test: str | None,
        tokenizer: str,
        lowercase: bool,
        min_frequency: int,
        max_length: int,
        too_long: str,
        batch_tokens: int | None,
        batch_sentences: int | None,
        eval_batch_sentences: int,
        seed: int,
    ) -> None:
        """Check the settings; nothing is read before :meth:`setup`.

        Args:
            source: Language to translate from, two letters.
            target: Language to translate to.
            test: Name of the test split; None takes the corpus's first.
            tokenizer: See :class:`attnscale.data.vocabulary.Preprocessing`.
            lowercase: Whether all text is lower-cased.
            min_frequency: How often a token must occur in training to be in the vocabulary.
            max_length: Longest sentence in tokens; see ``too_long``.
            too_long: "skip" leaves a longer pair out of training, "cut" shortens it.
            batch_tokens: Tokens of a training batch, padding counted, all processes together.
            batch_sentences: Sentences of a training batch instead.
            eval_batch_sentences: Of a validation or test batch, all processes together.
            seed: Seed of the order.

        Raises:
            ValueError: If a value is not allowed.
        """
        super().__init__()
        if source == target:
            raise ValueError(f"data.source={source}: is also data.target")
        check_choice("data.too_long", too_long, TOO_LONG)
        check_alternative(
            "data.batch_tokens", batch_tokens, "data.batch_sentences", batch_sentences
        )
        check_min("data.max_length", max_length)
        check_min("data.batch_tokens", batch_tokens)
        check_min("data.batch_sentences", batch_sentences)
        check_min("data.eval_batch_sentences", eval_batch_sentences)
        self.source, self.target, self.test = source, target, test
        self.preprocessing = {
            side: Preprocessing(tokenizer, lowercase, language)
            for side, language in (("source", source), ("target", target))
        }
        self.min_frequency, self.max_length, self.too_long = min_frequency, max_length, too_long
        self.batch_tokens, self.batch_sentences = batch_tokens, batch_sentences
        self.eval_batch_sentences, self.seed = eval_batch_sentences, seed
        self.vocabularies: dict[str, Vocabulary] = {}
        self.splits: dict[str, Split] = {}

    def pairs(self, split: str) -> tuple[list[str], list[str]]:
        """Return the source and target texts of a split.

        Raises:
            ValueError: If the split is not there, saying what is missing.
        """
        raise NotImplementedError

    def test_split(self) -> str:
        """Return the name of the test split."""
        return self.test or "test"

    # --- preparing ---

    def take_checkpoint_values(self, values: Mapping[str, Any]) -> None:
        """Use vocabularies of a checkpoint instead of building them from the training set."""
        self.vocabularies = {side: Vocabulary(tokens) for side, tokens in values.items()}

    def _raw(self, split: str) -> tuple[list[str], list[str], list[FlatTokens]]:
        """Read and tokenise a split; tokens go into flat arrays under numbers of their own."""
        first, second = self.pairs(split)
        training = split == "train"
        if training:
            forms = [self.preprocessing[side] for side in SIDES]
            unspaced = [
                unspaced_warning(lines, form.tokenizer, form.language)
                for lines, form in zip((first, second), forms, strict=True)
            ]
            for warning in filter(None, (shift_warning(first, second), *unspaced)):
                log.warning("data: %s: %s", split, warning)
        cut = [self.preprocessing[side].splitter() for side in SIDES]
        flat = [FlatTokens(), FlatTokens()]
        texts: tuple[list[str], list[str]] = ([], [])
        empty = long = 0
        for a, b in zip(first, second, strict=True):
            x, y = cut[0](a), cut[1](b)
            if training and not (x and y and a.strip() and b.strip()):
                empty += 1
                continue
            if max(len(x), len(y)) > self.max_length:
                long += 1
                if training and self.too_long == "skip":
                    continue
                x, y = x[: self.max_length], y[: self.max_length]
            for part, text, store, tokens in zip(texts, (a, b), flat, (x, y), strict=True):
                part.append(text)
                store.add(tokens)
        if empty:
            log.info("data: %s: %d pairs with an empty side left out", split, empty)
        if long:
            treatment = "left out" if training and self.too_long == "skip" else "cut"
            text = "data: %s: %d pairs of more than data.max_length=%d tokens %s"
            log.info(text, split, long, self.max_length, treatment)
        if not texts[0]:
            raise ValueError(f"data: the split {split} has no usable pair")
        return *texts, flat

    def _load(self, split: str) -> Split:
        first, second, flat = self._raw(split)
        if not self.vocabularies:
            if split != "train":
                self.load("train")
            else:
                self.vocabularies = {
                    side: Vocabulary.from_counts(store.counts(), min_frequency=self.min_frequency)
                    for side, store in zip(SIDES, flat, strict=True)
                }
        numbered = [
            store.numbered(self.vocabularies[side].index, UNKNOWN)
            for side, store in zip(SIDES, flat, strict=True)
        ]
        source = Packed([*sentence, END] for sentence in numbered[0])
        target = Packed([BEGIN, *sentence, END] for sentence in numbered[1])
        return Split(first, second, source, target)

    def load(self, split: str) -> Split:
        """Read, tokenise and pack a split, once."""
        if split not in self.splits:
            self.splits[split] = self._load(split)
        return self.splits[split]

    def setup(self, stage: str | None = None) -> None:
        """Read what a stage needs."""
        splits = {
            "fit": ("train", "val"),
            "validate": ("val",),
            "test": (self.test_split(),),
            None: ("train", "val"),
        }
        for split in splits.get(stage, ()):
            self.load(split)

    def model_arguments(self) -> dict[str, int]:
        """Return the sizes of the vocabularies, for the model."""
        if not self.vocabularies:
            self.load("train")
        return {f"{side}_size": len(vocabulary) for side, vocabulary in self.vocabularies.items()}

    def train_lengths(self) -> npt.NDArray[np.int64]:
        """Return the token counts of the training sentences of both sides, without marks."""
        split = self.load("train")
        return np.concatenate([split.source.lengths - 1, split.target.lengths - 2])

    def train_tokens(self) -> int:
        """Return the target tokens of the training set that are predicted."""
        return self.load("train").predicted()

    def checkpoint_values(self) -> dict[str, Any]:
        """Return what a checkpoint must carry to be used: plain lists of tokens."""
        return {side: vocabulary.tokens for side, vocabulary in self.vocabularies.items()}

    # --- batches ---

    def batch(self, split: Split, indices: Tensor, processes: Processes) -> TranslationBatch:
        """Make this process's part of a batch.

        A process that has no sentence takes the first one with weight 0: under DDP it must take
        part in the step all the same. Nothing counts a sentence of weight 0.
        """
        whole = indices.numpy()
        part = processes.part(indices).numpy()
        loss_weight = split.predicted(part) * processes.world / split.predicted(whole)
        part = part if len(part) else whole[:1]
        return TranslationBatch(
            torch.from_numpy(split.source.padded(part, PADDING)),
            torch.from_numpy(split.target.padded(part, PADDING)),
            torch.from_numpy(part),
            loss_weight,
        )

    def _fetch(self, split: Split) -> Callable[[Tensor], TranslationBatch]:
        processes = self._processes()
        return lambda indices: self.batch(split, indices, processes)

    def _plan(self, lengths: npt.NDArray[np.int64], epoch: int) -> list[Tensor]:
        epoch = 0 if self.overfit else epoch
        if self.batch_sentences is not None:
            return by_sentences(lengths, self.batch_sentences, seed=self.seed, epoch=epoch)
        assert self.batch_tokens is not None
        return by_tokens(lengths, self.batch_tokens, seed=self.seed, epoch=epoch)

    def train_dataloader(self) -> BlockLoader[TranslationBatch]:
        """Return the training batches."""
        split = self.load("train")
        lengths = np.maximum(split.source.lengths, split.target.lengths)
        return self._training_blocks(
            lambda epoch: self._plan(lengths, epoch),
            self._fetch(split),
            lambda indices: split.predicted(indices.numpy()),
        )

    def evaluation(self, name: str) -> BlockLoader[TranslationBatch]:
        """Return the batches of a split, similar lengths together, each example once."""
        split = self.load(name)
        order = torch.from_numpy(np.argsort(-split.source.lengths, kind="stable"))
        batches = torch.split(order, self.eval_batch_sentences)
        return self._evaluation_blocks(batches, self._fetch(split))

    def val_dataloader(self) -> BlockLoader[TranslationBatch]:
        """Return the validation batches."""
        return self.train_dataloader() if self.overfit else self.evaluation("val")

    def test_dataloader(self) -> BlockLoader[TranslationBatch]:
        """Return the test batches."""
        return self.evaluation(self.test_split())

    # --- examples to look at ---

    def examples(self, count: int) -> TranslationBatch:
        """Return validation pairs of legible length, in the corpus's order; then longer ones."""
        split = self.load("val")
        lengths = torch.from_numpy(split.source.lengths)
        order = torch.argsort((lengths > LEGIBLE_TOKENS).long(), stable=True)
        return self.batch(split, order[:count], Processes())

    def labels(self, side: str, batch: TranslationBatch, count: int) -> list[list[str]]:
        """Return source words, or the target words that the decoder reads, from BEGIN on."""
        rows, left_out = {
            "source": (batch.source, (PADDING,)),
            # The end of a target predicts nothing; where it is read, it is so by way of padding.
            "target": (batch.target[:, :-1], (PADDING, END)),
        }[side]
        tokens = self.vocabularies[side].tokens
        return [[tokens[i] for i in row if i not in left_out] for row in rows[:count].tolist()]
