"""Translate text with the model of a checkpoint."""

from pathlib import Path

import hydra
from omegaconf import DictConfig

from attnscale.cli.app import answer, launch
from attnscale.cli.checkpoint import translate


@hydra.main(
    version_base="1.3",
    config_path=str(Path(__file__).resolve().parents[1] / "conf"),
    config_name="translate",
)
def main(config: DictConfig) -> None:
    """Translate standard input or a file."""
    answer(translate, config)


if __name__ == "__main__":
    launch(main)
