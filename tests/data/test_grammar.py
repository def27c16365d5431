import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import pytest
import sacrebleu

from attnscale.data.toy_translation import PEOPLE, THINGS, ToyTranslation, draw_pairs

Build = Callable[[Sequence[str], Sequence[str]], Mapping[str, str]]

SEED = 20
FINITE = """
    sieht sehen kauft kaufen sucht suchen malt malen findet finden trägt tragen schläft schlafen
    lacht lachen singt singen wartet warten hat haben will wollen kann können
"""
VERBS = FINITE.split()


@cache
def drawn() -> list[tuple[str, str]]:
    return draw_pairs(3000, SEED)


def toy(
    source: str = "de", target: str = "en", n_train: int = 2000, test: str | None = None
) -> ToyTranslation:
    return ToyTranslation(
        n_train=n_train,
        n_val=150,
        n_test=300,
        corpus_seed=SEED,
        source=source,
        target=target,
        test=test,
        tokenizer="moses",
        lowercase=False,
        min_frequency=1,
        max_length=60,
        too_long="skip",
        batch_tokens=500,
        batch_sentences=None,
        eval_batch_sentences=50,
        seed=0,
    )


def words(text: str) -> list[str]:
    return re.findall(r"[\w']+|[.,]", text)


# --- the grammar ---


def test_a_seed_draws_the_same_pairs() -> None:
    assert draw_pairs(200, 7) == draw_pairs(200, 7)
    assert draw_pairs(200, 7) == draw_pairs(300, 7)[:200]
    assert draw_pairs(200, 7) != draw_pairs(200, 8)


def test_no_german_sentence_comes_twice() -> None:
    assert len(drawn()) == len({german for german, _ in drawn()}) == 3000


def test_sentences_are_of_several_lengths() -> None:
    lengths = {len(words(german)) for german, _ in drawn()}
    assert min(lengths) <= 4
    assert max(lengths) >= 18
    assert len(lengths) >= 12


def test_sentences_start_with_a_capital_and_end_with_a_full_stop() -> None:
    for pair in drawn():
        for text in pair:
            assert text[0].isupper()
            assert text.endswith(".")
            assert "  " not in text
            assert text == text.strip()


ALLOWED = {
    "m": {"der", "den", "ein", "einen"},
    "f": {"die", "eine"},
    "n": {"das", "ein"},
}


def test_articles_agree_with_the_noun() -> None:
    singular = {n.german: n.gender for n in (*PEOPLE, *THINGS) if n.german != n.german_plural}
    plural = {n.german_plural for n in (*PEOPLE, *THINGS) if n.german != n.german_plural}
    articles = set.union(*ALLOWED.values())
    seen = set()
    for german, _ in drawn():
        tokens = [token.lower() if i == 0 else token for i, token in enumerate(words(german))]
        for position, token in enumerate(tokens):
            before = tokens[max(0, position - 2) : position]
            article = next((word for word in reversed(before) if word in articles), None)
            if token in singular:
                assert article in ALLOWED[singular[token]], german
                seen.add((article, singular[token]))
            elif token in plural and before and before[-1] in articles:
                assert before[-1] == "die", german
    assert seen == {(word, gender) for gender, allowed in ALLOWED.items() for word in allowed}


def test_only_objects_take_the_accusative() -> None:
    subjects = {noun.german for noun in PEOPLE}
    for german, _ in drawn():
        for article, noun in re.findall(
            r"\b([Dd]er|[Dd]en|[Ee]in|[Ee]inen) (?:\w+ )?(\w+)", german
        ):
            if noun in {"Hund", "Ball", "Apfel", "Brief"}:
                assert article in ("den", "einen"), german
            elif noun in subjects and noun in {"Mann", "Lehrer", "Koch"}:
                assert article.lower() in ("der", "ein"), german


@pytest.mark.parametrize(
    ("shape", "absent"),
    [
        (r"\bder kleine Mann\b", r"\b(der kleiner|ein kleine|der kleinen) Mann\b"),
        (r"\bein(en)? roten Hund\b", r"\bein(en)? roter? Hund\b"),
        (r"\b[Ee]in altes Kind\b", r"\b[Ee]in alte Kind\b"),
        (r"\bdas alte Haus\b", r"\bdas altes Haus\b"),
        (r"\bdie neuen Bücher\b", r"\bdie neue Bücher\b"),
    ],
)
def test_adjectives_agree(shape: str, absent: str) -> None:
    texts = [german[0].lower() + german[1:] for german, _ in draw_pairs(12000, SEED)]
    assert any(re.search(shape, text) for text in texts)
    assert not any(re.search(absent, text) for text in texts)


def test_the_verb_is_last_in_a_subordinate_clause() -> None:
    clauses = [german.split(", ")[1] for german, _ in drawn() if ", " in german]
    assert len(clauses) > 600
    for clause in clauses:
        assert clause.split()[0] in ("weil", "wenn")
        assert clause.rstrip(".").split()[-1] in VERBS, clause


def test_the_verb_is_second_in_a_main_clause() -> None:
    for german, _ in drawn():
        if german.split()[0] in ("Heute", "Oft", "Jetzt", "Morgens"):
            assert german.split()[1] in VERBS, german


def test_english_negation_has_a_do() -> None:
    negated = [english for german, english in drawn() if german.count("nicht") == 1]
    assert len(negated) > 100
    assert all(len(re.findall(r"\b(do|does) not\b", english)) == 1 for english in negated)


def test_english_articles_follow_the_sound() -> None:
    for _, english in drawn():
        assert not re.search(r"\b[Aa] [aeiou]|\b[Aa]n [^aeiou]", english), english


# --- the corpus ---


@pytest.mark.parametrize(("source", "target"), [("de", "en"), ("en", "de")])
def test_both_directions_load(source: str, target: str) -> None:
    data = toy(source, target, n_train=300)
    data.setup("fit")
    data.setup("test")
    assert {name: len(split.source) for name, split in data.splits.items()} == {
        "train": 300,
        "val": 150,
        "test": 300,
    }
    german = data.splits["val"].source_text if source == "de" else data.splits["val"].target_text
    assert any(re.search(r"\b([Dd]er|[Dd]ie|[Dd]as)\b", text) for text in german)
    assert not any(re.search(r"\b[Tt]he\b", text) for text in german)
    assert sum(len(block) for block in data.train_dataloader()) > 3


def test_directions_are_the_same_pairs() -> None:
    there, back = toy().pairs("test"), toy("en", "de").pairs("test")
    assert there == back[::-1]


def test_no_source_sentence_is_in_two_splits() -> None:
    for languages in (("de", "en"), ("en", "de")):
        data = toy(*languages, n_train=4000)
        sources = {split: data.pairs(split)[0] for split in ("train", "val", "test")}
        for held in ("val", "test"):
            assert not set(sources[held]) & set(sources["train"]), languages
        assert not set(sources["val"]) & set(sources["test"]), languages


def test_the_split_for_testing_can_be_named() -> None:
    assert toy().test_split() == "test"
    assert toy(test="val").test_split() == "val"
    with pytest.raises(ValueError, match=r"data\.test=test_2016: this corpus has train, val, test"):
        toy(test="test_2016")


@pytest.mark.parametrize(("source", "target"), [("de", "fr"), ("fr", "en")])
def test_there_are_two_languages(source: str, target: str) -> None:
    with pytest.raises(ValueError, match="this corpus has de and en"):
        toy(source, target)


def test_sizes_are_checked() -> None:
    with pytest.raises(ValueError, match=r"data\.n_train=0: must be at least 1"):
        toy(n_train=0)
    with pytest.raises(ValueError, match=r"data\.split=dev"):
        toy().pairs("dev")


# --- what a dictionary makes of it ---


def by_dice(first: Sequence[str], second: Sequence[str]) -> Mapping[str, str]:
    together: dict[str, Counter[str]] = defaultdict(Counter)
    alone: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for a, b in zip(first, second, strict=True):
        x, y = set(words(a)), set(words(b))
        alone[0].update(x)
        alone[1].update(y)
        for word in x:
            together[word].update(y)
    return {
        word: max(others, key=lambda o: 2 * others[o] / (alone[0][word] + alone[1][o]))
        for word, others in together.items()
    }


def by_ibm_model_1(first: Sequence[str], second: Sequence[str]) -> Mapping[str, str]:
    pairs = [(words(a), words(b)) for a, b in zip(first, second, strict=True)]
    likely: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(lambda: 1.0))
    for _ in range(5):
        counts: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for x, y in pairs:
            for other in y:
                total = math.fsum(likely[word][other] for word in x)
                for word in x:
                    counts[word][other] += likely[word][other] / total
        likely = defaultdict(lambda: defaultdict(float))
        for word, others in counts.items():
            whole = sum(others.values())
            for other, count in others.items():
                likely[word][other] = count / whole
    return {word: max(others, key=lambda o: others[o]) for word, others in likely.items()}


@pytest.mark.parametrize("build", [by_dice, by_ibm_model_1])
@pytest.mark.parametrize(("source", "target"), [("de", "en"), ("en", "de")])
def test_a_dictionary_does_not_translate(build: Build, source: str, target: str) -> None:
    data = toy(source, target)
    dictionary = build(*data.pairs("train"))
    first, second = data.pairs("test")
    made = [" ".join(dictionary.get(word, word) for word in words(text)) for text in first]
    references = [" ".join(words(text)) for text in second]
    found = sacrebleu.corpus_bleu(made, [references], tokenize="none", force=True).score
    assert 5 < found < 60, f"{source}→{target}: a dictionary in source order has BLEU {found:.1f}"
