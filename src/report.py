"""Write a report on runs: one page that answers what was asked with a sweep. See --help."""

from pathlib import Path

import hydra
from omegaconf import DictConfig

from attnscale.cli.app import answer, launch
from attnscale.cli.report import run_report


@hydra.main(
    version_base="1.3",
    config_path=str(Path(__file__).resolve().parents[1] / "conf"),
    config_name="report",
)
def main(config: DictConfig) -> None:
    """Write one report."""
    answer(run_report, config)


if __name__ == "__main__":
    launch(main)
