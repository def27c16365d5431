"""Train one model, or with -m a sweep of them. See --help."""

from pathlib import Path

import hydra
from omegaconf import DictConfig

from attnscale.cli.app import launch, run_job


@hydra.main(
    version_base="1.3",
    config_path=str(Path(__file__).resolve().parents[1] / "conf"),
    config_name="train",
)
def main(config: DictConfig) -> float:
    """Run one job; the return value is what a sweeper minimises."""
    return run_job(config)


if __name__ == "__main__":
    launch(main)
