"""Slurm's plug-in is loaded where it is named, and is an extra."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException

from attnscale.config.build import project_root, register
from attnscale.sweep.mistakes import explain

PROBE = """
import sys
import attnscale.cli.app, attnscale.sweep.hooks, attnscale.cli.theory
print([name for name in sys.modules if name.startswith(("submitit", "hydra_plugins"))])
print("attnscale.sweep.slurm" in sys.modules)
slow = {"pytorch_lightning", "torchmetrics", "mlflow", "scipy"}
print(sorted(slow & set(sys.modules)))
"""


def test_an_app_does_not_load_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.split("\n")[:2] == ["[]", "False"]


def test_an_app_does_not_load_what_takes_seconds_before_it_has_checked_its_configuration(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.split("\n")[2] == "[]"


def test_where_it_is_not_installed_one_line_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    register()
    with initialize_config_dir(str(project_root() / "conf"), version_base="1.3"):
        # What the plug-in registers.
        launchers = ConfigStore.instance().repo["hydra"]["launcher"]
        monkeypatch.delitem(launchers, "submitit_slurm.yaml", raising=False)
        with pytest.raises(HydraException) as caught:
            compose("train", ["hydra/launcher=slurm"], return_hydra_config=True)
    line = "hydra/launcher=slurm: not installed; pip install 'attnscale[slurm]'"
    assert explain(caught.value) == line


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("sbatch") is not None, reason="Slurm is here")
def test_where_it_is_named_it_is_loaded(shell: Any) -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    done = shell("-m", "hydra/launcher=slurm", "model.d_k=8,16")
    assert done.returncode == 1
    line = "hydra/launcher=slurm: sbatch was not found; submit from a Slurm machine"
    assert done.stderr.strip() == line
