"""What attention health costs: the same training without it, at the default, and at every step.

Each contestant trains the same model on the same batches in this process, in turn, several rounds;
a ratio is the median over rounds of its time per step divided by that without, in the same round.
"Default" has the samples of a whole default run: one per 100 steps and at least 15. Snapshots and
the drawing of pictures are timed by themselves, per job.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tabulate import tabulate

from attnscale.callbacks.pictures import Pictures
from attnscale.config.build import compose
from attnscale.experiment import run

OFF = ["callbacks.attention_stats=null", "callbacks.gradient_stats=null", "callbacks.watchdog=null"]
MODELS = {
    # Whole default run: 1,600 steps.
    "autoencoder": (["model=autoencoder"], 100),
    # A sixth of a default run of 960 steps, which samples every 64.
    "transformer": (["model=transformer", "trainer.max_epochs=2"], 64),
}

SHORT = 3
"""Rounds of the autoencoder for one of the Transformer: a run takes two seconds."""


def seconds(overrides: list[str]) -> float:
    """Train once and return the seconds per step; nothing is tested or saved."""
    folder = Path(tempfile.mkdtemp())
    config = compose(
        [
            *overrides,
            f"tracking.uri=sqlite:///{folder}/mlflow.db",
            "trainer.enable_progress_bar=false",
            "trainer.enable_checkpointing=false",
            "trainer.limit_test_batches=0",
            "trainer.limit_val_batches=0",
        ],
        folder=folder,
    )
    result = run(config)
    return result.seconds / result.steps


def drawing(overrides: list[str]) -> float:
    """Return the seconds of a job's snapshots and pictures; the second job of a process."""
    total = 0.0
    plain = {name: getattr(Pictures, name) for name in ("save", "draw")}

    def timed(name: str) -> Any:
        def call(self: Pictures, *arguments: Any) -> None:
            nonlocal total
            start = time.perf_counter()
            plain[name](self, *arguments)
            total += time.perf_counter() - start

        return call

    for name in plain:
        setattr(Pictures, name, timed(name))
    try:
        for _ in range(2):
            total = 0.0
            seconds([*overrides, "trainer.max_steps=32"])
    finally:
        for name, function in plain.items():
            setattr(Pictures, name, function)
    return total


def main() -> None:
    """Time the contestants and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    options = parser.parse_args()
    rows = []
    for model in options.models:
        overrides, every = MODELS[model]
        overrides = [*overrides, "callbacks.pictures=null"]
        strides = [f"callbacks.{name}.every" for name in ("attention_stats", "gradient_stats")]
        contestants = {
            "without": [*overrides, *OFF],
            "default": [
                *overrides,
                *(f"{key}={every}" for key in strides),
                f"callbacks.attention_stats.heads_every={every}",
            ],
            "every step": [
                *overrides,
                *(f"{key}=1" for key in strides),
                f"callbacks.attention_stats.heads_every={every}",
            ],
        }
        for changes in contestants.values():
            seconds([*changes, "trainer.max_steps=32"])
        times: dict[str, list[float]] = {name: [] for name in contestants}
        for turn in range(options.rounds * (SHORT if model == "autoencoder" else 1)):
            # Each contestant is as often first, second and third: the machine's speed drifts.
            first = turn % len(contestants)
            order = [*list(contestants)[first:], *list(contestants)[:first]]
            for name in order:
                times[name].append(seconds(contestants[name]))
        for name, turns in times.items():
            ratios = [a / b for a, b in zip(turns, times["without"], strict=True)]
            rows.append([model, name, 1000 * statistics.median(turns), statistics.median(ratios)])
        whole = [part for part in overrides if part != "callbacks.pictures=null"]
        rows.append([model, "snapshots and pictures of a job, s", drawing(whole), None])
    print(
        tabulate(rows, headers=["model", "health", "ms/step (or s)", "÷ without"], floatfmt=".3f")
    )


if __name__ == "__main__":
    main()
