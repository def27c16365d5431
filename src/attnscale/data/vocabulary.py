"""Words and numbers. The one module that knows torchtext.

torchtext 0.6.0 is the last release in plain Python; later ones carry a binary that loads with one
old PyTorch only.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from attnscale.checks import check_choice, check_min

UNKNOWN, PADDING, BEGIN, END = 0, 1, 2, 3
SPECIALS = ("<unk>", "<pad>", "<bos>", "<eos>")
TOKENIZERS = ("moses", "basic_english", "split", "char")
ENTITY = r"&#?\w+;"
"""A character as HTML writes it: text like any other, which Moses would take apart."""


def _torchtext() -> Any:
    """Import torchtext.

    Raises:
        ValueError: If it is another version than the pure Python one.
    """
    try:
        import torchtext.data.utils
        import torchtext.vocab
    except (ImportError, OSError, AttributeError) as error:
        raise ValueError(
            f"torchtext cannot be used ({error}); install torchtext==0.6.0, "
            "the last release in pure Python"
        ) from error
    return torchtext


@dataclass(frozen=True)
class Preprocessing:
    """From text to tokens and back, for one language.

    Attributes:
        tokenizer: "moses" (words and punctuation), "basic_english" (torchtext's, lower-cases, drops
            some signs), "split" (at spaces, for text that is tokenised already, in words or in
            pieces) or "char".
        lowercase: Whether text is lower-cased first.
        language: Two letters, for Moses' rules.
    """

    tokenizer: str
    lowercase: bool
    language: str

    def __post_init__(self) -> None:
        """Refuse an unknown tokenizer."""
        check_choice("data.tokenizer", self.tokenizer, TOKENIZERS)

    @property
    def caseless(self) -> bool:
        """Whether tokens are lower-cased, by wish or by the tokenizer."""
        return self.lowercase or self.tokenizer == "basic_english"

    def splitter(self) -> Callable[[str], list[str]]:
        """Return the function from text to tokens."""
        if self.tokenizer == "char":
            split: Callable[[str], list[str]] = list
        elif self.tokenizer == "split":
            split = str.split
        elif self.tokenizer == "moses":
            # torchtext's own "moses" is fixed to English.
            from sacremoses import MosesTokenizer

            moses = MosesTokenizer(lang=self.language)

            def split(text: str) -> list[str]:
                few = text.count("&") <= moses.MAX_PROTECTED_TOKENS
                return list(moses.tokenize(text, protected_patterns=[ENTITY] if few else None))
        else:
            split = _torchtext().data.utils.get_tokenizer("basic_english")
        if self.lowercase:
            return lambda text: split(text.lower())
        return split

    def words(self, tokens: Sequence[str]) -> list[str]:
        """Return tokens as words: under "split", pieces of words are put together.

        A piece that another follows ends in "@@" (Sennrich et al. 2016), or the first piece of a
        word begins with "▁" (Kudo and Richardson 2018).
        """
        if self.tokenizer != "split":
            return list(tokens)
        text = " ".join(tokens)
        if "▁" in text:
            text = text.replace(" ", "").replace("▁", " ")
        return re.sub("@@( |$)", "", text).split()

    def joiner(self) -> Callable[[Sequence[str]], str]:
        """Return the function from tokens to text as a person writes it."""
        if self.tokenizer == "char":
            return "".join
        from sacremoses import MosesDetokenizer

        detokenize = MosesDetokenizer(lang=self.language).detokenize
        return lambda tokens: str(detokenize(self.words(tokens)))


class Vocabulary:
    """The tokens of a language, after four marks that no text can become.

    A word may be spelt as a mark is: it then has a number of its own, or is an unknown word.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        """Take up tokens in order.

        Raises:
            ValueError: If they do not start with the special ones.
        """
        if tuple(tokens[: len(SPECIALS)]) != SPECIALS:
            raise ValueError(f"a vocabulary starts with {SPECIALS}, not {tuple(tokens[:4])}")
        self.tokens = list(tokens)
        words = self.tokens[len(SPECIALS) :]
        self.index = {token: i for i, token in enumerate(words, start=len(SPECIALS))}

    @classmethod
    def from_counts(cls, counts: Counter[str], *, min_frequency: int) -> "Vocabulary":
        """Take tokens that occur often enough, the frequent ones first.

        Raises:
            ValueError: If ``min_frequency`` is below 1.
        """
        check_min("data.min_frequency", min_frequency)
        # Not as torchtext's specials, which are told from words by their spelling.
        vocab = _torchtext().vocab.Vocab(counts, min_freq=min_frequency, specials=[])
        return cls([*SPECIALS, *vocab.itos])

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.tokens)

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Return the numbers of tokens, :data:`UNKNOWN` for those that are not in here."""
        return [self.index.get(token, UNKNOWN) for token in tokens]

    def decode(self, numbers: Iterable[int]) -> list[str]:
        """Return the tokens up to the end of the sentence; special ones are left out."""
        tokens = []
        for number in numbers:
            if number == END:
                break
            if number >= len(SPECIALS):
                tokens.append(self.tokens[number])
        return tokens
