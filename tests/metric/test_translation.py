import importlib.util
import math

import pytest
import sacrebleu
import torch
from torch import Tensor
from torch.nn import functional

from attnscale.bleu import Scores, bleu_remark, bleu_remarks, bleu_tokenizer
from attnscale.bleu import score as score_corpus
from attnscale.metric import LossByLength, TokenFigures

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


def test_the_loss_of_each_class_of_lengths_is_that_of_its_tokens() -> None:
    metric = LossByLength([9, 13])
    for nll, lengths in (([1.0, 2.0, 4.0], [1, 9, 10]), ([8.0], [13]), ([5.0, 6.0], [9, 9])):
        metric.update(torch.tensor(nll), torch.tensor(lengths))
    assert metric.compute() == {"loss_length_1_9": 3.5, "loss_length_10_13": 6.0}
    metric.update(torch.tensor([3.0]), torch.tensor([14]))
    assert metric.compute()["loss_length_14_up"] == 3.0


# --- BLEU and chrF ---


def score(
    texts: list[str],
    references: list[str],
    *tokens: list[str],
    lowercase: bool,
    tokenize: str = "13a",
) -> Scores:
    """Score where a perfect model gives the references."""
    return score_corpus(
        texts, references, tokens[0], tokens[1], references, lowercase=lowercase, tokenize=tokenize
    )


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
        "bleu_ceiling": pytest.approx(100),
        "bleu_references": 4.0,
    }
    scores = [found[name] for name in ("bleu", "chrf", "bleu_tokenized")]
    assert len({round(value, 3) for value in scores}) == 3
    assert 20 < min(scores) < max(scores) < 95


@pytest.mark.parametrize("lowercase", [False, True])
def test_signatures_say_how(lowercase: bool) -> None:
    made = score(TEXTS, REFERENCES, TOKENS, REFERENCE_TOKENS, lowercase=lowercase)
    assert set(made.signatures) == {"bleu", "chrf", "bleu_tokenized"}
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
    for name in ("bleu", "chrf", "bleu_tokenized", "bleu_ceiling"):
        assert made.figures[name] == pytest.approx(100.0)


def test_empty_translations_count() -> None:
    references = ["The dog sees the cat in the garden.", "A man buys a red car and a book."]
    tokens = [text.replace(".", " .") for text in references]
    whole = score(references, references, tokens, tokens, lowercase=False).figures
    half = score([references[0], ""], references, [tokens[0], ""], tokens, lowercase=False).figures
    none = score(["", ""], references, ["", ""], tokens, lowercase=False).figures
    for name in ("bleu", "chrf", "bleu_tokenized"):
        assert whole[name] == pytest.approx(100.0)
        assert none[name] == pytest.approx(0.0)
        assert 5 < half[name] < 80
    penalty = math.exp(1 - 19 / 9)  # the references have 9 and 10 tokens
    assert half["bleu"] == pytest.approx(100 * penalty, rel=1e-9)


INSTALLED = importlib.util.find_spec("MeCab") is not None


@pytest.mark.parametrize(
    ("language", "unspaced", "name"),
    [
        ("en", False, "13a"),
        ("zh", True, "zh"),
        ("zh-TW", True, "zh"),
        ("zh_CN", False, "zh"),
        ("ja", True, "ja-mecab" if INSTALLED else "char"),
        ("th", True, "char"),
        ("jp", True, "char"),
    ],
)
def test_bleu_counts_what_is_a_word_in_the_language(
    language: str, unspaced: bool, name: str
) -> None:
    assert bleu_tokenizer(language, unspaced=unspaced) == name
    assert bleu_tokenizer(language, unspaced=unspaced, choice="intl") == "intl"


def test_a_tokenizer_that_there_is_not_is_named() -> None:
    with pytest.raises(ValueError, match=r"task\.bleu_tokenizer=14a: allowed are 13a, .*char"):
        bleu_tokenizer("en", unspaced=False, choice="14a")


@pytest.mark.skipif(INSTALLED, reason="MeCab is installed")
def test_a_tokenizer_that_is_not_installed_is_named() -> None:
    with pytest.raises(ValueError, match=r"ja-mecab: not installed; pip install 'sacrebleu\[ja\]"):
        bleu_tokenizer("ja", unspaced=True, choice="ja-mecab")


def test_one_wrong_character_leaves_most_of_a_japanese_score() -> None:
    references = ["彼女はよく海が好きだ。", "犬は今日音楽が好きだ。"]
    texts = [text.replace("好", "空") for text in references]
    by = {
        name: score(texts, references, texts, references, lowercase=False, tokenize=name).figures
        for name in ("13a", "char")
    }
    assert by["13a"]["bleu"] == 0.0
    # 10 of 11 characters, 8 of 10 pairs, 6 of 9 and 4 of 8 longer ones of each sentence are right.
    right = 10 / 11 * 8 / 10 * 6 / 9 * 4 / 8
    assert by["char"]["bleu"] == pytest.approx(100 * right ** (1 / 4), rel=1e-9)


def test_the_ceiling_is_what_the_references_have_once_split_and_joined() -> None:
    rejoined = [text.replace(" the ", " a ").replace(" is ", " was ") for text in REFERENCES]
    figures = score_corpus(
        REFERENCES, REFERENCES, TOKENS, TOKENS, rejoined, lowercase=False, tokenize="13a"
    ).figures
    assert figures["bleu"] == pytest.approx(100)
    ceiling = sacrebleu.corpus_bleu(rejoined, [REFERENCES]).score
    assert figures["bleu_ceiling"] == pytest.approx(ceiling)
    assert ceiling < 90


def test_references_of_fewer_than_four_tokens_bear_no_bleu() -> None:
    references = ["A dog.", "Two dogs.", "A dog sleeps."]  # the last has a full stop of its own
    figures = score(references, references, references, references, lowercase=False).figures
    assert figures["bleu_references"] == 1.0
    two_words = score(["a dog"], ["a dog"], ["a dog"], ["a dog"], lowercase=False).figures
    assert (two_words["bleu"], two_words["bleu_references"]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("ceiling", "count", "part"),
    [
        (100.0, 300.0, None),
        (99.6, 100.0, None),
        (99.4, 300.0, "a perfect model has 99.4"),
        (100.0, 99.0, "rests on the 99 references of four tokens or more"),
        (0.0, 0.0, "0 whatever the model, as no reference has four tokens"),
    ],
)
def test_what_must_be_known_to_read_bleu_is_said(
    ceiling: float, count: float, part: str | None
) -> None:
    figures = {"test/bleu_ceiling": ceiling, "test/bleu_references": count}
    remark = bleu_remark(figures)
    assert (remark is None) is (part is None)
    assert part is None or str(remark).startswith(part)
    assert len(bleu_remarks([figures, figures, {}])) == (part is not None)
    assert bleu_remark({"test/bleu": 12.0}) is None
