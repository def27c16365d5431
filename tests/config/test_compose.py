"""From files and overrides to plain values."""

from pathlib import Path
from typing import Any

import pytest
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue

from attnscale.config.app_schema import ROOTS, CurvesConfig, TranslateConfig
from attnscale.config.build import choices, compose, compose_root, resolve, scale_modes
from attnscale.config.schema import TrainConfig
from attnscale.config.section import plain, typed
from attnscale.config.targets import Targets


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


@pytest.mark.parametrize("root", ROOTS, ids=ROOTS.values())
def test_every_root_composes(tmp_path: Path, root: type[Any]) -> None:
    if root in (CurvesConfig, TranslateConfig):
        with pytest.raises(HydraException, match="folder"):
            compose_root(root, [], folder=tmp_path)
        return
    config = compose_root(root, [], folder=tmp_path)
    assert isinstance(config, root)
    assert config.folder == str(tmp_path)


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
    assert "sqrt, none" in scale_modes()
