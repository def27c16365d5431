"""Time from the command to the first optimizer step, on a store that exists."""

import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 5


def _run(command: list[str], store: str) -> float:
    started = time.perf_counter()
    subprocess.run(
        command,
        check=True,
        capture_output=True,
        cwd=Path(__file__).resolve().parents[1],
        env={**os.environ, "MLFLOW_TRACKING_URI": store},
    )
    return time.perf_counter() - started


def _to_first_step(command: list[str], store: str) -> float:
    """Return the seconds until the first step's point was taken."""
    started = time.time()
    _run(command, store)
    with sqlite3.connect(store.removeprefix("sqlite:///")) as database:
        query = "SELECT max(timestamp) FROM metrics WHERE key = 'train/loss' AND step = 0"
        (first,) = database.execute(query).fetchone()
    return float(first) / 1000 - started


def main() -> None:
    """Time both in turn and print the medians."""
    imports = [sys.executable, "-c", "import torch, pytorch_lightning"]
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/mlflow.db"
        run = [
            *(sys.executable, "-m", "src.train", "trainer.max_steps=1", "trainer.max_epochs=1"),
            *("trainer.limit_val_batches=0", "trainer.limit_test_batches=0"),
            *("trainer.enable_checkpointing=false", f"hydra.run.dir='{folder}/${{launch_id:}}'"),
        ]
        _run(run, store)
        pairs = [(_run(imports, store), _to_first_step(run, store)) for _ in range(ROUNDS)]
    base = statistics.median(first for first, _ in pairs)
    whole = statistics.median(second for _, second in pairs)
    print(f"importing torch and pytorch_lightning  {base:.2f} s")
    print(f"command to first step                  {whole:.2f} s")
    print(f"1.3 × imports + 2 s                    {1.3 * base + 2:.2f} s")


if __name__ == "__main__":
    main()
