"""Several processes share the sentences of a batch: each is counted by one of them."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from attnscale.data.batching import Processes
from attnscale.data.translation import TranslationData
from attnscale.data.vocabulary import PADDING
from tests.support.models import transformer
from tests.task.toy import translation

WORLDS = pytest.mark.parametrize("world", [2, 3])


class Shared(TranslationData):
    """Five sentences in batches of two, the last one alone, seen from one of several processes."""

    def __init__(self, rank: int, world: int, **changed: str) -> None:
        rest: dict[str, Any] = {
            **{"source": "de", "target": "en", "test": None, "tokenizer": "split"},
            **{"lowercase": False, "min_frequency": 1, "max_length": 30, "too_long": "skip"},
            **{"batch_tokens": None, "batch_sentences": 2, "eval_batch_sentences": 2, "seed": 0},
            **changed,
        }
        super().__init__(**rest)
        self.place = Processes(rank, world)

    def pairs(self, split: str) -> tuple[list[str], list[str]]:
        sources = [" ".join("abcde"[:n]) for n in (1, 4, 2, 5, 3)]
        return sources, [f"{source} {split}" for source in sources]

    def _processes(self) -> Processes:
        return self.place


def batches(split: str, rank: int = 0, world: int = 1, *, overfit: bool = False) -> list[Any]:
    data = Shared(rank, world)
    data.count_batches(overfit=1.0 if overfit else 0.0)
    loader = {
        "train": data.train_dataloader,
        "val": data.val_dataloader,
        "test": data.test_dataloader,
    }[split]()
    return [batch for block in loader for batch in block]


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Any:
    data = Shared(0, 1)
    sizes: dict[str, Any] = data.model_arguments()
    made = translation(transformer("sqrt", **sizes).eval())
    monkeypatch.setattr(type(made), "data", data)
    return made


@WORLDS
@pytest.mark.parametrize("overfit", [False, True])
@pytest.mark.parametrize("split", ["val", "test"])
def test_the_figures_of_a_split_are_those_of_one_process(
    task: Any, split: str, overfit: bool, world: int
) -> None:
    sums = []
    for places in ([(0, 1)], [(rank, world) for rank in range(world)]):
        metric = task.metrics[split]
        for rank, n in places:
            task.evaluate(split, batches(split, rank, n, overfit=overfit))
        sums.append({name: float(getattr(metric, name)) for name in metric.sums})
        metric.reset()
    assert sums[1] == pytest.approx(sums[0], rel=1e-6)


def test_a_double_model_is_judged_in_double_precision(task: Any) -> None:
    task.model.double()
    batch = batches("val")[0]
    task.evaluate("val", [batch])
    with torch.no_grad():
        logits = task.model.output(task.model(batch.source, batch.target[:, :-1], PADDING))
        total = functional.cross_entropy(
            logits.mT, batch.target[:, 1:], ignore_index=PADDING, reduction="sum"
        )
    assert float(task.metrics["val"].nll) == pytest.approx(float(total), rel=1e-12)


@WORLDS
@torch.no_grad()
def test_the_loss_of_a_batch_is_the_mean_over_processes(task: Any, world: int) -> None:
    shares = zip(*(batches("train", rank, world) for rank in range(world)), strict=True)
    for whole, parts in zip(batches("train"), shares, strict=True):
        mean = sum(float(task.loss(part)) for part in parts) / world
        assert mean == pytest.approx(float(task.loss(whole)), rel=1e-5)


@WORLDS
def test_a_sentence_is_translated_by_one_process(
    task: Any, world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def greedy(model: Any, source: Tensor) -> list[list[int]]:
        counts.append(len(source))
        return [[] for _ in source]

    monkeypatch.setattr("attnscale.task.translation.greedy", greedy)
    for rank in range(world):
        task.test_step(batches("test", rank, world), 0)
    assert sum(counts) == len(task.translations) == 5


@pytest.mark.parametrize(
    ("tokenizer", "target", "text", "reference", "tok", "words"),
    [
        ("split", "en", "a yo@@ ung tr@@ ain ru@@ ns .", "a young train runs.", "13a", 5),
        ("split", "en", "▁a ▁yo ung ▁tr ain ▁run s .", "a young train runs.", "13a", 5),
        ("split", "th", "彼女 は よく 海 が 好き だ 。", "彼女はよく海が好きだ。", "char", 8),
        ("char", "jp", "彼女はよく海が好きだ。", "彼女はよく海が好きだ。", "char", 11),
        ("moses", "zh", "她经常喜欢大海。", "她经常喜欢大海。", "zh", 1),
        ("basic_english", "en", "A Man buys the red car.", "A Man buys the red car.", "13a", 7),
    ],
)
def test_a_perfect_model_has_full_bleu(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    tokenizer: str,
    target: str,
    text: str,
    reference: str,
    tok: str,
    words: int,
) -> None:
    data = Shared(0, 1, tokenizer=tokenizer, target=target)
    monkeypatch.setattr(data, "pairs", lambda _: (["a"], [text]))
    sizes: dict[str, Any] = data.model_arguments()
    task = translation(transformer("sqrt", **sizes).eval())
    monkeypatch.setattr(type(task), "data", data)
    end = SimpleNamespace(is_global_zero=True, default_root_dir=str(tmp_path))
    monkeypatch.setattr(type(task), "trainer", end)
    task.translations = {0: data.load("test").target[0].tolist()}
    caplog.clear()
    with caplog.at_level("INFO"):
        figures = task._score()
        assert caplog.text == ""
        task.translations[0].pop()
        assert task._score() == figures
    assert caplog.messages == ["test: 1 of 1 translations have no end and are cut"]
    assert figures["bleu"] == figures["bleu_ceiling"] == pytest.approx(100)
    assert figures["bleu_tokenized"] == pytest.approx(100 if words > 3 else 0)
    signatures = json.loads((tmp_path / "signatures.json").read_text())
    assert f"tok:{tok}|" in signatures["bleu"]
    (line,) = (tmp_path / "translations.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["reference"] == reference


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_process_without_a_sentence_has_no_real_query(task: Any, side: str) -> None:
    own, filler = (batches("val", rank, 2)[-1] for rank in (0, 1))
    assert filler.loss_weight == 0.0
    assert bool(task.real_queries(side, own).all())
    assert not bool(task.real_queries(side, filler).any())
