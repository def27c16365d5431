"""Validation and test figures: sums that do not depend on batch size, order or processes.

    mse = Σ (x̂ − x)² / N,    explained variance = 1 − Σ (x̂ − x)² / Σ (x − x̄)²

over all N components of a set, with x̄ the mean of all of them;

    loss = Σ −ln p(token) / tokens,  perplexity = exp(loss),  accuracy = correct tokens / tokens

over the target tokens of a set, END included, padding never, without label smoothing. Sums are kept
in fp64, so that the figures do not depend on how the set is cut into batches and shared over
processes. BLEU (Papineni et al. 2002) and chrF (Popović 2015) are sacreBLEU's (Post 2018), scale
0–100. BLEU counts words, so its tokeniser follows the target language; and it is 0 without a common
sequence of four of them, so what it rests on is told with it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torchmetrics import Metric

from attnscale.checks import check_choice

BLEU_TOKENIZERS = ("13a", "intl", "zh", "char", "ja-mecab", "ko-mecab")
"""Those of sacreBLEU that need no download."""
BLEU_BY_LANGUAGE = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
"""What sacreBLEU takes for a language."""
FULL_BLEU = 99.5
MIN_REFERENCES = 100
"""The smallest test set of Koehn 2004, which tells only large differences in BLEU apart."""


class Sums(Metric):
    """A metric whose states are sums in fp64."""

    full_state_update = False
    sums: ClassVar[tuple[str, ...]]

    def __init__(self) -> None:
        """Create the sums."""
        super().__init__()
        for name in self.sums:
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")


class ReconstructionError(Sums):
    """Mean squared error and explained variance of a reconstruction."""

    sums = ("squared_error", "total", "squares", "count")
    squared_error: Tensor
    total: Tensor
    squares: Tensor
    count: Tensor

    def update(self, prediction: Float[Tensor, "..."], target: Float[Tensor, "..."]) -> None:
        """Add a batch; both tensors have the same shape."""
        wide = target.double()
        self.squared_error += (prediction.double() - wide).square().sum()
        self.total += wide.sum()
        self.squares += wide.square().sum()
        self.count += target.numel()

    def compute(self) -> dict[str, Tensor]:
        """Return ``loss`` (the MSE), ``explained_variance`` and ``count`` (components)."""
        spread = self.squares - self.total.square() / self.count
        return {
            "loss": self.squared_error / self.count,
            "explained_variance": 1 - self.squared_error / spread,
            "count": self.count,
        }


class TokenFigures(Sums):
    """Loss, perplexity and accuracy per target token."""

    sums = ("nll", "correct", "count")
    nll: Tensor
    correct: Tensor
    count: Tensor

    def update(self, nll: Tensor, correct: Tensor, count: int) -> None:
        """Add a batch: summed negative log-likelihood, correct tokens, tokens."""
        self.nll += nll.double()
        self.correct += correct.double()
        self.count += count

    def compute(self) -> dict[str, Tensor]:
        """Return ``loss`` (nats per token), ``perplexity``, ``accuracy`` and ``count`` (tokens)."""
        loss = self.nll / self.count
        return {
            "loss": loss,
            "perplexity": loss.exp(),
            "accuracy": self.correct / self.count,
            "count": self.count,
        }


class LossByLength(Metric):
    """The loss per target token, for sentences of each class of lengths by itself."""

    full_state_update = False
    nll: Tensor
    count: Tensor

    def __init__(self, edges: Sequence[int]) -> None:
        """Create the sums.

        Args:
            edges: Longest sentence of each class but the last, in tokens, ascending.
        """
        super().__init__()
        self.edges = torch.tensor(edges)
        for name in ("nll", "count"):
            zeros = torch.zeros(len(edges) + 1, dtype=torch.float64)
            self.add_state(name, zeros, dist_reduce_fx="sum")

    def update(self, nll: Float[Tensor, " token"], lengths: Int[Tensor, " token"]) -> None:
        """Add a batch: −ln p of each token, and the tokens of its sentence, without marks."""
        classes = torch.bucketize(lengths, self.edges.to(lengths.device))
        self.nll.index_add_(0, classes, nll.double())
        self.count.index_add_(0, classes, torch.ones_like(nll, dtype=torch.float64))

    def compute(self) -> dict[str, float]:
        """Return ``loss_length_1_9``, ``loss_length_10_up`` and so on; no class without tokens."""
        first = [1, *(int(edge) + 1 for edge in self.edges)]
        last = [*map(int, self.edges), "up"]
        losses = zip(first, last, (self.nll / self.count).tolist(), strict=True)
        return {f"loss_length_{a}_{b}": loss for a, b, loss in losses if not math.isnan(loss)}


def bleu_tokenizer(language: str, *, unspaced: bool, choice: str | None = None) -> str:
    """Return the name of sacreBLEU's tokeniser for text in a language.

    Args:
        language: Its code, such as "zh" or "zh-TW".
        unspaced: Whether the text has no spaces between words.
        choice: One to take whatever the language is, or None.

    Raises:
        ValueError: If the one that is choice does not exist, or is not installed.
    """
    from sacrebleu.metrics.bleu import BLEU

    if choice is not None:
        check_choice("task.bleu_tokenizer", choice, BLEU_TOKENIZERS)
    fallback = "char" if unspaced else "13a"
    name = choice or BLEU_BY_LANGUAGE.get(language.replace("_", "-").partition("-")[0], fallback)
    try:
        BLEU(tokenize=name)
    except RuntimeError as error:
        if choice is None:
            return "char"
        raise ValueError(
            f"task.bleu_tokenizer={name}: not installed; pip install 'sacrebleu[{name[:2]}]'"
        ) from error
    return name


class Scores(NamedTuple):
    """Corpus scores with the signatures that say how they were computed.

    Attributes:
        figures: ``bleu`` and ``chrf`` on text as people write it, ``bleu_tokenized`` on the words
            of the model, as papers on this corpus report it; 0–100. ``bleu_ceiling`` is the BLEU of
            a perfect model, ``bleu_references`` the number of references of four tokens or more.
        signatures: sacreBLEU's signature of each score.
    """

    figures: dict[str, float]
    signatures: dict[str, str]


def score(
    texts: Sequence[str],
    references: Sequence[str],
    tokens: Sequence[str],
    reference_tokens: Sequence[str],
    rejoined: Sequence[str],
    *,
    lowercase: bool,
    tokenize: str,
) -> Scores:
    """Score a corpus.

    Args:
        texts: Translations, detokenised.
        references: References as people write them.
        tokens: Translations as words joined by spaces.
        reference_tokens: References, tokenised the same way.
        rejoined: References tokenised and detokenised: what a perfect model gives.
        lowercase: Whether case is ignored, because the model is lower-cased; the signature says so.
        tokenize: sacreBLEU's tokeniser for the texts.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    bleu = BLEU(lowercase=lowercase, tokenize=tokenize)
    chrf = CHRF(lowercase=lowercase)
    tokenized = BLEU(lowercase=lowercase, tokenize="none", force=True)
    lengths = [len(bleu.tokenizer(text).split()) for text in references]
    figures = {
        "bleu": bleu.corpus_score(list(texts), [list(references)]).score,
        "chrf": chrf.corpus_score(list(texts), [list(references)]).score,
        "bleu_tokenized": tokenized.corpus_score(list(tokens), [list(reference_tokens)]).score,
    }
    metrics = {"bleu": bleu, "chrf": chrf, "bleu_tokenized": tokenized}
    signatures = {name: str(m.get_signature()) for name, m in metrics.items()}
    figures |= {
        "bleu_ceiling": bleu.corpus_score(list(rejoined), [list(references)]).score,
        "bleu_references": float(sum(n >= bleu.max_ngram_order for n in lengths)),
    }
    return Scores(figures, signatures)


def bleu_remark(metrics: Mapping[str, float]) -> str | None:
    """Return what must be known to read a run's test BLEU, in a line, or None.

    Args:
        metrics: The run's figures by metric name; those of earlier runs may lack the two it is of.
    """
    ceiling = metrics.get("test/bleu_ceiling", math.nan)
    count = metrics.get("test/bleu_references", math.nan)
    parts = []
    if count == 0:
        parts.append("0 whatever the model, as no reference has four tokens")
    elif ceiling < FULL_BLEU:
        parts.append(f"a perfect model has {ceiling:.1f}, what data.tokenizer leaves of the text")
    if 0 < count < MIN_REFERENCES:
        parts.append(
            f"rests on the {count:.0f} references of four tokens or more, and says little below "
            f"{MIN_REFERENCES}"
        )
    return "; ".join(parts) or None


def bleu_remarks(runs: Iterable[Mapping[str, float]]) -> list[str]:
    """Return the remarks on some runs' test BLEU, each once and as a sentence."""
    remarks = sorted({remark for metrics in runs if (remark := bleu_remark(metrics))})
    return [f"BLEU: {remark}." for remark in remarks]
