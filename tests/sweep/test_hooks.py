"""What is refused before a sweep's first job."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from attnscale.config.build import project_root, register
from attnscale.sweep.hooks import SweepHook

URIS = "http://me:hush@a,http://b"


@pytest.mark.parametrize(
    ("overrides", "params"),
    [([f"tracking.uri={URIS}"], {}), ([], {"tracking.uri": URIS})],
)
def test_jobs_of_a_sweep_share_their_store(
    overrides: list[str], params: dict[str, str], tmp_path: Path
) -> None:
    register()
    with initialize_config_dir(str(project_root() / "conf"), version_base="1.3"):
        own = [f"hydra.sweep.dir={tmp_path}/sweep"]
        config = compose("train", own, return_hydra_config=True)
    config.hydra.overrides.task, config.hydra.sweeper.params = overrides, params
    with pytest.raises(SystemExit) as stopped:
        SweepHook().on_multirun_start(config)
    assert stopped.value.code == "tracking.uri: is one for all jobs; start a sweep for each"
    assert list(tmp_path.iterdir()) == []
