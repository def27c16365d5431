"""What Hydra itself builds is looked at before it builds it."""

import shutil
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl

from attnscale.config.build import register
from attnscale.config.hydra_section import bounded_hydra
from tests.config.files import FILES, with_call

ROOT = Path(__file__).resolve().parents[2]
HYDRA = [case for case, (_, words) in FILES.items() if "hydra" in words and "sweep" not in case]


def test_there_are_cases() -> None:
    assert len(HYDRA) >= 5


@pytest.mark.parametrize("case", HYDRA)
def test_a_file_is_refused_in_composition(tmp_path: Path, case: str) -> None:
    content, words = FILES[case]
    conf = tmp_path / "conf"
    shutil.copytree(ROOT / "conf", conf)
    text = yaml.safe_dump(with_call(content, tmp_path / "called"))
    (conf / "experiment" / "attack.yaml").write_text(f"# @package _global_\n{text}")
    register()
    asked = ["experiment=attack"]
    with initialize_config_dir(str(conf), version_base="1.3"):
        # Without the bounds it composes: it is they that refuse.
        compose("train", asked, return_hydra_config=True)
        with bounded_hydra(), pytest.raises(ValueError) as caught:  # noqa: PT011
            compose("train", asked, return_hydra_config=True)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["hydra/launcher=slurm", "model.d_k=16"],
        ["hydra/launcher=submitit_local"],
        ["hydra/job_logging=default", "hydra/hydra_logging=default"],
        ["hydra/job_logging=disabled", "hydra.verbose=true"],
    ],
)
def test_the_choices_of_hydra_are_allowed(overrides: list[str]) -> None:
    register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"), bounded_hydra():
        assert "hydra" in compose("train", overrides, return_hydra_config=True)


def test_a_sampler_of_ones_own_is_allowed_by_its_package() -> None:
    register()
    asked = ["+hydra.sweeper.sampler._target_=optuna.samplers.TPESampler"]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        with bounded_hydra(), pytest.raises(ValueError, match=r"TPESampler: allowed in"):
            compose("train", asked, return_hydra_config=True)
        with bounded_hydra(["optuna"]):
            assert "hydra" in compose("train", asked, return_hydra_config=True)
        with bounded_hydra(["opt"]), pytest.raises(ValueError, match=r"TPESampler: allowed in"):
            compose("train", asked, return_hydra_config=True)


def test_the_bounds_end_with_their_block() -> None:
    before = ConfigLoaderImpl.load_configuration
    inside = []

    def fail() -> None:
        with bounded_hydra():
            inside.append(ConfigLoaderImpl.load_configuration)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert inside[0] is not before
    assert ConfigLoaderImpl.load_configuration is before
