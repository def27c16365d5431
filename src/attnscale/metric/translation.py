"""Figures of a translation model.

    loss = Σ −ln p(token) / tokens,  perplexity = exp(loss),  accuracy = correct tokens / tokens

over the target tokens of a set, END included, padding never, without label smoothing. Sums are kept
in fp64, so that the figures do not depend on how the set is cut into batches and shared over
processes. BLEU (Papineni et al. 2002) and chrF (Popović 2015) are sacreBLEU's (Post 2018), scale
0–100.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric


class TokenFigures(Metric):
    """Loss, perplexity and accuracy per target token."""

    full_state_update = False
    nll: Tensor
    correct: Tensor
    count: Tensor

    def __init__(self, **kwargs: Any) -> None:
        """Create the sums."""
        super().__init__(**kwargs)
        for name in ("nll", "correct", "count"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

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
