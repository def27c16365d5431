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
IN_TURN = "hydra.launcher.n_jobs=1"


def sweep(folder: Path, *words: str) -> tuple[float, dict[str, float]]:
    """Return a sweep's wall-clock seconds, and the best loss of each of its jobs by its name."""
    uri = f"sqlite:///{folder}/mlflow.db"
    place = f"hydra.sweep.dir='{folder}/multirun/${{launch_id:}}'"
    started = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "src.train", "-m", *words, place],
        cwd=ROOT,
        env={**os.environ, "MLFLOW_TRACKING_URI": uri},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    seconds = time.monotonic() - started
    client = MlflowClient(uri)
    (parent,) = client.search_runs(["1"], "tags.kind = 'sweep'", max_results=1)
    name = parent.data.tags["sweep"]
    runs = client.search_runs(["1"], f"tags.sweep = '{name}' and tags.kind = 'run'")
    names = [run.info.run_name.partition(" (")[0] for run in runs]
    losses = [run.data.metrics["val/best_loss"] for run in runs]
    return seconds, dict(zip(names, losses, strict=True))


def main() -> None:
    """Time each sweep both ways, and print the ratio of the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    for name, (words, target) in SWEEPS.items():
        times: dict[str, list[float]] = {"side by side": [], "in turn": []}
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(rounds):
                side, losses = sweep(Path(folder), *words)
                turn, losses_in_turn = sweep(Path(folder), *words, IN_TURN)
                assert losses == losses_in_turn, "the results differ"
                times["side by side"].append(side)
                times["in turn"].append(turn)
        medians = {way: statistics.median(seconds) for way, seconds in times.items()}
        ratio = medians["side by side"] / medians["in turn"]
        listed = ", ".join(
            f"{way} {' '.join(f'{s:.1f}' for s in seconds)} s" for way, seconds in times.items()
        )
        print(f"{name}: {ratio:.2f} × (target {target}); {listed}")


if __name__ == "__main__":
    main()
