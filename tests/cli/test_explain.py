"""A mistake on the command line in one line: the key, and what to write."""

import re
import shlex
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from attnscale.attention import BACKENDS, choose_scale
from attnscale.checks import check_choice
from attnscale.cli.screen import paste
from attnscale.config.build import project_root, register
from attnscale.config.hydra_section import bounded_hydra
from attnscale.sweep.mistakes import explain
from attnscale.sweep.overrides import check, listed, parse

ODD = (
    *("~/corpus", "~/a b", "a=b.ckpt", "/tmp/größe", "a(1", 'x"y~', "C:\\a~\\", "C:\\größe"),
    *("[a~", "it's~"),
)


@pytest.mark.parametrize("value", ODD)
def test_a_path_that_hydra_cannot_read_is_told_as_it_must_be_written(value: str) -> None:
    with pytest.raises(ValueError, match="is not in Hydra's grammar; write") as caught:
        parse([f"data.dir={value}"])
    (argument,) = shlex.split(str(caught.value).partition("; write ")[2])
    assert OverridesParser.create().parse_override(argument).value() == value


def test_of_a_sweep_each_value_is_quoted() -> None:
    with pytest.raises(ValueError, match="write") as caught:
        parse(["data.dir=~/a,~/b"])
    (argument,) = shlex.split(str(caught.value).partition("; write ")[2])
    override = OverridesParser.create().parse_override(argument)
    assert listed(override) == ["~/a", "~/b"]


@pytest.mark.parametrize("value", [*ODD, "/tmp/a-b_c.ckpt", "a,b"])
def test_a_printed_argument_can_be_pasted(value: str) -> None:
    (argument,) = shlex.split(paste("checkpoint", value))
    assert OverridesParser.create().parse_override(argument).value() == value


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("data.dir=~/corpus", "is not in Hydra's grammar; write 'data.dir=\"~/corpus\"'"),
        ("tags.note=x", "tags.note: no such key; +tags.note=… adds it"),
        ("model.D_K=3", "Did you mean 'd_k'?"),
        ("model=null", "model=null: allowed are autoencoder, transformer"),
        ("callbacks=null", "none"),
        ("hydra.job.chdir=true", "relative paths mean the folder of the command"),
        ('hydra.run.dir="~no-such-user/a"', "hydra.run.dir=~no-such-user/a: no such home folder"),
    ],
)
def test_a_mistake_names_the_key_and_what_to_write(override: str, line: str) -> None:
    register()
    with (
        initialize_config_dir(str(project_root() / "conf"), version_base="1.3"),
        bounded_hydra(),
        pytest.raises((HydraException, OmegaConfBaseException, ValueError)) as caught,
    ):
        compose("train", [override], return_hydra_config=True)
    assert line in explain(caught.value)


@pytest.mark.parametrize("scale", ["NONE", "None", None])
def test_a_name_in_capitals_or_null_means_the_nearest(scale: str | None) -> None:
    with pytest.raises(ValueError, match="Did you mean 'none'"):
        choose_scale(scale)
    with pytest.raises(ValueError, match="Did you mean 'none'"):
        check([f"attention.scale={'null' if scale is None else scale}"], "sqrt")


@pytest.mark.parametrize("values", ['"sqrt","none"', "choice('none',sqrt)"])
def test_a_scale_in_quotes_is_a_scale(values: str) -> None:
    check([f"attention.scale={values}"], "sqrt")


def test_null_is_answered_with_the_choices() -> None:
    with pytest.raises(ValueError, match=re.escape("b=null: allowed are auto, explicit, fused")):
        check_choice("b", None, BACKENDS)


@pytest.mark.parametrize(
    "key",
    [
        *("allocator", "attention.backend", "attention.scale", "attention.sigma_reparam"),
        *("model.init", "model.norm", "model.positions", "optimizer.schedule"),
        *("data.tokenizer", "data.too_long", "data.form", "trainer.gradient_clip_algorithm"),
    ],
)
def test_null_of_a_key_with_choices_comes_to_who_knows_them(key: str) -> None:
    register()
    with initialize_config_dir(str(project_root() / "conf"), version_base="1.3"):
        compose("train", ["model=transformer", "data=multi30k", f"{key}=null"])


def test_paths_of_hydra_itself_are_expanded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    register()
    overrides = ['hydra.run.dir="~/r/${launch_id:}"', 'hydra.sweep.dir="~/s"']
    with initialize_config_dir(str(project_root() / "conf"), version_base="1.3"), bounded_hydra():
        hydra = compose("train", overrides, return_hydra_config=True).hydra
    assert Path(hydra.run.dir).parent == tmp_path / "r"
    assert hydra.sweep.dir == str(tmp_path / "s")
