"""Score a split with the model of a checkpoint."""

from pathlib import Path

import hydra
from omegaconf import DictConfig

from attnscale.cli.app import answer, launch
from attnscale.cli.checkpoint import evaluate


@hydra.main(
    version_base="1.3",
    config_path=str(Path(__file__).resolve().parents[1] / "conf"),
    config_name="evaluate",
)
def main(config: DictConfig) -> None:
    """Score one split."""
    answer(evaluate, config)


if __name__ == "__main__":
    launch(main)
