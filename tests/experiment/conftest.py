import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from attnscale.config.build import compose
from attnscale.config.schema import TrainConfig
from attnscale.experiment import Result, run


@dataclass
class Lab:
    """A store and a folder of its own, to run configurations in this process."""

    path: Path
    runs: int = 0

    @property
    def uri(self) -> str:
        return f"sqlite:///{self.path}/mlflow.db"

    def config(self, *overrides: str) -> TrainConfig:
        self.runs += 1
        fixed = [f"tracking.uri={self.uri}", "trainer.enable_progress_bar=false"]
        if not any("callbacks" in override for override in overrides):
            # Drawing takes longer than the small models here; tests/callbacks tests it.
            fixed.append("callbacks.pictures=null")
        return compose([*fixed, *overrides], folder=self.path / f"run{self.runs}")

    def run(self, *overrides: str, **changes: Any) -> Result:
        return run(self.config(*overrides), **changes)

    @property
    def client(self) -> MlflowClient:
        return MlflowClient(self.uri)

    def recorded(self) -> list[Run]:
        found = self.client.search_experiments()
        return list(self.client.search_runs([e.experiment_id for e in found]))

    def last(self) -> Run:
        folder = json.loads((self.path / f"run{self.runs}" / "run.json").read_text())
        return self.client.get_run(folder["run_id"])

    def curve(self, run_id: str, metric: str) -> list[tuple[int, float]]:
        points = self.client.get_metric_history(run_id, metric)
        return sorted((p.step, p.value) for p in points)


@pytest.fixture
def lab(tmp_path: Path, empty_store: Path) -> Lab:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return Lab(tmp_path)
