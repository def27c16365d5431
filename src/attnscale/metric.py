"""Validation and test figures: sums that do not depend on batch size, order or processes.

    mse = Σ (x̂ − x)² / N,    explained variance = 1 − Σ (x̂ − x)² / Σ (x − x̄)²

over all N components of a set, with x̄ the mean of all of them;

    loss = Σ −ln p(token) / tokens,  perplexity = exp(loss),  accuracy = correct tokens / tokens

over the target tokens of a set, END included, padding never, without label smoothing. Sums are kept
in fp64, so that the figures do not depend on how the set is cut into batches and shared over
processes. BLEU (Papineni et al. 2002) and chrF (Popović 2015) are sacreBLEU's (Post 2018), scale
0–100.
"""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torchmetrics import Metric


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


class Scores(NamedTuple):
    """Corpus scores with the signatures that say how they were computed.

    Attributes:
        figures: ``bleu`` and ``chrf`` on text as people write it, ``bleu_tokenized`` on the tokens
            of the model, as papers on this corpus report it; 0–100.
        signatures: sacreBLEU's signature of each.
    """

    figures: dict[str, float]
    signatures: dict[str, str]


def score(
    texts: Sequence[str],
    references: Sequence[str],
    tokens: Sequence[str],
    reference_tokens: Sequence[str],
    *,
    lowercase: bool,
) -> Scores:
    """Score a corpus.

    Args:
        texts: Translations, detokenised.
        references: References as they are in the file.
        tokens: Translations as tokens joined by spaces.
        reference_tokens: References, tokenised the same way.
        lowercase: Whether case is ignored, because the model is lower-cased; the signature says so.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    bleu, chrf = BLEU(lowercase=lowercase), CHRF(lowercase=lowercase)
    tokenized = BLEU(lowercase=lowercase, tokenize="none", force=True)
    figures = {
        "bleu": bleu.corpus_score(list(texts), [list(references)]).score,
        "chrf": chrf.corpus_score(list(texts), [list(references)]).score,
        "bleu_tokenized": tokenized.corpus_score(list(tokens), [list(reference_tokens)]).score,
    }
    metrics = {"bleu": bleu, "chrf": chrf, "bleu_tokenized": tokenized}
    return Scores(figures, {name: str(m.get_signature()) for name, m in metrics.items()})
