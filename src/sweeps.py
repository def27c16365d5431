"""List sweeps: how far they are, and how to go on. See --help."""

from pathlib import Path

import hydra
from omegaconf import DictConfig

from attnscale.cli.app import answer, launch
from attnscale.cli.sweeps import list_sweeps


@hydra.main(
    version_base="1.3",
    config_path=str(Path(__file__).resolve().parents[1] / "conf"),
    config_name="sweeps",
)
def main(config: DictConfig) -> None:
    """List them."""
    answer(list_sweeps, config)


if __name__ == "__main__":
    launch(main)
