"""Runs of the translation task in this process, on small corpora."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnscale.config.build import compose
from attnscale.data.toy_translation import ToyTranslation
from attnscale.experiment.checkpoints import load_checkpoint
from attnscale.experiment.translator import Translator

SMALL = (
    "model=transformer",
    "model.d_model=16",
    "model.d_k=8",
    "model.d_v=8",
    "model.n_heads=2",
    "model.n_layers=1",
    "model.feed_forward=16",
    "data.n_train=150",
    "data.n_val=31",
    "data.n_test=33",
    "trainer.max_epochs=2",
)
PAIRS = [
    ("Ein Mann schläft.", "A man sleeps."),
    ("Zwei Hunde spielen im Schnee.", "Two dogs play in the snow."),
    ("Eine Frau liest ein Buch.", "A woman reads a book."),
    ("Kinder laufen über die Straße.", "Children run across the street."),
    ("Ein Junge mit rotem Hut lacht.", "A boy with a red hat laughs."),
    ("Drei Männer reparieren ein Dach.", "Three men repair a roof."),
    ("Ein Mädchen isst Äpfel.", "A girl eats apples."),
    ("Der Zug fährt ab.", "The train departs."),
]


def write_corpus(folder: Path, pairs: list[tuple[str, str]]) -> Path:
    folder.mkdir(exist_ok=True)
    for split in ("train", "val", "test2016"):
        for side, language in enumerate(("de", "en")):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
    return folder


def test_a_run_is_recorded_with_its_translations(lab: Any) -> None:
    result = lab.run(*SMALL)
    recorded = lab.last()
    for name in ("loss", "perplexity", "accuracy", "bleu", "chrf", "bleu_tokenized"):
        assert f"test/{name}" in recorded.data.metrics
    for path in ("encoder.0.self", "decoder.0.self", "decoder.0.cross"):
        for projection in ("q", "k", "v", "o"):
            assert f"grad_norm/{path}/{projection}" in recorded.data.metrics
    lines = Path(result.folder, "test.en").read_text().splitlines()
    assert len(lines) == 33
    names = {item.path for item in lab.client.list_artifacts(recorded.info.run_id)}
    assert {"samples.txt", "signatures.json"} <= names
    signatures = json.loads(Path(result.folder, "signatures.json").read_text())
    assert "tok:13a" in signatures["bleu"]
    assert "tok:none" in signatures["bleu_tokenized"]
    assert result.metrics["val/perplexity"] == pytest.approx(
        torch.tensor(result.metrics["val/loss"]).exp().item(), rel=1e-5
    )


def test_losses_by_length_make_up_the_test_loss(lab: Any) -> None:
    figures = lab.run(*SMALL, "task.length_edges=[6,9]").metrics
    losses = {name: value for name, value in figures.items() if "loss_length" in name}
    assert set(losses) == {f"test/loss_length_{name}" for name in ("1_6", "7_9", "10_up")}
    config = compose(SMALL, folder=Path("unset"))
    data = ToyTranslation(**config.data.without("_target_"))
    data.load("train")
    # BEGIN is not predicted, END is; neither is a token of the sentence.
    predicted = data.load("test").target.lengths - 1
    words = predicted - 1
    tokens = [
        predicted[(low <= words) & (words <= high)].sum()
        for low, high in ((1, 6), (7, 9), (10, 99))
    ]
    mean = np.average(list(losses.values()), weights=tokens)
    assert mean == pytest.approx(figures["test/loss"], rel=1e-6)


@pytest.mark.parametrize("edges", ["[9,9]", "[13,9]", "[0,4]"])
def test_edges_of_lengths_ascend(lab: Any, edges: str) -> None:
    with pytest.raises(ValueError, match=r"task.length_edges=\[.*must be above 0 and ascend"):
        lab.run(*SMALL, f"task.length_edges={edges}")


@pytest.mark.slow
def test_batches_change_no_figure(lab: Any) -> None:
    trained = lab.run(*SMALL)
    score = ("trainer.limit_train_batches=0", f"checkpoint={trained.best_checkpoint}")
    seen = [
        lab.run(*SMALL, *score, f"data.eval_batch_sentences={size}").metrics for size in (1, 7, 128)
    ]
    for other in seen[1:]:
        for name, value in seen[0].items():
            assert other[name] == pytest.approx(value, rel=1e-5), name


@pytest.mark.slow
def test_dropout_is_off_in_evaluation(lab: Any) -> None:
    trained = lab.run(*SMALL, "model.dropout=0.5")
    score = (
        "model.dropout=0.5",
        "trainer.limit_train_batches=0",
        f"checkpoint={trained.best_checkpoint}",
    )
    first, second = (lab.run(*SMALL, *score).metrics for _ in range(2))
    assert first == second
    assert first["val/loss"] == pytest.approx(trained.metrics["val/best_loss"], rel=1e-6)


EVEN = ("data.eval_batch_sentences=8", "data.batch_tokens=300", "model.dropout=0.0")
SINGLE = ("data.batch_sentences=1", "data.batch_tokens=null", "trainer.overfit_batches=3")
"""A process has no sentence of a batch, neither in training nor in validation and of the last test
batch."""


@pytest.mark.slow
def test_a_sentence_is_counted_by_one_of_two_processes(lab: Any) -> None:
    one, two = (lab.run(*SMALL, *EVEN, *SINGLE, *p) for p in ((), ("trainer=ddp_cpu",)))
    for name in ("val/count", "test/count"):
        assert two.metrics[name] == one.metrics[name], name
    for name in ("val/loss", "train/loss", "test/loss", "test/bleu"):
        assert two.metrics[name] == pytest.approx(one.metrics[name], rel=1e-4), name


@pytest.mark.slow
def test_two_processes_score_like_one(lab: Any) -> None:
    one = lab.run(*SMALL, *EVEN)
    score = ("trainer.limit_train_batches=0", f"checkpoint={one.best_checkpoint}")
    first, second = (lab.run(*SMALL, *EVEN, *score, *p).metrics for p in ((), ("trainer=ddp_cpu",)))
    assert second["test/count"] == first["test/count"]
    for name, value in first.items():
        assert second[name] == pytest.approx(value, rel=1e-6), name
    assert all(run.info.status == "FINISHED" for run in lab.recorded())


@pytest.mark.slow
def test_two_processes_train_like_one(lab: Any) -> None:
    one, two = lab.run(*SMALL, *EVEN), lab.run(*SMALL, *EVEN, "trainer=ddp_cpu")
    assert two.steps == one.steps
    for name in ("val/loss", "train/loss"):
        assert two.metrics[name] == pytest.approx(one.metrics[name], rel=1e-4), name


@pytest.mark.slow
def test_eight_pairs_are_learned_by_heart(lab: Any, tmp_path: Path) -> None:
    folder = write_corpus(tmp_path / "corpus", PAIRS)
    result = lab.run(
        "model=transformer",
        "data=parallel",
        f"data.dir={folder}",
        "model.d_model=32",
        "model.dropout=0.0",
        "optimizer.lr=5e-3",
        "trainer.max_epochs=80",
        "callbacks.best=null",
    )
    assert Path(result.folder, "test2016.en").read_text().splitlines() == [b for _, b in PAIRS]
    assert result.metrics["test/bleu"] == pytest.approx(100)
    # From the checkpoint alone, in another order, with empty lines and a line of an unknown word.
    translator = Translator(str(result.last_checkpoint))
    given = ["", *(a for a, _ in reversed(PAIRS)), "  ", "Qwertz"]
    made = list(translator.lines(given, 3))
    assert made[1:9] == [b for _, b in reversed(PAIRS)]
    assert [made[0], made[9]] == ["", ""]
    assert len(made) == len(given)


@pytest.mark.slow
def test_a_checkpoint_carries_its_vocabularies(lab: Any) -> None:
    result = lab.run(*SMALL)
    state = load_checkpoint(str(result.best_checkpoint))
    assert state.data["source"][:4] == ["<unk>", "<pad>", "<bos>", "<eos>"]
    assert len(state.data["target"]) > 50
    # Another training set would give other vocabularies; a scored checkpoint keeps its own.
    again = lab.run(
        *SMALL,
        "data.n_train=151",
        "trainer.limit_train_batches=0",
        "trainer.limit_val_batches=0",
        f"checkpoint={result.best_checkpoint}",
    )
    assert again.metrics["test/count"] > 0


def test_empty_and_long_pairs(lab: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pairs = [*PAIRS, ("Nichts.", ""), (" \t ", "Blank."), ("sehr " * 6000, "very " * 6000)]
    folder = write_corpus(tmp_path / "corpus", pairs)
    with caplog.at_level(logging.INFO):
        result = lab.run(
            *(o for o in SMALL if not o.startswith("data.")), "data=parallel", f"data.dir={folder}"
        )
    text = caplog.text
    assert "train: 2 pairs with an empty side left out" in text
    assert "train: 1 pairs of more than data.max_length=200 tokens left out" in text
    assert "test2016: 1 pairs of more than data.max_length=200 tokens cut" in text
    assert len(Path(result.folder, "test2016.en").read_text().splitlines()) == len(pairs)


def test_a_test_set_that_is_missing_is_told_before_training(lab: Any, tmp_path: Path) -> None:
    folder = write_corpus(tmp_path / "corpus", PAIRS)
    Path(folder, "test2016.en").unlink()
    own = (*(o for o in SMALL if not o.startswith("data.")), "data=parallel", f"data.dir={folder}")
    with pytest.raises(
        ValueError, match=r"^data\.dir=.*test2016\.en.*limit_test_batches=0"
    ) as told:
        lab.run(*own)
    assert "\n" not in str(told.value)
    assert lab.curve(lab.last().info.run_id, "train/loss") == []
    result = lab.run(*own, "trainer.limit_test_batches=0", "trainer.max_epochs=1")
    assert "test/loss" not in result.metrics


def test_a_position_table_that_is_too_short_says_so(lab: Any) -> None:
    with pytest.raises(ValueError, match=r"model\.max_length=5: a sentence of \d+ tokens"):
        lab.run(*SMALL, "model.max_length=5")


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_fully_padded_batch_cannot_poison(lab: Any, tmp_path: Path, precision: str) -> None:
    folder = write_corpus(tmp_path / "corpus", [("Ein Mann schläft.", "A man sleeps.")])
    result = lab.run(
        *(o for o in SMALL if not o.startswith("data.")),
        "data=parallel",
        f"data.dir={folder}",
        f"trainer.precision={precision}",
        "attention.scale=none",
    )
    assert result.diverged is None


@pytest.mark.slow
def test_only_what_was_translated_is_scored(lab: Any) -> None:
    trained = lab.run(*SMALL, "data.eval_batch_sentences=10")
    score = ("trainer.limit_train_batches=0", f"checkpoint={trained.best_checkpoint}")
    part = lab.run(*SMALL, *score, "data.eval_batch_sentences=10", "trainer.limit_test_batches=1")
    assert len(Path(part.folder, "test.en").read_text().splitlines()) == 10
    whole = Path(trained.folder, "test.en").read_text().splitlines()
    assert set(Path(part.folder, "test.en").read_text().splitlines()) <= set(whole)
