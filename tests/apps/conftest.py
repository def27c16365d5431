import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from tests.support import fork_server

ROOT = Path(__file__).resolve().parents[2]
SHORT = (
    "trainer.max_epochs=1",
    "trainer.limit_train_batches=4",
    "trainer.limit_val_batches=2",
    "trainer.accelerator=cpu",
)

QUICK = ("callbacks.pictures=null", "report=false")


@dataclass
class Shell:
    """Gives commands as a person would, with a store and output folders of its own."""

    path: Path
    root: Path = ROOT

    @property
    def uri(self) -> str:
        return f"sqlite:///{self.path}/mlflow.db"

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "HYDRA_"))}
        return {**kept, "MLFLOW_TRACKING_URI": self.uri, "OMP_NUM_THREADS": "1", **(extra or {})}

    def outputs(self) -> list[str]:
        run, sweep = self.path / "outputs", self.path / "multirun"
        return [
            f"hydra.run.dir='{run}/${{launch_id:}}'",
            f"hydra.sweep.dir='{sweep}/${{launch_id:}}'",
        ]

    def __call__(
        self,
        *arguments: str,
        app: str = "src.train",
        timeout: float = 200,
        extra: Mapping[str, str] | None = None,
        where: bool = True,
        whole: bool = False,
        fresh: bool = False,
    ) -> "subprocess.CompletedProcess[str]":
        """Run an app; without ``whole`` training draws no pictures and ends without a report.

        It runs in a fork of an interpreter that has imported its packages, or with ``fresh`` in
        an interpreter of its own.
        """
        quick = [] if whole or app != "src.train" or not where else QUICK
        more = [q for q in quick if not any(q.split("=")[0] in a for a in arguments)]
        words = [*arguments, *more, *(self.outputs() if where else [])]
        if not fresh:
            return fork_server.run(app, words, self.root, self.environment(extra), timeout)
        command = [sys.executable, "-m", app, *words]
        return subprocess.run(
            command,
            cwd=self.root,
            env=self.environment(extra),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def runs(self) -> list[Run]:
        client = MlflowClient(self.uri)
        ids = [e.experiment_id for e in client.search_experiments()]
        return sorted(client.search_runs(ids), key=lambda r: int(r.data.tags.get("job", -1)))

    def jobs(self) -> list[Run]:
        return [run for run in self.runs() if run.data.tags["kind"] == "run"]

    def parent(self) -> Run:
        (found,) = [run for run in self.runs() if run.data.tags["kind"] == "sweep"]
        return found

    def folder(self) -> Path:
        return max((self.path / "outputs").iterdir(), key=lambda p: p.stat().st_mtime_ns)

    def result(self) -> dict[str, object]:
        made: dict[str, object] = json.loads((self.folder() / "result.json").read_text())
        return made


@pytest.fixture
def shell(tmp_path: Path, empty_store: Path) -> Shell:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return Shell(tmp_path)


@pytest.fixture(scope="module")
def module_shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(tmp_path_factory.mktemp("shell"))
