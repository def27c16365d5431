"""What Hydra itself builds is looked at before it builds it."""

import os
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import OmegaConf

from attnscale.config.build import register
from attnscale.config.hydra_section import bounded_hydra
from attnscale.tracking.address import whole
from attnscale.tracking.store import find_store
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


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("http://me:secret@host", "http://host"),
        ("'postgresql://me:se\\'cret@host/db'", "postgresql://me:***@host/db"),
        ("'postgresql://host/db?password=secret'", "postgresql://host/db?***"),
        ("${oc.env:STORE}", "postgresql://me:***@host/db"),
    ],
)
def test_hydra_is_not_told_the_login_of_a_store(
    uri: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that what composition sets is taken back.
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("STORE", "postgresql://me:secret@host/db")
    monkeypatch.setattr(sys, "argv", ["train.py", f"tracking.uri={uri}", "model.d_k=8"])
    register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"), bounded_hydra():
        config = compose("train", sys.argv[1:], return_hydra_config=True)
    assert config.tracking.uri == shown
    assert config.hydra.overrides.task == [f'tracking.uri="{shown}"', "model.d_k=8"]
    assert sys.argv == ["train.py", f'tracking.uri="{shown}"', "model.d_k=8"]
    assert "cret" not in OmegaConf.to_yaml(config)
    store = find_store(config.tracking.uri, ROOT)
    assert store.uri == shown
    assert "cret" in whole(shown) + os.environ["MLFLOW_TRACKING_PASSWORD"]


@pytest.mark.parametrize("address", ["http://me:secret@host/raw", "'http://host/raw?token=secret'"])
def test_an_address_of_data_takes_no_login(address: str) -> None:
    register()
    overrides = ["model=transformer", "data=multi30k", f"data.address={address}"]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"), bounded_hydra():
        with pytest.raises(ValueError, match=r"^data\.address: .*data\.dir=PATH") as told:
            compose("train", overrides)
        compose("train", overrides[:2])
    assert "secret" not in str(told.value)


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
