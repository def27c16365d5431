"""Planted runs: plain records, and curves without a store."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from attnscale.report.runs import Run
from attnscale.tracking.history import History
from attnscale.tracking.store import Store, find_store, sqlite_uri

KEYS = {"scale": "attention.scale", "d_k": "model.d_k", "lr": "optimizer.lr"}
Losses = Mapping[str, Mapping[int, float] | Sequence[float]]
Points = Sequence[tuple[int, float, int]]


class Plant:
    """Makes runs from a few words, such as ``scale=none d_k=64``; each gets an id of its own."""

    def __init__(self) -> None:
        self.made = 0

    def run(
        self,
        words: str = "",
        seed: int = 0,
        loss: float | None = 0.5,
        *,
        state: str = "finished",
        reason: str = "",
        metrics: Mapping[str, float] | None = None,
        tags: Mapping[str, str] | None = None,
        **parameters: str,
    ) -> Run:
        pairs = [word.partition("=")[::2] for word in words.split()]
        named = {KEYS.get(key, key): value for key, value in pairs}
        more = {key.replace("__", "."): value for key, value in parameters.items()}
        figures = {**({} if loss is None else {"val/best_loss": loss}), **(metrics or {})}
        self.made += 1
        return Run(
            run_id=f"id{self.made}",
            name=f"run {self.made}",
            state=state,
            reason=reason,
            seed=seed,
            parameters={**named, **more, "seed": str(seed)},
            metrics=figures,
            recorded=frozenset(figures),
            tags=dict(tags or {}),
        )

    def runs(self, losses: Losses) -> list[Run]:
        """Return finished runs: words of each setting -> losses, by seed or of seeds 0, 1, …."""
        made = []
        for words, given in losses.items():
            by_seed = given if isinstance(given, Mapping) else dict(enumerate(given))
            made += [self.run(words, seed, loss) for seed, loss in by_seed.items()]
        return made


class PlantedHistory(History):
    """Curves by run id and metric; counts what is read."""

    def __init__(self) -> None:
        self.curves: dict[tuple[str, str], Points] = {}
        self.reads: list[tuple[str, str]] = []

    def plant(self, run: Run, metric: str, values: Mapping[int, float]) -> None:
        """Plant (step -> value), a step taking a second."""
        points = [(step, value, 1_700_000_000_000 + 1000 * step) for step, value in values.items()]
        self.curves[run.run_id, metric] = points

    def points(self, run_id: str, metric: str) -> list[tuple[int, float, int]]:
        self.reads.append((run_id, metric))
        return list(self.curves.get((run_id, metric), ()))

    def artifact(self, run_id: str, path: str, folder: Path) -> Path | None:
        return None

    def artifacts(self, run_id: str, folder: str) -> list[str]:
        return []


@pytest.fixture
def plant() -> Plant:
    return Plant()


@pytest.fixture
def history() -> PlantedHistory:
    return PlantedHistory()


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store that the tests of this folder share; each writes into experiments of its own."""
    folder = tmp_path_factory.mktemp("report")
    return find_store(sqlite_uri(folder / "m.db"), folder)
