"""Show what theory predicts, and which popular claims hold. See --help."""

from pathlib import Path

import hydra
from omegaconf import DictConfig

from attnscale.cli.app import launch
from attnscale.cli.theory import run_theory


@hydra.main(
    version_base="1.3",
    config_path=str(Path(__file__).resolve().parents[1] / "conf"),
    config_name="theory",
)
def main(config: DictConfig) -> float:
    """Run one job; the return value is the fitted exponent of independent q and k."""
    return run_theory(config)


if __name__ == "__main__":
    launch(main)
