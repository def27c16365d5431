"""What a sweep takes with jobs side by side, against one job at a time with the same threads.

Alternating, on a quiet machine; the results must be the same, run for run: python -m
benchmarks.sweep_time. The target of each row stands beside it.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mlflow.tracking import MlflowClient

ROOT = Path(__file__).resolve().parents[1]
MISSION = ("attention.scale=sqrt,none", "model.d_k=64,512")
SWEEPS = {
    "mission": (MISSION, 0.72),
    "five seeds": ((*MISSION, "seed=range(0,5)"), 0.6),
}
DEMO = 0.78
"""Target of the mission's sweep with the drawing of its curves, as in ``make demo``."""
IN_TURN = "hydra.launcher.n_jobs=1"


def seconds(folder: Path, *words: str) -> float:
    """Return the wall-clock seconds of an app."""
    started = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        env={**os.environ, "MLFLOW_TRACKING_URI": store(folder)},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return time.monotonic() - started


def store(folder: Path) -> str:
    """Return the address of the store in a folder."""
    return f"sqlite:///{folder}/mlflow.db"


def sweep(folder: Path, *words: str) -> tuple[float, float, dict[str, float]]:
    """Return the seconds of a sweep and of its curves, and each job's best loss by its name."""
    place = f"hydra.sweep.dir='{folder}/multirun/${{launch_id:}}'"
    swept = seconds(folder, "src.train", "-m", *words, place)
    drawn = seconds(folder, "src.curves", f"hydra.run.dir='{folder}/curves/${{launch_id:}}'")
    client = MlflowClient(store(folder))
    (parent,) = client.search_runs(["1"], "tags.kind = 'sweep'", max_results=1)
    name = parent.data.tags["sweep"]
    runs = client.search_runs(["1"], f"tags.sweep = '{name}' and tags.kind = 'run'")
    names = [run.info.run_name.partition(" (")[0] for run in runs]
    losses = [run.data.metrics["val/best_loss"] for run in runs]
    return swept, drawn, dict(zip(names, losses, strict=True))


def main() -> None:
    """Time each sweep both ways, and print the ratio of the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    for name, (words, target) in SWEEPS.items():
        side: list[tuple[float, float]] = []
        turn: list[tuple[float, float]] = []
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(rounds):
                *times, losses = sweep(Path(folder), *words)
                *times_in_turn, losses_in_turn = sweep(Path(folder), *words, IN_TURN)
                assert losses == losses_in_turn, "the results differ"
                side.append((times[0], times[1]))
                turn.append((times_in_turn[0], times_in_turn[1]))
        tell(name, target, [swept for swept, _ in side], [swept for swept, _ in turn])
        if name == "mission":
            tell("demo", DEMO, [sum(pair) for pair in side], [sum(pair) for pair in turn])


def tell(name: str, target: float, side: list[float], turn: list[float]) -> None:
    """Print the ratio of the medians of two ways, and the seconds of each round."""
    ratio = statistics.median(side) / statistics.median(turn)
    listed = ", ".join(
        f"{way} {' '.join(f'{s:.1f}' for s in rounds)} s"
        for way, rounds in (("side by side", side), ("in turn", turn))
    )
    print(f"{name}: {ratio:.2f} × (target {target}); {listed}", flush=True)


if __name__ == "__main__":
    main()
