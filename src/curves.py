"""Draw the curves of a recorded sweep."""

from pathlib import Path

import hydra
from omegaconf import DictConfig

from attnscale.cli.app import answer, launch
from attnscale.cli.report import draw_sweep


@hydra.main(
    version_base="1.3",
    config_path=str(Path(__file__).resolve().parents[1] / "conf"),
    config_name="curves",
)
def main(config: DictConfig) -> None:
    """Draw one figure."""
    answer(draw_sweep, config)


if __name__ == "__main__":
    launch(main)
