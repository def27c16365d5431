"""One pass of a model, watched."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from attnscale.doctor.report import Report
from attnscale.doctor.watch import watching

ROWS = 64
"""Rows of a head that are measured: enough for a slope and a share; memory grows with n, not n²."""


def run(model: nn.Module, batch: Any, forward: Callable[[Any], object] | None) -> object:
    """Run one pass: ``forward(model)``, or the model on a batch; return its output.

    Args:
        model: The model.
        batch: A mapping is given by name, a tuple or list in order, anything else as it is.
        forward: What to run instead.
    """
    if forward is not None:
        return forward(model)
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple | list) else model(batch)


def examine(
    model: nn.Module,
    batch: Any = None,
    *,
    forward: Callable[[Any], object] | None = None,
    expect: str | float | Mapping[str, str | float] | None = None,
    rows: int = ROWS,
    notify: Callable[[int], None] = lambda n: None,
) -> Report:
    """Return which factor each attention of a model puts on q · k, and how healthy it is.

    The pass runs as the model is: in its mode, on its device, with or without gradients as it is
    called. Outputs, gradients, weights and the random state are those of a pass that nobody
    watches; a compiled model runs uncompiled meanwhile.

    Args:
        model: Any PyTorch model.
        batch: What it is called with: a mapping by name, a tuple in order, else one argument.
        forward: What to run instead, such as ``lambda m: m.generate(ids)``.
        expect: The scale that is right: "sqrt", "none" or a number; or, by patterns of paths,
            several of them. None judges by what is usual.
        rows: Rows of each head that are measured, at most; spread over queries and batch.
        notify: Called with the number of attentions whenever one was read.
    """
    with watching(model, rows=rows, notify=notify) as watch:
        run(model, batch, forward)
    return Report(
        model=type(getattr(model, "_orig_mod", model)).__name__,
        attentions=tuple(watch.attentions),
        not_visible=tuple(dict.fromkeys(watch.not_visible)),
        expect=expect,
    )
