"""From a configuration to a model's scales."""

from typing import Any

import pytest

from attnscale.attention import SCALES, attentions
from attnscale.attention.scale import Constant, SoftCap, all_options
from attnscale.experiment.assemble import assemble
from attnscale.experiment.consistency import scale_factory

SHORT = ("data.n_train=100", "data.n_val=30", "data.n_test=30")


def test_every_attention_has_the_chosen_mode_with_its_options(lab: Any) -> None:
    config = lab.config(
        *SHORT,
        "model.n_layers=2",
        "attention.scale=softcap",
        "attention.options.softcap.cap=3",
        "attention.backend=explicit",
    )
    found = attentions(assemble(config, None).module.model).values()
    assert [attention.backend for attention in found] == ["explicit"] * 2
    assert len({attention.scale for attention in found}) == 2
    for attention in found:
        assert isinstance(attention.scale, SoftCap)
        assert attention.scale.cap == 3


@pytest.mark.parametrize("scale", SCALES)
def test_a_factory_has_the_options_of_its_mode_only(lab: Any, scale: str) -> None:
    factory = scale_factory(lab.config(f"attention.scale={scale}"))
    assert (factory.name, factory.kind) == (scale, SCALES[scale])
    assert factory.options == all_options().get(scale, {})
    assert factory.statistics == {}


def test_a_number_is_a_scale(lab: Any) -> None:
    scale = scale_factory(lab.config("attention.scale=0.37"))(n_heads=2, d_k=5)
    assert isinstance(scale, Constant)
    assert scale.constant == 0.37
