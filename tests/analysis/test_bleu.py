import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU

from attnscale.analysis.bleu import paired_bootstrap_bleu
from attnscale.analysis.comparison import verdict

SENTENCES, WORDS = 97, 11
VOCABULARY = [f"Word{i}" for i in range(53)]


def corpus(*, wrong: float, seed: int) -> tuple[list[str], list[str]]:
    """Return translations, in which that share of the words is wrong, and their references."""
    rng = np.random.default_rng(0)
    references = rng.choice(VOCABULARY, size=(SENTENCES, WORDS))
    rng = np.random.default_rng(seed)
    noise = rng.choice(VOCABULARY, size=references.shape)
    hypotheses = np.where(rng.random(references.shape) < wrong, noise, references)
    return [" ".join(row) for row in hypotheses], [" ".join(row) for row in references]


GOOD, REFERENCES = corpus(wrong=0.2, seed=1)
AS_GOOD, _ = corpus(wrong=0.2, seed=2)
BAD, _ = corpus(wrong=0.3, seed=3)


def bleu(hypotheses: list[str], tokenize: str = "13a") -> float:
    return float(BLEU(tokenize=tokenize).corpus_score(hypotheses, [REFERENCES]).score)


def test_a_system_does_not_differ_from_itself() -> None:
    found = paired_bootstrap_bleu(GOOD, GOOD, REFERENCES, lowercase=False)
    assert found.interval is not None
    assert (found.value, found.interval.low, found.interval.high, found.p_value) == (0, 0, 0, 1)
    assert verdict(found) == "within noise"


def test_a_better_system_is_found() -> None:
    found = paired_bootstrap_bleu(GOOD, BAD, REFERENCES, lowercase=False)
    assert found.value == pytest.approx(bleu(GOOD) - bleu(BAD))
    assert found.interval is not None
    assert 0 < found.interval.low < found.value < found.interval.high
    assert found.p_value == found.p_adjusted == pytest.approx(2 / 1001)
    assert (verdict(found), found.better, found.method) == ("higher", True, "paired bootstrap")
    assert (found.n_a, found.n_b) == (SENTENCES, SENTENCES)

    other_way = paired_bootstrap_bleu(BAD, GOOD, REFERENCES, lowercase=False)
    assert other_way.value == -found.value
    assert other_way.p_value == found.p_value
    assert (verdict(other_way), other_way.better) == ("lower", False)


def test_a_system_as_good_is_not() -> None:
    found = paired_bootstrap_bleu(GOOD, AS_GOOD, REFERENCES, lowercase=False)
    assert verdict(found) == "within noise"
    assert found.p_value is not None
    assert 0.05 < found.p_value <= 1


def test_the_interval_is_that_of_sacrebleu_on_drawn_sentences() -> None:
    """The same draws, scored from the texts."""
    draws, level, n = 20, 0.5, SENTENCES
    found = paired_bootstrap_bleu(
        GOOD, BAD, REFERENCES, level, lowercase=False, seed=7, draws=draws
    )
    weights = np.random.default_rng(7).multinomial(n, np.full(n, 1 / n), size=draws)
    differences = []
    for row in weights:
        chosen = np.repeat(np.arange(n), row)
        references = [[REFERENCES[i] for i in chosen]]
        a, b = (
            BLEU().corpus_score([system[i] for i in chosen], references).score
            for system in (GOOD, BAD)
        )
        differences.append(a - b)
    assert found.interval is not None
    assert found.interval.level == level
    assert found.interval.low == pytest.approx(np.quantile(differences, 0.25))
    assert found.interval.high == pytest.approx(np.quantile(differences, 0.75))


def test_pairing_narrows_the_interval() -> None:
    """Two systems that share most of their translations differ by less than their own noise."""
    close = [*GOOD[:90], *AS_GOOD[90:]]
    near = paired_bootstrap_bleu(GOOD, close, REFERENCES, lowercase=False).interval
    far = paired_bootstrap_bleu(GOOD, AS_GOOD, REFERENCES, lowercase=False).interval
    assert near is not None
    assert far is not None
    assert near.high - near.low < (far.high - far.low) / 2


def test_case_and_tokeniser_are_sacrebleus() -> None:
    lower = [text.lower() for text in GOOD]
    found = paired_bootstrap_bleu(lower, GOOD, REFERENCES, lowercase=True, draws=10)
    assert found.value == 0
    found = paired_bootstrap_bleu(lower, GOOD, REFERENCES, lowercase=False, draws=10)
    assert found.value == pytest.approx(bleu(lower) - bleu(GOOD)) != 0

    dotted = [text + "." for text in GOOD]
    for tokenize in ("13a", "none"):
        found = paired_bootstrap_bleu(
            dotted, GOOD, REFERENCES, lowercase=False, tokenize=tokenize, draws=10
        )
        assert found.value == pytest.approx(bleu(dotted, tokenize=tokenize) - bleu(GOOD))


def test_empty_translations_are_scored() -> None:
    empty = [""] * SENTENCES
    found = paired_bootstrap_bleu(empty, GOOD, REFERENCES, lowercase=False, draws=10)
    assert found.value == pytest.approx(-bleu(GOOD))


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ValueError, match="one translation for each"):
        paired_bootstrap_bleu(GOOD[1:], GOOD, REFERENCES, lowercase=False)
    with pytest.raises(ValueError, match="one translation for each"):
        paired_bootstrap_bleu(GOOD, GOOD[1:], REFERENCES, lowercase=False)
    with pytest.raises(ValueError, match="two or more"):
        paired_bootstrap_bleu(GOOD[:1], GOOD[:1], REFERENCES[:1], lowercase=False)
    with pytest.raises(ValueError, match="draws=0"):
        paired_bootstrap_bleu(GOOD, BAD, REFERENCES, lowercase=False, draws=0)
    with pytest.raises(ValueError, match="level=95"):
        paired_bootstrap_bleu(GOOD, BAD, REFERENCES, 95, lowercase=False)
