"""The textbook experiment in this project: loss and five gradient norms of each step in MLflow.

The time runs from the start of training until the last point is in the store.
"""

import argparse
import json
import tempfile
from pathlib import Path

from attnscale.config.build import compose
from attnscale.experiment import run

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--store", required=True)
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = compose(
            [
                f"trainer.max_epochs={options.epochs}",
                "trainer.enable_progress_bar=false",
                f"tracking.uri={options.store}",
                "tracking.experiment=benchmark",
                *options.overrides,
            ],
            folder=Path(folder),
        )
        result = run(config)
    loss = result.metrics["train/loss"]
    print(json.dumps({"seconds_per_step": result.seconds / result.steps, "loss": loss}))
