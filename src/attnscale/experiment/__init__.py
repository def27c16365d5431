"""One run from its configuration to a plain result.

``run`` is loaded when it is first used: Lightning takes seconds to import, and ``--help`` or a
mistake on the command line should not wait for it.
"""

from typing import TYPE_CHECKING, Any

from attnscale.experiment.result import Result

if TYPE_CHECKING:
    from attnscale.experiment.lifecycle import run

__all__ = ["Result", "run"]


def __getattr__(name: str) -> Any:
    """Load ``run`` on first use."""
    if name == "run":
        from attnscale.experiment.lifecycle import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
