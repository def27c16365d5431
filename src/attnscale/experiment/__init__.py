"""One run from a plain configuration to a plain result."""

from attnscale.experiment.result import Result
from attnscale.experiment.run import run

__all__ = ["Result", "run"]
