"""Planted runs with their curves, without a store; fixtures that make them."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from attnscale.tracking.history import History
from attnscale.tracking.runs import Run, curve_of
from attnscale.tracking.store import Store, find_store, sqlite_uri

KEYS = {"scale": "attention.scale", "d_k": "model.d_k", "lr": "optimizer.lr"}
Losses = Mapping[str, Mapping[int, float] | Sequence[float]]
STATUSES = {"diverged": "FINISHED"}
START = 1_700_000_000_000


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
        outcome: str = "finished",
        reason: str = "",
        metrics: Mapping[str, float] | None = None,
        tags: Mapping[str, str] | None = None,
        **parameters: str,
    ) -> Run:
        pairs = [word.partition("=")[::2] for word in words.split()]
        named = {KEYS.get(key, key): value for key, value in pairs}
        more = {key.replace("__", "."): value for key, value in parameters.items()}
        figures = {**({} if loss is None else {"val/best_loss": loss}), **(metrics or {})}
        tags_of_end = (
            {"diverged": "true", "diverged.metric": reason} if outcome == "diverged" else {}
        )
        if outcome in ("failed", "killed"):
            tags_of_end = {"error": reason}
        self.made += 1
        run = Run(
            run_id=f"id{self.made}",
            name=f"run {self.made}",
            status=STATUSES.get(outcome, outcome.upper()),
            parameters={**named, **more, "seed": str(seed)},
            metrics=figures,
            recorded=frozenset(figures),
            curves=defaultdict(list),
            tags={**tags_of_end, **(tags or {})},
        )
        assert run.outcome == outcome
        return run

    def runs(self, losses: Losses) -> list[Run]:
        """Return finished runs: words of each setting -> losses, by seed or of seeds 0, 1, …."""
        made = []
        for words, given in losses.items():
            by_seed = given if isinstance(given, Mapping) else dict(enumerate(given))
            made += [self.run(words, seed, loss) for seed, loss in by_seed.items()]
        return made


class PlantedHistory(History):
    """A store without artifacts, whose curves are planted in the runs."""

    def __init__(self) -> None:
        pass

    def plant(self, run: Run, metric: str, values: Mapping[int, float]) -> None:
        """Plant (step -> value), a step taking a second."""
        points = [(step, value, START + 1000 * step) for step, value in values.items()]
        assert isinstance(run.curves, dict)
        run.curves[metric] = curve_of(points)

    def artifact(self, run_id: str, path: str, folder: Path) -> Path | None:
        return None

    def artifacts(self, run_id: str, folder: str) -> list[str]:
        return []


def trained_run(
    *,
    scale: str = "sqrt",
    d_k: int = 64,
    lr: float = 0.1,
    seed: int = 0,
    loss: float | None,
    start_loss: float = math.inf,
    curve: Sequence[tuple[int, float]] = (),
    curves: Mapping[str, Sequence[tuple[int, float]]] | None = None,
    parameters: Mapping[str, str] | None = None,
    figures: Mapping[str, float] | None = None,
    **metrics: float | None,
) -> Run:
    """Return a run as claims read it; without a loss it diverged.

    Args:
        scale: ``attention.scale``.
        d_k: ``model.d_k``.
        lr: ``optimizer.lr``.
        seed: ``seed``.
        loss: Best validation loss, or None.
        start_loss: Training loss before the first step; infinite for none.
        curve: (step, validation loss).
        curves: Metric -> (step, value), of others; ``train/loss`` begins with ``start_loss``.
        parameters: What else tells it from others.
        figures: Last values of other metrics.
        metrics: ``val_loss`` for ``val/loss``, and so on.
    """
    named = {key.replace("_", "/"): x for key, x in metrics.items() if x is not None}
    last = {**named, **(figures or {})}
    if loss is not None:
        last["val/best_loss"] = loss
    points = {"val/loss": curve, **(curves or {})}
    points["train/loss"] = [(0, start_loss), *points.get("train/loss", ())]
    planted = {name: curve_of([(s, x, START) for s, x in of]) for name, of in points.items()}
    return Run(
        run_id=f"{scale} {d_k} {lr} {seed} {parameters}",
        tags={"diverged": "true"} if loss is None else {},
        parameters={
            "attention.scale": scale,
            "model.d_k": str(d_k),
            "optimizer.lr": str(lr),
            "seed": str(seed),
            **(parameters or {}),
        },
        metrics=last,
        recorded=frozenset({*last, *planted}),
        curves=planted,
    )


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
