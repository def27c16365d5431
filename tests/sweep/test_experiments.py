"""Experiments of ``conf/`` that sweep: over what."""

from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

from attnscale.attention import SCALES
from attnscale.config.build import project_root, register
from attnscale.sweep.overrides import check, parse


def test_the_experiment_of_all_modes_sweeps_over_the_registry(tmp_path: Path) -> None:
    register()
    with initialize_config_dir(str(project_root() / "conf"), version_base="1.3"):
        config = compose(
            "train",
            ["experiment=scale_modes", f"folder='{tmp_path}'"],
            return_hydra_config=True,
        )
    # As Hydra's sweeper reads them.
    overrides = [f"{key}={value}" for key, value in config.hydra.sweeper.params.items()]
    check(overrides, config)
    (jobs,) = BasicSweeper.split_arguments(parse(overrides), max_batch_size=None)
    assert jobs == [[f"attention.scale={name}"] for name in SCALES]
