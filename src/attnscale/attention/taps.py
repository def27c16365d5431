"""Taps: a look into every attention of a model, without a second forward pass.

A tap never chooses the backend and never changes the result: training is bit-identical in eager
mode with taps on or off. Each record knows its attention's path in the model.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn

from attnscale.attention.core import Attended
from attnscale.attention.module import MultiHeadAttention


def attentions(model: nn.Module) -> dict[str, MultiHeadAttention]:
    """Return every attention of a model by its module path, in order."""
    return {path: m for path, m in model.named_modules() if isinstance(m, MultiHeadAttention)}


@contextmanager
def tapped(model: nn.Module, receive: Callable[[str, Attended], None]) -> Iterator[None]:
    """Call ``receive(path, attended)`` at each attention of the model while the context is open.

    Contexts may be open inside one another; each receives every record.

    Raises:
        ValueError: If the model has no attention to tap.
    """
    modules = attentions(model)
    if not modules:
        raise ValueError("the model has no MultiHeadAttention to tap")
    before = {path: module.tap for path, module in modules.items()}

    def both(path: str, attended: Attended) -> None:
        outer = before[path]
        if outer is not None:
            outer(attended)
        receive(path, attended)

    for path, module in modules.items():
        module.tap = lambda attended, path=path: both(path, attended)
    try:
        yield
    finally:
        for path, module in modules.items():
            module.tap = before[path]
