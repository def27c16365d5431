"""A mode that wants a statistic of the data gets it in a run, and keeps it in the checkpoint."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from attnscale.attention import attentions
from attnscale.data.gaussian import GaussianData
from attnscale.data.toy_translation import draw_pairs
from attnscale.data.translation import TranslationData
from attnscale.experiment.checkpoints import load_checkpoint
from attnscale.experiment.translator import Translator

SHORT = (
    "trainer.max_epochs=1",
    "data.n_train=100",
    "data.n_val=30",
    "data.n_test=30",
    "attention.scale=qknorm",
)
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
    "trainer.max_epochs=1",
    "attention.scale=qknorm",
)
NAME = "length_p97_5"


def refuse(*_: object) -> Any:
    raise AssertionError("the training data were read")


@pytest.mark.slow
def test_the_gain_starts_at_that_of_the_data(lab: Any) -> None:
    result = lab.run(*SHORT, "optimizer.lr=0.0")
    state = load_checkpoint(str(result.last_checkpoint))
    assert state.statistics == {NAME: 8.0}
    gain = state.tensors["model.layers.0.attention.scale.gain"]
    torch.testing.assert_close(gain, torch.tensor([math.log2(56)]))
    longer = lab.run(*SHORT, "optimizer.lr=0.0", "data.length=5")
    gain = load_checkpoint(str(longer.last_checkpoint)).tensors[
        "model.layers.0.attention.scale.gain"
    ]
    torch.testing.assert_close(gain, torch.tensor([math.log2(20)]))


@pytest.mark.slow
def test_a_resumed_run_measures_nothing(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = lab.run(*SHORT, "trainer.max_epochs=2")
    half = lab.run(*SHORT)
    monkeypatch.setattr(GaussianData, "train_lengths", refuse)
    with pytest.raises(AssertionError, match="were read"):
        lab.run(*SHORT)
    rest = lab.run(*SHORT, "trainer.max_epochs=2", f"checkpoint={half.last_checkpoint}")
    first, second = (load_checkpoint(str(r.last_checkpoint)) for r in (whole, rest))
    assert first.statistics == second.statistics == {NAME: 8.0}
    for name, value in first.tensors.items():
        assert torch.equal(second.tensors[name], value), name
    # It did learn: the gain is not that of the start.
    gain = first.tensors["model.layers.0.attention.scale.gain"]
    assert abs(float(gain) - math.log2(56)) > 1e-5


def test_a_translator_reads_no_training_data(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    result = lab.run(*SMALL, "data.tokenizer=split", "optimizer.lr=0.0")
    pairs = draw_pairs(150 + 31 + 33, 0)
    longest = float(np.percentile([len(text.split()) for p in pairs[:150] for text in p], 97.5))
    statistics = load_checkpoint(str(result.last_checkpoint)).statistics
    assert statistics is not None
    assert dict(statistics) == {NAME: pytest.approx(longest)}
    monkeypatch.setattr(TranslationData, "load", refuse)
    monkeypatch.setattr(TranslationData, "train_lengths", refuse)
    translator = Translator(str(result.last_checkpoint))
    assert translator.batch([pairs[0][0], ""])[1] == ""
    for attention in attentions(translator.model).values():
        gain = attention.learned_scale()
        assert gain is not None
        assert gain.tolist() == pytest.approx([math.log2(longest**2 - longest)] * 2, rel=1e-6)
