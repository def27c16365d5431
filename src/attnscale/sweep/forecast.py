"""How long a sweep takes, told before it ends."""

from collections.abc import Sequence

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from omegaconf import DictConfig

from attnscale.sweep.overrides import parse


def _name(plugin: type) -> str:
    return f"{plugin.__module__}.{plugin.__qualname__}"


def n_jobs(hydra: DictConfig, overrides: Sequence[str]) -> int | None:
    """Return how many jobs a sweep has; None if nobody knows before it ends.

    Args:
        hydra: The section ``hydra``.
        overrides: Those of the experiment's file, then those of the command line.
    """
    if hydra.sweeper.get("_target_") != _name(BasicSweeper):
        return None
    return sum(map(len, BasicSweeper.split_arguments(parse(overrides), max_batch_size=None)))


def runs_in_turn(hydra: DictConfig) -> bool:
    """Whether jobs run one after the other in the launching process, by Hydra's own launcher."""
    return bool(hydra.launcher.get("_target_") == _name(BasicLauncher))


def duration(seconds: float) -> str:
    """Return a time in the unit that a person would take: 40 s, 3.5 min, 5.2 h."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.2g} {unit}"
    return f"{seconds:.0f} s"
