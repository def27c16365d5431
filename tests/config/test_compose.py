"""From files and overrides to plain values."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue

from attnscale.config.app_schema import (
    CurvesConfig,
    EvaluateConfig,
    ReportConfig,
    TheoryConfig,
    TranslateConfig,
)
from attnscale.config.build import (
    choices,
    compose,
    project_root,
    register,
    resolve,
    to_object,
)
from attnscale.config.schema import TrainConfig
from attnscale.config.section import Node, plain, typed
from attnscale.config.targets import Targets

FREE = ("callbacks", "tags")
"""Sections whose keys are free."""


def _plain_values(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_plain_values(inner) for inner in value.values())
    if isinstance(value, list):
        return all(_plain_values(inner) for inner in value)
    return value is None or type(value) in (bool, int, float, str)


def test_a_configuration_is_plain_and_resolved(tmp_path: Path) -> None:
    config = compose(["model.d_model=96", "seed=7"], folder=tmp_path)
    assert config.data["d_model"] == 96
    assert config.data["seed"] == 7
    assert config.folder == config.trainer.default_root_dir == str(tmp_path)
    values = plain(config)
    assert _plain_values(values)
    assert "hydra" not in values
    assert "allow" not in values
    assert typed(TrainConfig, values) == config


ROOTS: dict[str, type[Any]] = {
    "train": TrainConfig,
    "evaluate": EvaluateConfig,
    "translate": TranslateConfig,
    "report": ReportConfig,
    "theory": TheoryConfig,
    "curves": CurvesConfig,
}


@pytest.mark.parametrize("root", ROOTS)
def test_every_root_is_an_object(root: str) -> None:
    register()
    # What Hydra knows only when a job starts.
    name = "file" if root == "curves" else "output" if root == "translate" else "folder"
    with initialize_config_dir(str(project_root() / "conf"), version_base="1.3"):
        composed = hydra_compose(root, [f"{name}=somewhere"])
    config = to_object(composed, ROOTS[root])
    assert isinstance(config, ROOTS[root])
    assert getattr(config, name) == "somewhere"
    for field in fields(config):
        section = getattr(config, field.name)
        assert not isinstance(section, dict) or isinstance(section, Node) or field.name in FREE


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seeed": 1}, "seeed: no such key"),
        ({"trainer": {"max_stepz": 1}}, "trainer.max_stepz: no such key"),
        ({"attention": {}}, "attention.backend: is missing"),
        ({"model": "transformer"}, "model=transformer: must be a section with keys"),
    ],
)
def test_a_mistake_in_plain_values_is_named(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        typed(TrainConfig, plain(compose([], folder=tmp_path)) | change)


def test_an_object_is_a_copy(tmp_path: Path) -> None:
    values = plain(compose([], folder=tmp_path))
    config = typed(TrainConfig, values)
    config.callbacks["curves"]["per_attention"] = config.optimizer.lr = 7
    assert plain(config)["optimizer"]["lr"] == 7
    assert values["callbacks"]["curves"]["per_attention"] is True
    assert values["optimizer"]["lr"] == 1e-3


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.dk=3", "Key 'dk' not in 'AutoencoderConfig'"),
        ("modle.d_k=3", "Could not override 'modle.d_k'"),
        ("model.d_k=abc", "'abc' of type 'str' could not be converted to Integer"),
        ("seed=null", "field 'seed' is not Optional"),
        ("model=perceptron", "Could not find 'model/perceptron'"),
        ("allow=mypackage", "allow"),
        ("allow=null", "allow"),
    ],
)
def test_a_mistake_ends_composition(tmp_path: Path, override: str, words: str) -> None:
    with pytest.raises(HydraException) as caught:
        compose([override], folder=tmp_path)
    text = " ".join(f"{error}" for error in (caught.value, caught.value.__cause__))
    assert words in text


def test_a_missing_value_and_a_lost_interpolation_are_refused() -> None:
    with pytest.raises(MissingMandatoryValue, match="d_k"):
        resolve(OmegaConf.create({"model": {"d_k": "???"}}))
    with pytest.raises(InterpolationResolutionError, match="nowhere"):
        resolve(OmegaConf.create({"a": "${nowhere}"}))


def test_an_interpolation_hides_no_target() -> None:
    config = OmegaConf.create({"name": "os.system", "a": [{"_target_": "${name}"}]})
    with pytest.raises(ValueError, match=r"a\[0\]\._target_=os\.system: allowed are"):
        resolve(config)


@pytest.mark.parametrize(
    ("composed", "asked"), [(["a"], ()), ([], ("a",)), (["a", "b"], ("a",)), (["b"], ("a",))]
)
def test_allow_must_be_what_the_command_line_says(
    composed: list[str], asked: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError, match=r"allow=.*counts on the command line only"):
        resolve(OmegaConf.create({"allow": composed}), Targets(asked))


def test_allow_is_left_out() -> None:
    assert resolve(OmegaConf.create({"allow": ["a"], "b": 1}), Targets(("a",))) == {"b": 1}


def test_the_help_text_names_choices_and_modes() -> None:
    assert "optimizer=    adam, adamw, sgd" in choices()
    assert "sqrt, none" in OmegaConf.create({"modes": "${scale_modes:}"}).modes
