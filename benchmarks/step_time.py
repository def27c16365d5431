"""Time of a training step: a textbook script, plain Lightning, and this project, in turn.

Each contestant runs in a process of its own, one after the other, several rounds; the figures are
medians over the rounds. All train the same model on as many sequences; none validates, saves or
draws. Attention health is sampled as by default.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

BARE = (
    "trainer.limit_val_batches=0",
    "trainer.limit_test_batches=0",
    "trainer.enable_checkpointing=false",
    "callbacks.pictures=null",
)


def _measure(command: list[str]) -> float:
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode != 0:
        raise RuntimeError(process.stderr)
    return float(json.loads(process.stdout.strip().splitlines()[-1])["seconds_per_step"])


def main() -> None:
    """Run the rounds and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{Path(folder)}/mlflow.db"
        python, epochs = [sys.executable, "-m"], ["--epochs", str(options.epochs)]
        short = ["--epochs", str(max(1, options.epochs // 5))]
        project = [*python, "benchmarks.project", *epochs, "--store", store]
        commands = {
            "textbook script": [*python, "benchmarks.textbook", *epochs],
            "plain Lightning": [*python, "benchmarks.plain_lightning", *short, "--store", store],
            "this project": [*project, *BARE],
            "this project, validating, saving, drawing": project,
        }
        _measure([*project, *BARE])  # creates the store
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(options.rounds):
            for name, command in commands.items():
                times[name].append(_measure(command))
    print(
        f"load average {os.getloadavg()[0]:.2f}, {options.rounds} rounds of {options.epochs} epochs"
    )
    print(f"{'':42}{'ms/step':>8}  {'÷ textbook':>10}  {'÷ plain Lightning':>17}")
    for name, turns in times.items():
        ratios = [
            statistics.median(a / b for a, b in zip(turns, times[base], strict=True))
            for base in ("textbook script", "plain Lightning")
        ]
        median = statistics.median(turns) * 1000
        print(f"{name:42}{median:8.3f}  {ratios[0]:10.2f}  {ratios[1]:17.2f}")


if __name__ == "__main__":
    main()
