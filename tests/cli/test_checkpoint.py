"""What is scored and translated with a checkpoint, and where that is told."""

import logging
from pathlib import Path

import pytest

from attnscale.cli.checkpoint import _run_config
from attnscale.config.app_schema import (
    EvaluateConfig,
    EvaluateDataConfig,
    EvaluateTaskConfig,
    EvaluateTrainerConfig,
)
from attnscale.config.build import compose
from attnscale.config.schema import TrackingConfig
from attnscale.data.vocabulary import SPECIALS, Vocabulary
from attnscale.experiment.translator import Translator
from tests.support.models import transformer

PARALLEL = ("model=transformer", "data=parallel", "data.dir=corpus")


def evaluation(split: str | None, tokenizer: str | None = None) -> EvaluateConfig:
    return EvaluateConfig(
        checkpoint="best.ckpt",
        data=EvaluateDataConfig(split=split, dir=None),
        task=EvaluateTaskConfig(bleu_tokenizer=tokenizer),
        trainer=EvaluateTrainerConfig(accelerator=None, devices=None, strategy=None),
        tracking=TrackingConfig(uri=None, experiment="e", run_name=None),
        folder="f",
    )


@pytest.mark.parametrize("test", [None, "test2016"])
@pytest.mark.parametrize(
    ("split", "scored"), [(None, "as in training"), ("val", "val"), ("test2017", "test2017")]
)
def test_what_training_tested_on_is_scored_unless_a_split_is_named(
    test: str | None, split: str | None, scored: str
) -> None:
    trained = compose([*PARALLEL, f"data.test={test or 'null'}"], folder=Path("unset"))
    config = _run_config(trained, evaluation(split))
    assert config.data["test"] == (test if split is None else scored)


@pytest.mark.parametrize("split", [None, "test", "val"])
def test_data_with_one_test_set_have_no_other_split(split: str | None) -> None:
    trained = compose([], folder=Path("unset"))
    if split == "val":
        with pytest.raises(ValueError, match=r"data\.split=val: .* have one test set"):
            _run_config(trained, evaluation(split))
    else:
        assert "test" not in _run_config(trained, evaluation(split)).data


def test_bleu_is_computed_as_in_training_unless_a_tokenizer_is_named() -> None:
    trained = compose([*PARALLEL, "task.bleu_tokenizer=intl"], folder=Path("unset"))
    assert _run_config(trained, evaluation(None)).task["bleu_tokenizer"] == "intl"
    assert _run_config(trained, evaluation(None, "char")).task["bleu_tokenizer"] == "char"


@pytest.fixture
def translator() -> Translator:
    """One that reads 5 tokens, and never ends a sentence."""
    words = [*SPECIALS, "a", "b"]
    model = transformer("sqrt", source_size=len(words), target_size=len(words)).eval()
    assert model.output.bias is not None
    model.output.bias.data[4] = 1e6
    translator = object.__new__(Translator)
    vars(translator).update(
        **{"model": model, "device": "cpu", "max_length": 5, "split": str.split},
        **{"source": Vocabulary(words), "target": Vocabulary(words), "join": " ".join},
    )
    return translator


def test_a_line_that_is_cut_is_told_with_its_number(
    translator: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    lines = ["a b", "", "a " * 6000, "b"]
    with caplog.at_level(logging.WARNING):
        assert len(list(translator.lines(lines, 2))) == 4
    cut = [text for text in caplog.messages if "6000" in text]
    assert cut == ["line 3: 6000 tokens, of which the first 5 are read (data.max_length)"]
    ends = [text.partition(":")[0] for text in caplog.messages if "has no end after" in text]
    assert ends == ["line 1", "line 3", "line 4"]
