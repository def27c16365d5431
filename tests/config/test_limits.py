"""The bounds beside the types: those of the classes, and of the choices in ``conf/``."""

from dataclasses import fields
from pathlib import Path

import pytest

from attnscale.attention.core import BACKENDS
from attnscale.config.build import compose
from attnscale.config.choice_schema import (
    AttentionConfig,
    AutoencoderConfig,
    Multi30kConfig,
    OptimizerConfig,
    TrainerConfig,
    TransformerConfig,
    TranslationDataConfig,
)
from attnscale.config.limits import check_limits
from attnscale.config.schema import GROUPS, SECTIONS, TrainConfig
from attnscale.config.section import plain
from attnscale.data.multi30k import FORMS
from attnscale.data.translation import TOO_LONG
from attnscale.data.vocabulary import TOKENIZERS
from attnscale.experiment.surroundings import ALLOCATORS
from attnscale.model.layers import INITS, NORMS, POSITIONS
from attnscale.model.sigma_reparam import SIGMA_REPARAM
from attnscale.model.transformer import STACK_NORMS
from attnscale.task.settings import CLIP_ALGORITHMS, SCHEDULES


@pytest.mark.parametrize(
    ("kind", "key", "words"),
    [
        (AttentionConfig, "backend", BACKENDS),
        (AttentionConfig, "sigma_reparam", SIGMA_REPARAM),
        (AutoencoderConfig, "norm", NORMS),
        (AutoencoderConfig, "init", INITS),
        (TransformerConfig, "norm", STACK_NORMS),
        (TransformerConfig, "positions", POSITIONS),
        (TransformerConfig, "init", INITS),
        (TranslationDataConfig, "tokenizer", TOKENIZERS),
        (TranslationDataConfig, "too_long", TOO_LONG),
        (Multi30kConfig, "form", FORMS),
        (OptimizerConfig, "schedule", SCHEDULES),
        (TrainerConfig, "gradient_clip_algorithm", (*CLIP_ALGORITHMS, "null")),
        (TrainConfig, "allocator", ALLOCATORS),
    ],
)
def test_the_words_of_a_choice_are_those_of_the_class(
    kind: type, key: str, words: tuple[str, ...]
) -> None:
    (check,) = (one.metadata["check"] for one in fields(kind) if one.name == key)
    with pytest.raises(ValueError, match=f"^{key}=x: allowed are {', '.join(words)}$"):
        check(key, "x")


@pytest.mark.parametrize(
    "choice",
    [
        *("model=autoencoder", "model=transformer", "data=parallel", "data=multi30k"),
        *("optimizer=adam", "optimizer=adamw", "optimizer=sgd"),
    ],
)
def test_every_choice_has_the_bounds_of_its_type(tmp_path: Path, choice: str) -> None:
    # A model brings data and task of its own.
    more = ["model=transformer"] if choice.startswith("data") else []
    values = plain(compose([*more, choice], folder=tmp_path))
    check_limits(values, TrainConfig, SECTIONS)
    for section in ("model", "data", "task", "optimizer"):
        kind = SECTIONS[values[section]["_target_"]]
        assert kind in GROUPS.values()
        assert {one.name for one in fields(kind)} == set(values[section])
