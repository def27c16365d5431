"""The corpus that comes with the project: a small German–English grammar, so no download.

The two languages differ where the real ones do: German articles and adjectives agree with gender,
case and number; the verb comes second in a main clause and last in a subordinate one; participles
and infinitives close the clause; English needs "does not". A word-for-word dictionary in source
order gets the words right and the sentence wrong.
"""

import random
from dataclasses import dataclass
from typing import Any, NamedTuple

from attnscale.checks import check_min
from attnscale.data.translation import TranslationData


class Noun(NamedTuple):
    """German singular, German plural, gender (m, f, n), English singular, English plural."""

    german: str
    german_plural: str
    gender: str
    english: str
    english_plural: str


class Verb(NamedTuple):
    """German 3rd person singular and plural, infinitive, participle; English the same four."""

    german: tuple[str, str, str, str]
    english: tuple[str, str, str, str]


PEOPLE = (
    Noun("Mann", "Männer", "m", "man", "men"),
    Noun("Frau", "Frauen", "f", "woman", "women"),
    Noun("Kind", "Kinder", "n", "child", "children"),
    Noun("Lehrer", "Lehrer", "m", "teacher", "teachers"),
    Noun("Mädchen", "Mädchen", "n", "girl", "girls"),
    Noun("Ärztin", "Ärztinnen", "f", "doctor", "doctors"),
    Noun("Koch", "Köche", "m", "cook", "cooks"),
    Noun("Sängerin", "Sängerinnen", "f", "singer", "singers"),
)
THINGS = (
    Noun("Hund", "Hunde", "m", "dog", "dogs"),
    Noun("Katze", "Katzen", "f", "cat", "cats"),
    Noun("Buch", "Bücher", "n", "book", "books"),
    Noun("Ball", "Bälle", "m", "ball", "balls"),
    Noun("Blume", "Blumen", "f", "flower", "flowers"),
    Noun("Auto", "Autos", "n", "car", "cars"),
    Noun("Apfel", "Äpfel", "m", "apple", "apples"),
    Noun("Lampe", "Lampen", "f", "lamp", "lamps"),
    Noun("Haus", "Häuser", "n", "house", "houses"),
    Noun("Brief", "Briefe", "m", "letter", "letters"),
)
ADJECTIVES = (
    ("klein", "small"),
    ("groß", "big"),
    ("alt", "old"),
    ("neu", "new"),
    ("rot", "red"),
    ("schön", "beautiful"),
    ("still", "quiet"),
    ("lustig", "funny"),
)
TRANSITIVE = (
    Verb(("sieht", "sehen", "sehen", "gesehen"), ("sees", "see", "see", "seen")),
    Verb(("kauft", "kaufen", "kaufen", "gekauft"), ("buys", "buy", "buy", "bought")),
    Verb(("sucht", "suchen", "suchen", "gesucht"), ("seeks", "seek", "seek", "sought")),
    Verb(("malt", "malen", "malen", "gemalt"), ("paints", "paint", "paint", "painted")),
    Verb(("findet", "finden", "finden", "gefunden"), ("finds", "find", "find", "found")),
    Verb(("trägt", "tragen", "tragen", "getragen"), ("carries", "carry", "carry", "carried")),
)
INTRANSITIVE = (
    Verb(("schläft", "schlafen", "schlafen", "geschlafen"), ("sleeps", "sleep", "sleep", "slept")),
    Verb(("lacht", "lachen", "lachen", "gelacht"), ("laughs", "laugh", "laugh", "laughed")),
    Verb(("singt", "singen", "singen", "gesungen"), ("sings", "sing", "sing", "sung")),
    Verb(("wartet", "warten", "warten", "gewartet"), ("waits", "wait", "wait", "waited")),
)
MODALS = ((("will", "wollen"), "wants to", "want to"), (("kann", "können"), "can", "can"))
TIMES = (("heute", "today"), ("oft", "often"), ("jetzt", "now"), ("morgens", "in the morning"))
PLACES = (
    ("im Garten", "in the garden"),
    ("vor der Schule", "in front of the school"),
    ("am Fluss", "by the river"),
)

DEFINITE = {"m": ("der", "den"), "f": ("die", "die"), "n": ("das", "das"), "p": ("die", "die")}
INDEFINITE = {"m": ("ein", "einen"), "f": ("eine", "eine"), "n": ("ein", "ein")}
WEAK = {"m": ("e", "en"), "f": ("e", "e"), "n": ("e", "e"), "p": ("en", "en")}
MIXED = {"m": ("er", "en"), "f": ("e", "e"), "n": ("es", "es")}


@dataclass(frozen=True)
class Phrase:
    """A noun phrase: German as subject and as object, English, and whether it is plural."""

    subject: str
    accusative: str
    english: str
    plural: bool


class Grammar:
    """Draws pairs of sentences; the same seed draws the same ones."""

    def __init__(self, seed: int) -> None:
        """Start drawing."""
        self.random = random.Random(seed)

    def _phrase(self, nouns: tuple[Noun, ...]) -> Phrase:
        pick = self.random
        noun = pick.choice(nouns)
        plural, definite = pick.random() < 0.35, pick.random() < 0.6
        adjective = pick.choice(ADJECTIVES) if pick.random() < 0.45 else None
        gender = "p" if plural else noun.gender
        name = noun.german_plural if plural else noun.german
        english = noun.english_plural if plural else noun.english
        if plural and not definite:
            articles, endings, article = ("", ""), {"p": ("e", "e")}, ""
        elif definite:
            articles, endings, article = DEFINITE[gender], WEAK, "the"
        else:
            first = (adjective[1] if adjective else english)[0]
            articles, endings = INDEFINITE[gender], MIXED
            article = "an" if first in "aeiou" else "a"
        forms = []
        for case in (0, 1):
            words = [articles[case]]
            if adjective:
                words.append(adjective[0] + endings[gender][case])
            forms.append(" ".join([*filter(None, words), name]))
        words = [article, adjective[1] if adjective else "", english]
        return Phrase(forms[0], forms[1], " ".join(filter(None, words)), plural)

    def _clause(self, *, last: bool) -> tuple[list[str], str, str]:
        """Return German (subject first; the finite verb second, or last), its verb, and English."""
        pick = self.random
        subject = self._phrase(PEOPLE)
        number = int(subject.plural)
        middle, place = [], ""
        if pick.random() < 0.75:
            verb, thing = pick.choice(TRANSITIVE), self._phrase(THINGS)
            middle.append(thing.accusative)
            place = f" {thing.english}"
        else:
            verb = pick.choice(INTRANSITIVE)
        if pick.random() < 0.35:
            german, english = pick.choice(PLACES)
            middle.append(german)
            place += f" {english}"
        kind = pick.random()
        if kind < 0.45:
            finite, closing, spoken = verb.german[number], "", verb.english[number]
        elif kind < 0.65:
            finite, closing = ("haben" if number else "hat"), verb.german[3]
            spoken = f"{'have' if number else 'has'} {verb.english[3]}"
        elif kind < 0.85:
            forms, one, many = pick.choice(MODALS)
            finite, closing = forms[number], verb.german[2]
            spoken = f"{many if number else one} {verb.english[2]}"
        else:
            finite, closing = verb.german[number], "nicht"
            spoken = f"{'do' if number else 'does'} not {verb.english[2]}"
            if last:
                middle, closing = [*middle, "nicht"], ""
        rest = [*middle, *([closing] if closing else [])]
        english = f"{subject.english} {spoken}{place}"
        if last:
            return [subject.subject, *rest, finite], finite, english
        return [subject.subject, finite, *rest], finite, english

    def pair(self) -> tuple[str, str]:
        """Draw one German sentence and its English translation."""
        pick = self.random
        german, finite, english = self._clause(last=False)
        if pick.random() < 0.35:
            # The verb stays second, so the subject moves behind it.
            time, when = pick.choice(TIMES)
            german = [time, finite, german[0], *german[2:]]
            english = f"{when} {english}"
        source, target = " ".join(german), english
        if pick.random() < 0.3:
            word, because = pick.choice((("weil", "because"), ("wenn", "when")))
            clause, _, translated = self._clause(last=True)
            source = f"{source}, {word} {' '.join(clause)}"
            target = f"{target} {because} {translated}"
        return _written(source), _written(target)


def _written(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def draw_pairs(n: int, seed: int) -> list[tuple[str, str]]:
    """Draw ``n`` pairs, no German sentence twice."""
    grammar, pairs = Grammar(seed), dict[str, str]()
    while len(pairs) < n:
        german, english = grammar.pair()
        pairs.setdefault(german, english)
    return list(pairs.items())


class ToyTranslation(TranslationData):
    """Seeded pairs of the grammar; no source sentence is in two splits."""

    def __init__(
        self, *, n_train: int, n_val: int, n_test: int, corpus_seed: int, **rest: Any
    ) -> None:
        """Take the sizes, and what every corpus takes.

        Args:
            n_train: Training pairs.
            n_val: Validation pairs.
            n_test: Test pairs.
            corpus_seed: Seed of the sentences; not that of the run, so that runs are comparable.
            rest: See :class:`TranslationData`.

        Raises:
            ValueError: If a size is below 1, or the languages are not German and English.
        """
        super().__init__(**rest)
        if {self.source, self.target} != {"de", "en"}:
            raise ValueError(
                f"data.source={self.source}, data.target={self.target}: this corpus has de and en"
            )
        self.n = {"train": n_train, "val": n_val, "test": n_test}
        for name, size in self.n.items():
            check_min(f"data.n_{name}", size)
        if self.test not in (None, *self.n):
            raise ValueError(f"data.test={self.test}: this corpus has {', '.join(self.n)}")
        self.corpus_seed = corpus_seed

    def pairs(self, split: str) -> tuple[list[str], list[str]]:
        """Draw the whole corpus and return one part of it."""
        if split not in self.n:
            raise ValueError(f"data.split={split}: this corpus has {', '.join(self.n)}")
        drawn = draw_pairs(sum(self.n.values()), self.corpus_seed)
        before = list(self.n).index(split)
        start = sum(list(self.n.values())[:before])
        texts = {"de": [a for a, _ in drawn], "en": [b for _, b in drawn]}
        part = slice(start, start + self.n[split])
        return texts[self.source][part], texts[self.target][part]
