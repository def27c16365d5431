"""What watches a run: curves, gradients, attentions and their pictures, checkpoints, progress."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnscale.callbacks.doctor import Doctor as Doctor


def __getattr__(name: str) -> object:
    """Import :class:`Doctor` when it is asked for: Lightning takes seconds."""
    if name == "Doctor":
        from attnscale.callbacks.doctor import Doctor

        return Doctor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
