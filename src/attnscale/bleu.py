"""BLEU (Papineni et al. 2002) and chrF (Popović 2015), both sacreBLEU's (Post 2018), 0–100.

BLEU counts words, so its tokeniser follows the target language; and it is 0 without a common
sequence of four of them, so what it rests on is told with it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from attnscale.checks import check_choice

BLEU_TOKENIZERS = ("13a", "intl", "zh", "char", "ja-mecab", "ko-mecab")
"""Those of sacreBLEU that need no download."""
BLEU_BY_LANGUAGE = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
"""What sacreBLEU takes for a language."""
FULL_BLEU = 99.5
MIN_REFERENCES = 100
"""The smallest test set of Koehn 2004, which tells only large differences in BLEU apart."""


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
