"""From files and overrides to plain values."""

import asyncio
import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.version import getbase
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
from attnscale.config.schema import MarginConfig, TrainConfig
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


def test_an_experiment_may_change_the_keys_of_the_root(tmp_path: Path) -> None:
    # Of which threads, by their files, are null and report true.
    assert compose(["experiment=textbook_figures"], folder=tmp_path).threads == 1
    assert compose(["experiment=textbook_figures", "threads=3"], folder=tmp_path).threads == 3
    assert compose(["debug=fdr"], folder=tmp_path).report is False


@pytest.mark.parametrize(
    ("overrides", "margin"),
    [
        ([], MarginConfig(0.02, 1e-4)),
        (["model=transformer"], MarginConfig(0.02, 0.0)),
        (["margin.absolute=0.3", "margin.relative=0"], MarginConfig(0.0, 0.3)),
    ],
)
def test_a_difference_that_matters_depends_on_the_loss(
    tmp_path: Path, overrides: list[str], margin: MarginConfig
) -> None:
    assert compose(overrides, folder=tmp_path).margin == margin


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


@pytest.mark.parametrize(
    ("app", "key"),
    [
        ("train", "tracking.experiment"),
        ("evaluate", "tracking.experiment"),
        ("report", "tracking.experiment"),
        ("curves", "tracking.experiment"),
        ("theory", "results"),
    ],
)
def test_an_experiment_is_the_key_else_the_variable_else_the_default(
    app: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def experiment(*overrides: str) -> object:
        with initialize_config_dir(str(project_root() / "conf"), version_base="1.3"):
            return OmegaConf.select(hydra_compose(app, list(overrides)), key)

    register()
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    assert experiment() == "attnscale"
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "")
    assert experiment() == "attnscale"
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine, [a]")
    assert experiment() == "mine, [a]"
    assert experiment(f"{key}=given") == "given"


def test_a_run_name_is_the_key_else_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_RUN_NAME", raising=False)
    assert compose([], folder=tmp_path).tracking.run_name is None
    monkeypatch.setenv("MLFLOW_RUN_NAME", "first")
    assert compose([], folder=tmp_path).tracking.run_name == "first"
    assert compose(["tracking.run_name=mine"], folder=tmp_path).tracking.run_name == "mine"


def test_what_a_job_alone_can_resolve_is_resolved_without_a_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("USERNAME", "PASSWORD"):
        monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", "")
    assert (
        compose(["tracking.uri=http://me:se@host"], folder=tmp_path).tracking.uri == "http://host"
    )
    assert os.environ["MLFLOW_TRACKING_PASSWORD"] == "se"


PATHS = {
    "train": ("checkpoint", "folder", "data.dir", "data.cache", "trainer.default_root_dir"),
    "translate": ("checkpoint", "input", "output"),
    "evaluate": ("checkpoint", "data.dir", "folder"),
    "report": ("folder",),
    "curves": ("file",),
    "theory": ("docs", "folder"),
}


@pytest.mark.parametrize("app", PATHS)
def test_a_tilde_is_the_home_folder_in_every_path_of_an_app(
    monkeypatch: pytest.MonkeyPatch, app: str
) -> None:
    monkeypatch.setenv("HOME", "/h")
    register()
    overrides = [f"{key}='~/x'" for key in PATHS[app]]
    folder = [] if "folder" in PATHS[app] or app == "translate" else ["hydra.run.dir=/x"]
    data = ["model=transformer", "data=multi30k", "+tags.path='~/x'"] if app == "train" else []
    with initialize_config_dir(str(project_root() / "conf"), version_base="1.3"):
        values = resolve(hydra_compose(app, [*data, *overrides, *folder]))
    for key in PATHS[app]:
        assert OmegaConf.select(OmegaConf.create(values), key) == "/h/x", key
    if app == "train":
        assert values["tags"] == {"path": "~/x"}


def test_a_path_inside_a_class_of_ones_own_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    config = OmegaConf.create({"a": [{"dirpath": "~/x", "name": "~/x"}]})
    assert resolve(config) == {"a": [{"dirpath": "/h/x", "name": "~/x"}]}


@pytest.mark.parametrize("base", [None, "1.2"])
def test_it_composes_in_any_state_of_hydra_and_leaves_it(tmp_path: Path, base: str | None) -> None:
    GlobalHydra.instance().clear()
    if base is not None:
        initialize_config_dir(str(project_root() / "conf"), version_base=base)
    hydra = GlobalHydra.instance().hydra
    try:
        for seed in (1, 2):
            assert compose([f"seed={seed}"], folder=tmp_path).seed == seed
            assert GlobalHydra.instance().hydra is hydra
        if base is not None:
            assert str(getbase()) == base
    finally:
        GlobalHydra.instance().clear()


def test_threads_and_an_event_loop_compose_at_once(tmp_path: Path) -> None:
    async def seeds() -> list[int]:
        configs = [asyncio.to_thread(compose, [f"seed={i}"], folder=tmp_path) for i in range(4)]
        return [config.seed for config in await asyncio.gather(*configs)]

    assert asyncio.run(seeds()) == [0, 1, 2, 3]


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / 'größe "a" = b\\c, d'
    assert compose([], folder=folder).folder == str(folder)


def test_hydras_own_compose_is_told_what_is_missing() -> None:
    register()
    with initialize_config_dir(str(project_root() / "conf"), version_base="1.3"):
        composed = hydra_compose("train")
        with pytest.raises(InterpolationResolutionError, match="folder is missing: give folder="):
            resolve(composed)
