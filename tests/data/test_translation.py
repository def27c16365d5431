import logging
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from attnscale.data.batching import Processes
from attnscale.data.translation import TranslationBatch, TranslationData
from attnscale.data.vocabulary import BEGIN, END, PADDING, SPECIALS, TOKENIZERS, UNKNOWN

LOGGER = "attnscale.data.translation"
Texts = tuple[list[str], list[str]]


def made_up(n: int, name: str = "") -> Texts:
    """Return pairs whose lengths vary: the target has one word more than the source."""
    first = [" ".join(f"s{(7 * i + j) % 41}" for j in range(1 + i * i % 7)) for i in range(n)]
    second = [" ".join(f"t{w[1:]}" for w in text.split()) + f" und{name}" for text in first]
    return first, second


class Given(TranslationData):
    """A corpus of the texts it is given."""

    def __init__(self, splits: dict[str, Texts], **rest: Any) -> None:
        super().__init__(**rest)
        self.given = splits
        self.read: list[str] = []

    def pairs(self, split: str) -> Texts:
        self.read.append(split)
        return self.given[split]


def build(
    train: Texts | None = None, val: Texts | None = None, test: Texts | None = None, **changed: Any
) -> Given:
    parts: dict[str, Any] = {
        "source": "de",
        "target": "en",
        "test": None,
        "tokenizer": "split",
        "lowercase": False,
        "min_frequency": 1,
        "max_length": 50,
        "too_long": "skip",
        "batch_tokens": None,
        "batch_sentences": 5,
        "eval_batch_sentences": 4,
        "seed": 3,
        **changed,
    }
    splits = {
        "train": train or made_up(37),
        "val": val or made_up(11, "v"),
        "test": test or made_up(13, "t"),
    }
    return Given(splits, **parts)


# --- settings ---


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"target": "de"}, r"data\.source=de: is also data\.target"),
        ({"too_long": "keep"}, r"data\.too_long=keep: allowed are skip, cut"),
        ({"batch_tokens": 9}, r"data\.batch_tokens=9, data\.batch_sentences=5: set one"),
        ({"batch_sentences": None}, r"batch_tokens=None, data\.batch_sentences=None: set one"),
        ({"batch_sentences": 0}, r"data\.batch_sentences=0: must be at least 1"),
        ({"batch_sentences": None, "batch_tokens": 0}, r"data\.batch_tokens=0: must be"),
        ({"eval_batch_sentences": 0}, r"data\.eval_batch_sentences=0: must be at least 1"),
        ({"max_length": 0}, r"data\.max_length=0: must be at least 1"),
        ({"tokenizer": "words"}, r"data\.tokenizer=words"),
    ],
)
def test_what_is_not_allowed_is_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**changed)


# --- what is kept ---


GAPPED: Texts = (
    ["s1 s2", "", "s3", "   ", "s4 s5 s6", "s7", "\t"],
    ["t1", "t2 t2", "", "t3", "t4 t5", " \u00a0", ""],
)


@pytest.mark.parametrize("tokenizer", ["split", "moses", "basic_english"])
def test_training_leaves_out_empty_pairs_and_says_so(
    caplog: pytest.LogCaptureFixture, tokenizer: str
) -> None:
    data = build(train=GAPPED, tokenizer=tokenizer)
    with caplog.at_level(logging.INFO, LOGGER):
        split = data.load("train")
    assert split.source_text == ["s1 s2", "s4 s5 s6"]
    assert split.target_text == ["t1", "t4 t5"]
    assert len(split.source) == len(split.target) == 2
    assert "train: 5 pairs with an empty side left out" in caplog.text


def test_characters_alone_make_no_sentence_of_blanks() -> None:
    split = build(train=GAPPED, tokenizer="char").load("train")
    assert split.source_text == ["s1 s2", "s4 s5 s6"]


@pytest.mark.parametrize("name", ["val", "test"])
def test_evaluation_keeps_empty_pairs(caplog: pytest.LogCaptureFixture, name: str) -> None:
    data = build(**{name: GAPPED})
    with caplog.at_level(logging.INFO, LOGGER):
        split = data.load(name)
    assert (split.source_text, split.target_text) == GAPPED
    assert len(split.source) == len(split.target) == 7
    assert "left out" not in caplog.text
    assert split.source[1].tolist() == [END]
    assert split.target[2].tolist() == [BEGIN, END]
    covered = [i for block in data.evaluation(name) for b in block for i in b.indices.tolist()]
    assert sorted(covered) == list(range(7))


def test_nothing_is_said_of_a_clean_corpus(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, LOGGER):
        build().setup("fit")
    assert caplog.text == ""


def test_a_training_set_without_a_usable_pair_is_an_error() -> None:
    with pytest.raises(ValueError, match="the split train has no usable pair"):
        build(train=(["", "a"], ["b", ""])).load("train")


LONG: Texts = (["a b", "a b c d", "a b", "a b c"], ["x", "x y", "x y z u v", "x y z"])


def test_too_long_pairs_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, LOGGER):
        split = build(train=LONG, max_length=3).load("train")
    assert split.source_text == ["a b", "a b c"]
    assert split.target_text == ["x", "x y z"]
    assert "train: 2 pairs of more than data.max_length=3 tokens left out" in caplog.text


def test_too_long_pairs_are_cut(caplog: pytest.LogCaptureFixture) -> None:
    data = build(train=LONG, max_length=3, too_long="cut")
    with caplog.at_level(logging.INFO, LOGGER):
        split = data.load("train")
    assert split.source_text == LONG[0]
    assert "train: 2 pairs of more than data.max_length=3 tokens cut" in caplog.text
    source, target = data.vocabularies["source"], data.vocabularies["target"]
    assert split.source[1].tolist() == [*source.encode("abc"), END]
    assert split.target[2].tolist() == [BEGIN, *target.encode("xyz"), END]


@pytest.mark.parametrize("too_long", ["skip", "cut"])
@pytest.mark.parametrize("name", ["val", "test"])
def test_evaluation_cuts_and_never_leaves_out(
    caplog: pytest.LogCaptureFixture, too_long: str, name: str
) -> None:
    texts = (["s1", " ".join(["s2"] * 6000), "s3"], ["t1", "t2", " ".join(["t3"] * 6000)])
    data = build(too_long=too_long, max_length=10, **{name: texts})
    data.load("train")
    with caplog.at_level(logging.INFO, LOGGER):
        split = data.load(name)
    assert (split.source_text, split.target_text) == texts
    assert split.source.lengths.tolist() == [2, 11, 2]
    assert split.target.lengths.tolist() == [3, 3, 12]
    assert f"{name}: 2 pairs of more than data.max_length=10 tokens cut" in caplog.text


def test_a_shift_is_warned_about_in_training_only(caplog: pytest.LogCaptureFixture) -> None:
    lengths = [1 + (7919 * i * i + 31 * i) % 23 for i in range(200)]
    first = [" ".join(["wort"] * n) for n in lengths]
    second = [" ".join(["word"] * n) for n in lengths]
    shifted = (first[1:], second[:-1])
    with caplog.at_level(logging.WARNING, LOGGER):
        build(train=(first, second), val=shifted).setup("fit")
    assert caplog.text == ""
    with caplog.at_level(logging.WARNING, LOGGER):
        build(train=shifted).load("train")
    assert "data: train: lines 1 to 199" in caplog.text


# --- numbers ---


def test_sentences_begin_and_end() -> None:
    data = build()
    data.setup("fit")
    for name in ("train", "val"):
        split = data.splits[name]
        for i, (text, other) in enumerate(zip(*data.given[name], strict=True)):
            source, target = split.source[i].tolist(), split.target[i].tolist()
            assert (source[-1], target[0], target[-1]) == (END, BEGIN, END)
            assert BEGIN not in source
            assert data.vocabularies["source"].decode(source) == text.split()
            if name == "train":
                assert data.vocabularies["target"].decode(target) == other.split()
            else:
                assert target[-2] == UNKNOWN


@pytest.mark.parametrize("mark", SPECIALS)
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_no_text_becomes_a_mark(tokenizer: str, side: int, mark: str) -> None:
    texts = [f"a {mark} b", "c", f"{mark} d {mark}"]
    corpus = (texts, ["x y z"] * 3) if side == 0 else (["x y z"] * 3, texts)
    data = build(train=corpus, test=corpus, tokenizer=tokenizer)
    split = data.load("test")
    packed = [(split.source, split.target)[side][i] for i in range(3)]
    cut = data.preprocessing[("source", "target")[side]].splitter()
    vocabulary = data.vocabularies[("source", "target")[side]]
    for text, row in zip(texts, packed, strict=True):
        words = row.tolist()[side:-1]  # a target begins with BEGIN
        assert row[-1] == END
        assert min(words) >= len(SPECIALS)
        assert vocabulary.decode(row.tolist()[side:]) == cut(text)


JAPANESE, THAI = "彼女はよく海が好きだ。", "สวัสดีครับผมชื่อสมชาย"


@pytest.mark.parametrize(
    ("text", "tokenizer", "told"),
    [
        (JAPANESE, "moses", True),
        (JAPANESE, "split", True),
        (THAI, "basic_english", True),
        (JAPANESE, "char", False),
        ("彼女 は よく 海 が 好き だ 。", "split", False),
        ("나는 바다를 좋아한다.", "moses", False),
        ("Donaudampfschifffahrtsgesellschaftskapitän", "moses", False),
    ],
)
@pytest.mark.parametrize("side", [0, 1])
def test_text_without_spaces_between_words_is_told(
    caplog: pytest.LogCaptureFixture, text: str, tokenizer: str, told: bool, side: int
) -> None:
    corpus = ([text], ["x y z"]) if side == 0 else (["x y z"], [text])
    with caplog.at_level(logging.WARNING, LOGGER):
        build(train=corpus, tokenizer=tokenizer).load("train")
    assert ("has no spaces between words" in caplog.text) is told
    assert (f"in {('de', 'en')[side]} has" in caplog.text) is told


def test_vocabularies_come_from_training_only() -> None:
    data = build(train=(["a b a", "c"], ["x", "y y"]), val=(["d"], ["z"]), min_frequency=2)
    data.setup("test")
    assert data.read == ["test", "train"]
    assert data.vocabularies["source"].tokens == [*SPECIALS, "a"]
    assert data.vocabularies["target"].tokens == [*SPECIALS, "y"]
    assert data.model_arguments() == {"source_size": 5, "target_size": 5}


def test_the_model_learns_both_sizes() -> None:
    data = build(train=(["a b c"], ["x"]))
    assert data.model_arguments() == {"source_size": 7, "target_size": 5}


def test_vocabularies_of_a_checkpoint_are_used() -> None:
    data = build(test=(["b a q"], ["y x q"]))
    record = {"source": [*SPECIALS, "a", "b"], "target": [*SPECIALS, "x", "u", "y"]}
    data.take_checkpoint_values(record)
    data.setup("test")
    assert data.read == ["test"]
    split = data.splits["test"]
    assert split.source[0].tolist() == [5, 4, UNKNOWN, END]
    assert split.target[0].tolist() == [BEGIN, 6, 4, UNKNOWN, END]
    data.load("train")
    assert data.model_arguments() == {"source_size": 6, "target_size": 7}
    assert data.checkpoint_values() == record


def test_what_is_recorded_can_be_taken_up_again() -> None:
    data, other = build(), build(train=made_up(3))
    data.setup("fit")
    other.take_checkpoint_values(data.checkpoint_values())
    assert other.load("val").source.tokens.tolist() == data.load("val").source.tokens.tolist()
    assert other.load("val").target.tokens.tolist() == data.load("val").target.tokens.tolist()


def test_a_split_is_read_once_and_only_when_needed() -> None:
    data = build()
    assert data.read == []
    data.setup("fit")
    data.setup("fit")
    data.setup("validate")
    assert data.read == ["train", "val"]
    data.setup("test")
    assert data.read == ["train", "val", "test"]


# --- batches ---


def test_rows_are_padded_at_the_end() -> None:
    data = build(train=(["a", "a b c"], ["x y", "x"]))
    batch = data.batch(data.load("train"), torch.tensor([0, 1]), Processes())
    a, b, c = data.vocabularies["source"].encode("abc")
    x, y = data.vocabularies["target"].encode("xy")
    assert batch.source.tolist() == [[a, END, PADDING, PADDING], [a, b, c, END]]
    assert batch.target.tolist() == [[BEGIN, x, y, END], [BEGIN, x, END, PADDING]]
    assert batch.indices.tolist() == [0, 1]
    assert batch.loss_weight == 1.0


def predicted(batch: TranslationBatch) -> int:
    """Return the number of tokens a model is asked for."""
    return int((batch.target[:, 1:] != PADDING).sum())


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("indices", [[5, 9, 2, 30, 11], [4, 17, 8], [6, 3], [13]])
def test_parts_make_up_the_batch(world: int, indices: list[int]) -> None:
    data = build()
    split = data.load("train")
    parts = [data.batch(split, torch.tensor(indices), Processes(r, world)) for r in range(world)]
    real = [part for part in parts if part.loss_weight]
    assert sorted(i for part in real for i in part.indices.tolist()) == sorted(indices)
    assert len(real) == min(world, len(indices))
    # The others take part with something, so that their step is one of the same kind.
    assert all(len(part.source) == len(part.target) == len(part.indices) >= 1 for part in parts)
    # Each token's loss is any function of the token, here of its number.
    whole = data.batch(split, torch.tensor(indices), Processes())
    assert whole.loss_weight == 1.0

    def mean(batch: TranslationBatch) -> float:
        tokens = batch.target[:, 1:][batch.target[:, 1:] != PADDING].double()
        return float(tokens.square().mean())

    averaged = sum(part.loss_weight * mean(part) for part in parts) / world
    assert averaged == pytest.approx(mean(whole), rel=1e-12)
    assert sum(part.loss_weight for part in parts) == pytest.approx(world, rel=1e-12)
    for part in real:
        assert part.loss_weight == pytest.approx(
            world * predicted(part) / predicted(whole), rel=1e-12
        )


def listed(blocks: Sequence[list[TranslationBatch]]) -> list[TranslationBatch]:
    return [batch for block in blocks for batch in block]


@pytest.mark.parametrize("n", [1, 2, 11, 12, 13, 15])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_evaluation_covers_each_example_once(
    monkeypatch: pytest.MonkeyPatch, n: int, world: int
) -> None:
    covered, lengths = [], set()
    for rank in range(world):
        data = build(val=made_up(n))
        monkeypatch.setattr(data, "_processes", lambda rank=rank: Processes(rank, world))
        loader = data.val_dataloader()
        batches = listed(list(loader))
        assert len(loader) == len(batches)
        lengths.add(len(batches))  # a limit that is a fraction means the same batches everywhere
        for batch in batches:
            assert len(batch.indices) == len(batch.source) <= 4
            split = data.splits["val"]
            for row, i in zip(batch.target, batch.indices.tolist(), strict=True):
                assert row[row != PADDING].tolist() == split.target[i].tolist()
        covered += [i for batch in batches if batch.loss_weight for i in batch.indices.tolist()]
    assert sorted(covered) == list(range(n))
    assert len(lengths) == 1


def test_training_covers_each_example_once() -> None:
    by_tokens: dict[str, Any] = {"batch_sentences": None, "batch_tokens": 40}
    none: dict[str, Any] = {}
    for changed in (none, by_tokens):
        data = build(**changed)
        batches = listed(list(data.train_dataloader()))
        assert sorted(i for b in batches for i in b.indices.tolist()) == list(range(37))
        for batch in batches:
            if changed:
                assert len(batch.indices) * max(batch.source.shape[1], batch.target.shape[1]) <= 40
            else:
                assert len(batch.indices) in (5, 37 % 5)


def test_an_overfitted_batch_stays_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    data = build()
    plans = [data._plan(data.load("train").target.lengths, epoch) for epoch in (0, 1)]
    assert [b.tolist() for b in plans[0]] != [b.tolist() for b in plans[1]]
    data.count_batches(overfit=2)
    plans = [data._plan(data.load("train").target.lengths, epoch) for epoch in (0, 1)]
    assert [b.tolist() for b in plans[0]] == [b.tolist() for b in plans[1]]
    train, val = listed(list(data.train_dataloader())), listed(list(data.val_dataloader()))
    assert [b.indices.tolist() for b in train] == [b.indices.tolist() for b in val]
    assert len(train) == 2


def test_the_test_split_can_be_named() -> None:
    data = build(test=made_up(6))
    data.given["later"] = made_up(3)
    data.test = "later"
    data.setup("test")
    assert data.test_split() == "later"
    batches = listed(list(data.test_dataloader()))
    assert sorted(i for b in batches for i in b.indices.tolist()) == [0, 1, 2]
