import math

import pytest
import sacrebleu
import torch
from torch import Tensor
from torch.nn import functional

from attnscale.metric import TokenFigures, score

N_TOKENS, VOCABULARY = 97, 11

TEXTS = [
    "A man in a blue shirt is standing on a ladder cleaning a window.",
    "Two dogs aren't playing in the snow, are they?",
    "",
    "The child's book is red.",
]
REFERENCES = [
    "A man in a blue shirt stands on a ladder and cleans a window.",
    "Two dogs are not playing in the snow, right?",
    "A girl sleeps.",
    "The child's book is red.",
]
TOKENS = [
    "a man in a blue shirt is standing on a ladder cleaning a window .",
    "two dogs are n't playing in the snow , are they ?",
    "",
    "the child &apos;s book is red .",
]
REFERENCE_TOKENS = [
    "a man in a blue shirt stands on a ladder and cleans a window .",
    "two dogs are not playing in the snow , right ?",
    "a girl sleeps .",
    "the child &apos;s book is red .",
]


# --- loss, perplexity, accuracy ---


def draw() -> tuple[Tensor, Tensor]:
    return torch.randn(N_TOKENS, VOCABULARY), torch.randint(0, VOCABULARY, (N_TOKENS,))


def figures(logits: Tensor, target: Tensor, size: int) -> dict[str, Tensor]:
    metric = TokenFigures()
    for x, t in zip(torch.split(logits, size), torch.split(target, size), strict=True):
        nll = functional.cross_entropy(x, t, reduction="sum")
        metric.update(nll, (x.argmax(dim=-1) == t).sum(), len(t))
    found: dict[str, Tensor] = metric.compute()
    return found


@pytest.mark.parametrize("size", [1, 5, 32, N_TOKENS])
def test_figures_do_not_depend_on_the_batches(size: int) -> None:
    logits, target = draw()
    found = figures(logits, target, size)
    losses = -logits.double().log_softmax(dim=-1)[torch.arange(N_TOKENS), target]
    correct = logits.argmax(dim=-1) == target
    assert set(found) == {"loss", "perplexity", "accuracy", "count"}
    assert float(found["loss"]) == pytest.approx(float(losses.mean()), rel=1e-6)
    assert float(found["perplexity"]) == pytest.approx(math.exp(float(losses.mean())), rel=1e-6)
    assert float(found["accuracy"]) == pytest.approx(int(correct.sum()) / N_TOKENS, rel=1e-12)
    assert float(found["count"]) == N_TOKENS


def test_sums_are_kept_in_double_precision() -> None:
    metric = TokenFigures()
    metric.update(torch.tensor(2.0**24), torch.tensor(2**24), 2**24)
    for _ in range(100):
        metric.update(torch.tensor(1.0), torch.tensor(0), 1)
    found = metric.compute()
    assert float(found["count"]) == 2**24 + 100
    assert float(found["loss"]) == 1.0
    assert float(found["accuracy"]) == 2**24 / (2**24 + 100)


def test_a_reset_starts_again() -> None:
    metric = TokenFigures()
    metric.update(torch.tensor(7.0), torch.tensor(1), 2)
    metric.compute()
    metric.reset()
    metric.update(torch.tensor(3.0), torch.tensor(2), 4)
    found = {name: float(value) for name, value in metric.compute().items()}
    assert found == {
        "loss": 0.75,
        "perplexity": pytest.approx(math.exp(0.75)),
        "accuracy": 0.5,
        "count": 4.0,
    }


def test_a_model_that_guesses_has_the_vocabulary_as_perplexity() -> None:
    logits, target = torch.zeros(N_TOKENS, VOCABULARY), draw()[1]
    assert float(figures(logits, target, 10)["perplexity"]) == pytest.approx(VOCABULARY, rel=1e-6)


def test_parts_add_up_over_processes() -> None:
    # What is summed over processes are the sums themselves, not the means.
    metric = TokenFigures()
    assert set(metric._reductions) == {"nll", "correct", "count"}
    for reduce in metric._reductions.values():
        assert callable(reduce)
        assert float(reduce(torch.tensor([1.0, 2.0, 4.0]))) == 7.0


# --- BLEU and chrF ---


@pytest.mark.parametrize("lowercase", [False, True])
def test_scores_are_those_of_sacrebleu(lowercase: bool) -> None:
    found = score(TEXTS, REFERENCES, TOKENS, REFERENCE_TOKENS, lowercase=lowercase).figures
    bleu = sacrebleu.corpus_bleu(TEXTS, [REFERENCES], lowercase=lowercase)
    if lowercase:
        small = [[text.lower() for text in texts] for texts in (TEXTS, REFERENCES)]
        chrf = sacrebleu.corpus_chrf(small[0], [small[1]])
    else:
        chrf = sacrebleu.corpus_chrf(TEXTS, [REFERENCES])
    tokenized = sacrebleu.corpus_bleu(TOKENS, [REFERENCE_TOKENS], tokenize="none", force=True)
    assert found == {
        "bleu": pytest.approx(bleu.score, abs=1e-9),
        "chrf": pytest.approx(chrf.score, abs=1e-9),
        "bleu_tokenized": pytest.approx(tokenized.score, abs=1e-9),
    }
    assert len({round(value, 3) for value in found.values()}) == 3
    assert 20 < min(found.values()) < max(found.values()) < 95


@pytest.mark.parametrize("lowercase", [False, True])
def test_signatures_say_how(lowercase: bool) -> None:
    made = score(TEXTS, REFERENCES, TOKENS, REFERENCE_TOKENS, lowercase=lowercase)
    assert set(made.signatures) == set(made.figures)
    parts = {name: signature.split("|") for name, signature in made.signatures.items()}
    case = "case:lc" if lowercase else "case:mixed"
    assert "tok:13a" in parts["bleu"]
    assert "tok:none" in parts["bleu_tokenized"]
    for name in ("bleu", "bleu_tokenized", "chrf"):
        assert case in parts[name]
        assert "nrefs:1" in parts[name]
        assert f"version:{sacrebleu.__version__}" in parts[name]
    assert "nc:6" in parts["chrf"]
    assert "smooth:exp" in parts["bleu"]


LOWER = "a man in a blue shirt is standing on a ladder cleaning a window ."
CASED = "A man in a blue shirt is standing on a ladder cleaning a window."


@pytest.mark.parametrize("lowercase", [False, True])
def test_case_counts_only_for_a_cased_model(lowercase: bool) -> None:
    found = score([LOWER], [CASED], [LOWER], [LOWER], lowercase=lowercase).figures
    wanted = sacrebleu.corpus_bleu([LOWER], [[CASED]], lowercase=lowercase).score
    assert found["bleu"] == pytest.approx(wanted, abs=1e-9)
    assert found["bleu_tokenized"] == pytest.approx(100.0)
    # The tokeniser of BLEU takes the full stop off by itself; only the capital may cost something.
    assert (found["bleu"] == pytest.approx(100.0)) is lowercase
    if not lowercase:
        assert 80 < found["bleu"] < 99


def test_a_perfect_translation_has_full_scores() -> None:
    made = score(REFERENCES, REFERENCES, REFERENCE_TOKENS, REFERENCE_TOKENS, lowercase=False)
    assert made.figures == {
        name: pytest.approx(100.0) for name in ("bleu", "chrf", "bleu_tokenized")
    }


def test_empty_translations_count() -> None:
    references = ["The dog sees the cat in the garden.", "A man buys a red car and a book."]
    tokens = [text.replace(".", " .") for text in references]
    whole = score(references, references, tokens, tokens, lowercase=False).figures
    half = score([references[0], ""], references, [tokens[0], ""], tokens, lowercase=False).figures
    none = score(["", ""], references, ["", ""], tokens, lowercase=False).figures
    for name, best in whole.items():
        assert best == pytest.approx(100.0)
        assert none[name] == pytest.approx(0.0)
        assert 5 < half[name] < 80
    penalty = math.exp(1 - 19 / 9)  # the references have 9 and 10 tokens
    assert half["bleu"] == pytest.approx(100 * penalty, rel=1e-9)
