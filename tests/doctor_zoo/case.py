"""A model with what it is called with, and the scales that its source has."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from attnscale.doctor import Attention, Report, examine

RAW = ("raw", "raw")
NORMALISED = ("normalised", "normalised")

Batch = Tensor | Mapping[str, Tensor] | tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """A small model with random weights.

    Attributes:
        build: Returns the model and its batch.
        scales: Of each attention in the order of the pass, by hand from the library's source.
        hidden: Paths, from their start, of what the doctor says it cannot see.
        origins: Of q and of k, as all attentions have them; None where they are several.
        further: Scales of further products in the logits of each attention.
    """

    build: Callable[[], tuple[nn.Module, Batch]]
    scales: tuple[float, ...]
    hidden: tuple[str, ...] = ()
    origins: tuple[str, str] | None = None
    further: tuple[float, ...] = ()


def tensors(output: object) -> list[Tensor]:
    """Return the tensors of whatever a model returns."""
    leaves, _ = tree_flatten(dict(output) if isinstance(output, Mapping) else output)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def called(model: nn.Module, batch: Batch) -> object:
    """Return what a model makes of a batch."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple) else model(batch)


def examined(model: nn.Module, batch: Batch) -> Report:
    """Examine a model in evaluation, and check that its output is that of a plain pass."""
    model.eval()
    outputs = []
    for examines in (False, True):
        torch.manual_seed(1)
        with torch.no_grad():
            if examines:
                report = examine(model, forward=lambda m: outputs.append(called(m, batch)))
            else:
                outputs.append(called(model, batch))
    plain, watched = map(tensors, outputs)
    assert plain
    for one, other in zip(plain, watched, strict=True):
        assert torch.equal(one, other)
    return report


def check(case: Case, tolerance: float = 1e-6) -> tuple[Attention, ...]:
    """Check what the doctor says of a case, and return the attentions."""
    torch.manual_seed(0)
    report = examined(*case.build())
    assert len(report.attentions) == len(case.scales), report
    for attention, scale in zip(report.attentions, case.scales, strict=True):
        heads = [scale] * len(attention.scales)
        assert attention.scales == pytest.approx(heads, rel=tolerance), attention
        assert attention.further_scales == pytest.approx(case.further, rel=tolerance), attention
        if case.origins:
            assert (attention.origin_q, attention.origin_k) == case.origins, attention
    paths = [one.path for one in report.not_visible]
    assert all(path.startswith(case.hidden) for path in paths) if case.hidden else not paths, report
    assert all(any(path.startswith(start) for path in paths) for start in case.hidden), report
    return report.attentions
