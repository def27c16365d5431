"""Difference in BLEU of two systems on one test set, by paired bootstrap (Koehn 2004).

Sentences are drawn with replacement, the same for both systems, and corpus BLEU is computed anew
from the summed n-gram counts of each draw. sacreBLEU's own paired test has no interval of the
difference, takes its seed from the environment and gives a system against itself p = 1/(draws + 1);
so its counts and its formula are used here, and the test is not.

The interval says what another test set would give for these two sets of weights. It knows nothing
of what another seed would have trained: compare BLEU over seeds for that.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from attnscale.analysis.comparison import Difference
from attnscale.analysis.estimate import Interval

ORDERS = 4


def paired_bootstrap_bleu(
    hypotheses_a: Sequence[str],
    hypotheses_b: Sequence[str],
    references: Sequence[str],
    level: float = 0.95,
    *,
    lowercase: bool,
    tokenize: str = "13a",
    seed: int = 0,
    draws: int = 1000,
) -> Difference:
    """Compare the corpus BLEU (0–100) of two systems.

    The interval is the percentile interval over the draws, good for a test set of hundreds of
    sentences. The two-sided p value is twice the smaller share of draws at or beyond 0, so the two
    agree.

    Args:
        hypotheses_a: Translations of one system, in the order of the references.
        hypotheses_b: Those of the other.
        references: One reference per sentence, two or more.
        level: Of the interval, in (0, 1).
        lowercase: Whether case is ignored.
        tokenize: sacreBLEU's tokeniser; "none" for text that is tokens joined by spaces.
        seed: Of the resampling.
        draws: Number of draws, at least 1; p is never below 2/(draws + 1).

    Raises:
        ValueError: Lengths that differ, fewer than two sentences, or a level or draws out of range.
    """
    n = len(references)
    if n < 2 or len(hypotheses_a) != n or len(hypotheses_b) != n:
        raise ValueError(
            f"{len(hypotheses_a)} and {len(hypotheses_b)} translations of {n} references: "
            "give one translation for each, two or more"
        )
    if not 0 < level < 1 or draws < 1:
        raise ValueError(f"level={level}, draws={draws}: level in (0, 1) and 1 draw or more")
    a, b = (
        _counts(hypotheses, references, lowercase, tokenize)
        for hypotheses in (hypotheses_a, hypotheses_b)
    )
    weights = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=draws)
    # (draw, sentence) @ (sentence, count) -> (draw, count)
    differences = _bleu(weights @ a) - _bleu(weights @ b)
    value = float((_bleu(a.sum(axis=0)[None]) - _bleu(b.sum(axis=0)[None]))[0])
    low, high = np.quantile(differences, [(1 - level) / 2, (1 + level) / 2])
    beyond = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    p = min(1.0, 2 * (beyond + 1) / (draws + 1))
    return Difference(
        value=value,
        interval=Interval(float(low), float(high), level),
        method="paired bootstrap",
        n_a=n,
        n_b=n,
        p_value=p,
        p_adjusted=p,
        lower_is_better=False,
    )


def _counts(
    hypotheses: Sequence[str], references: Sequence[str], lowercase: bool, tokenize: str
) -> NDArray[np.int64]:
    """Return per sentence: length, length of the reference, correct n-grams, all n-grams."""
    from sacrebleu.metrics.bleu import BLEU

    # The effective order changes the score of a sentence, not its counts, and quiets a warning.
    bleu = BLEU(
        lowercase=lowercase, tokenize=tokenize, max_ngram_order=ORDERS, effective_order=True
    )
    rows = []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        s = bleu.sentence_score(hypothesis, [reference])
        rows.append([s.sys_len, s.ref_len, *s.counts, *s.totals])
    return np.array(rows, dtype=np.int64)


def _bleu(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return corpus BLEU of each row of summed counts, smoothed as sacreBLEU's default is."""
    from sacrebleu.metrics.bleu import BLEU

    scores = [
        BLEU.compute_bleu(
            correct=row[2 : 2 + ORDERS],
            total=row[2 + ORDERS :],
            sys_len=row[0],
            ref_len=row[1],
            smooth_method="exp",
            max_ngram_order=ORDERS,
        ).score
        for row in counts.tolist()
    ]
    return np.array(scores, dtype=np.float64)
