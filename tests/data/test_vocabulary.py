import builtins
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from attnscale.data.vocabulary import (
    BEGIN,
    END,
    PADDING,
    SPECIALS,
    TOKENIZERS,
    UNKNOWN,
    Preprocessing,
    Vocabulary,
)


def build(sentences: Sequence[Sequence[str]], *, min_frequency: int) -> Vocabulary:
    counts = Counter(token for sentence in sentences for token in sentence)
    return Vocabulary.from_counts(counts, min_frequency=min_frequency)


SENTENCES = [["a", "b", "c", "b"], ["b", "c", "d"], ["e", "b"]]
WRITTEN = {
    "en": (
        "The dog doesn't bark, does it?",
        "He said: \"I can't see John's red car!\"",
        "A man (in a blue shirt) is standing on a ladder; it's 3.5 metres high.",
        "Two well-known women aren't waiting...",
        "Ham & eggs cost < 5 and > 3 [or so] | less.",
        "Ham &amp; eggs cost &lt; 5 &#39;or so&quot;; R&D; too.",
        "&amp; " * 999 + "&amp;",
    ),
    "de": (
        "Der Hund bellt nicht, oder?",
        "Ein Mann (mit blauem Hemd) steht auf einer Leiter; sie ist 3,5 Meter hoch.",
        "Wie geht es dir, Anna?",
        "Die Ärztin grüßt schöne Mädchen!",
    ),
    "fr": ("L'homme n'est pas là.", "C'est l'été, d'accord."),
}


def test_the_special_tokens_come_first() -> None:
    made = build(SENTENCES, min_frequency=1)
    assert tuple(made.tokens[:4]) == SPECIALS
    assert [made.tokens[i] for i in (UNKNOWN, PADDING, BEGIN, END)] == list(SPECIALS)
    assert sorted(made.tokens[4:]) == ["a", "b", "c", "d", "e"]
    assert len(made) == 9


def test_frequent_tokens_come_first() -> None:
    tokens = build(SENTENCES, min_frequency=1).tokens
    assert tokens[4:6] == ["b", "c"]
    assert build(SENTENCES[::-1], min_frequency=1).tokens == tokens


@pytest.mark.parametrize(
    ("least", "kept"), [(1, ["b", "c", "a", "d", "e"]), (2, ["b", "c"]), (3, ["b"]), (5, [])]
)
def test_rare_tokens_are_left_out(least: int, kept: list[str]) -> None:
    assert build(SENTENCES, min_frequency=least).tokens[4:] == kept


def test_a_frequency_below_one_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"data\.min_frequency=0"):
        build(SENTENCES, min_frequency=0)


def test_numbers_and_back() -> None:
    made = build(SENTENCES, min_frequency=1)
    tokens = list("bedacc")
    numbers = made.encode(tokens)
    assert len(set(numbers)) == 5
    assert min(numbers) >= len(SPECIALS)
    assert made.decode(numbers) == tokens


def test_what_is_not_known_is_unknown() -> None:
    made = build(SENTENCES, min_frequency=2)
    assert made.encode(["b", "never", "a"]) == [made.index["b"], UNKNOWN, UNKNOWN]
    assert made.encode([]) == []


def test_decoding_leaves_out_special_tokens_and_stops_at_the_end() -> None:
    made = build(SENTENCES, min_frequency=1)
    b, c = made.encode(["b", "c"])
    assert made.decode([BEGIN, b, UNKNOWN, PADDING, c, END, b, c]) == ["b", "c"]
    assert made.decode([END, b]) == []
    assert made.decode([b, c]) == ["b", "c"]


def test_a_word_that_is_spelt_as_a_mark_has_a_number_of_its_own() -> None:
    words = ["<pad>", "a", "<eos>", "<unk>", "<bos>"]
    vocabulary = build([words] * 9, min_frequency=1)
    numbers = vocabulary.encode(words)
    assert sorted(numbers) == [4, 5, 6, 7, 8]
    assert vocabulary.decode(numbers) == words
    # One that is stored without such words, as earlier ones are, does not know them.
    stored = Vocabulary([*SPECIALS, "a"])
    assert stored.encode(words) == [UNKNOWN, 4, UNKNOWN, UNKNOWN, UNKNOWN]


def test_a_vocabulary_starts_with_the_special_tokens() -> None:
    assert Vocabulary([*SPECIALS, "x"]).tokens == [*SPECIALS, "x"]
    for wrong in (["x"], [], ["<pad>", "<unk>", "<bos>", "<eos>"], ["a", *SPECIALS]):
        with pytest.raises(ValueError, match="a vocabulary starts with"):
            Vocabulary(wrong)


def test_a_vocabulary_survives_as_plain_tokens() -> None:
    made = build(SENTENCES, min_frequency=1)
    again = Vocabulary(made.tokens)
    assert again.encode("abx") == made.encode("abx")


# --- from text to tokens ---


def test_characters_round_trip() -> None:
    preprocessing = Preprocessing("char", False, "de")
    text = "Ein Mädchen grüßt: »Hallo, 2 Hunde!«  "
    tokens = preprocessing.splitter()(text)
    assert tokens == list(text)
    made = build([tokens], min_frequency=1)
    assert preprocessing.joiner()(made.decode([*made.encode(tokens), END])) == text


@pytest.mark.parametrize(
    ("language", "text"),
    [(language, text) for language, texts in WRITTEN.items() for text in texts],
)
def test_moses_round_trip(language: str, text: str) -> None:
    preprocessing = Preprocessing("moses", False, language)
    tokens = preprocessing.splitter()(text)
    assert all(" " not in token for token in tokens)
    assert preprocessing.joiner()(tokens) == text


def test_moses_separates_punctuation() -> None:
    tokens = Preprocessing("moses", False, "en").splitter()("Hello, a dog.")
    assert tokens == ["Hello", ",", "a", "dog", "."]


def test_moses_follows_the_language() -> None:
    apart: Mapping[str, Sequence[str]] = {
        language: Preprocessing("moses", False, language).splitter()("l'homme")
        for language in ("en", "fr")
    }
    assert apart["fr"] == ["l&apos;", "homme"]
    assert apart["en"] == ["l", "&apos;homme"]


def test_split_takes_the_text_as_it_is() -> None:
    split = Preprocessing("split", False, "en").splitter()
    assert split("don &apos;t  stop, now .") == ["don", "&apos;t", "stop,", "now", "."]
    assert split("  \t ") == []


def test_split_text_is_joined_as_people_write_it() -> None:
    tokens = ["he", "doesn", "&apos;t", "see", "it", "."]
    assert Preprocessing("split", True, "en").joiner()(tokens) == "he doesn't see it."


def test_characters_as_html_writes_them_may_be_any_number() -> None:
    assert len(Preprocessing("moses", False, "en").splitter()("&amp; " * 2000)) >= 2000


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ("a yo@@ ung tr@@ ain ru@@ ns .", "a young train runs."),
        ("never end@@", "never end"),
        ("▁A ▁yo ung ▁tr ain .", "A young train."),
        ("▁犬 が 好き だ 。", "犬が好きだ。"),
        ("mail me @ noon @@x", "mail me @ noon @@x"),
    ],
)
def test_pieces_of_words_are_put_together(pieces: str, text: str) -> None:
    assert Preprocessing("split", False, "en").joiner()(pieces.split()) == text


@pytest.mark.parametrize("tokenizer", ["moses", "char", "basic_english"])
def test_text_that_is_split_here_has_no_pieces(tokenizer: str) -> None:
    assert Preprocessing(tokenizer, False, "en").words(["a@@", "▁b"]) == ["a@@", "▁b"]


def test_basic_english() -> None:
    split = Preprocessing("basic_english", False, "en").splitter()
    assert split("Don't STOP, now.") == ["don", "'", "t", "stop", ",", "now", "."]


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_text_is_lower_cased(tokenizer: str) -> None:
    lower = Preprocessing(tokenizer, True, "de").splitter()("Das SCHÖNE Haus")
    assert "".join(lower).replace(" ", "") == "dasschönehaus"
    if tokenizer != "basic_english":
        kept = Preprocessing(tokenizer, False, "de").splitter()("Das SCHÖNE Haus")
        assert "".join(kept).replace(" ", "") == "DasSCHÖNEHaus"


def test_an_unknown_tokenizer_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"data\.tokenizer=spacy: allowed are moses, .*char"):
        Preprocessing("spacy", False, "de")


@pytest.mark.parametrize("error", [OSError, ImportError, AttributeError])
def test_an_unusable_torchtext_is_named(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    real = builtins.__import__

    def broken(name: str, *args: Any, **rest: Any) -> Any:
        if name.partition(".")[0] == "torchtext":
            raise error("libtorchtext.so: undefined symbol: _ZN2at4_ops")
        return real(name, *args, **rest)

    for name in [name for name in sys.modules if name.partition(".")[0] == "torchtext"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", broken)
    with pytest.raises(ValueError, match="undefined symbol") as caught:
        build(SENTENCES, min_frequency=1)
    assert "torchtext==0.6.0" in str(caught.value)
    with pytest.raises(ValueError, match="torchtext cannot be used"):
        Preprocessing("basic_english", True, "en").splitter()
