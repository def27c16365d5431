"""Two models, or two ways of one, side by side: which attentions differ."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from attnscale.doctor.examination import ROWS, run
from attnscale.doctor.record import Attention
from attnscale.doctor.report import Report, UnhealthyError, aligned
from attnscale.doctor.watch import watching

Way = Callable[[Any], object]

SCALE, SPREAD, OUTPUT = 0.01, 0.05, 1e-3
"""Relative differences from which scales, spreads and outputs are another."""


@dataclass(frozen=True)
class Difference:
    """An attention that is another in the second model.

    Attributes:
        names: Of the attention in both.
        words: In what.
    """

    names: tuple[str, str]
    words: str

    def __str__(self) -> str:
        first, second = self.names
        return f"{first if first == second else f'{first} and {second}'}: {self.words}"


@dataclass(frozen=True)
class Comparison:
    """Two examinations on the same batch.

    Attributes:
        names: What the two are called.
        first: The one.
        second: The other.
        output: max |a − b| / max |a| of what the models returned, or None where they cannot be
            compared.
    """

    names: tuple[str, str]
    first: Report
    second: Report
    output: float | None

    @property
    def differences(self) -> list[Difference]:
        """What differs, in the order of the pass; attentions are matched in that order."""
        told = []
        for one, other in zip(self.first.attentions, self.second.attentions, strict=False):
            words = _differs(one, other, self.names)
            if words:
                told.append(Difference((one.name, other.name), words))
        return told

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        same = len(self.first.attentions) == len(self.second.attentions)
        return same and not self.differences and (self.output is None or self.output <= OUTPUT)

    def __str__(self) -> str:
        """Return the scales side by side, and what differs."""
        pairs = zip(self.first.attentions, self.second.attentions, strict=False)
        rows = [("attention", *self.names)]
        rows += [
            (one.name, f"{one.scale:.4g} {one.how}", f"{other.scale:.4g} {other.how}")
            for one, other in pairs
        ]
        lines = aligned(rows) if len(rows) > 1 else []
        n, m = len(self.first.attentions), len(self.second.attentions)
        if n != m:
            lines.append(f"{self.names[0]} has {n} attentions, {self.names[1]} {m}")
        lines += [f"differs: {difference}" for difference in self.differences]
        if self.output is not None:
            lines.append(f"outputs: {self.output:.2g} apart, of the largest")
        lines.append("equal" if self.equal else "not equal")
        return "\n".join(lines)

    def assert_equal(self) -> None:
        """Check that nothing differs.

        Raises:
            UnhealthyError: With what differs.
        """
        if not self.equal:
            raise UnhealthyError(str(self))


def _differs(one: Attention, other: Attention, names: tuple[str, str]) -> str:
    words = []
    if abs(other.scale - one.scale) > SCALE * abs(one.scale):
        text = f"scale {one.scale:.4g} in {names[0]}, {other.scale:.4g} in {names[1]}"
        ways = {one.how, other.how}
        lost = ": lost in the fused path" if len(ways) > 1 and "fused" in ways else ""
        words.append(text + lost)
    if (one.softcap is None) != (other.softcap is None):
        words.append(f"softcap {one.softcap} and {other.softcap}")
    spreads = [sum(a.spread) / len(a.spread) for a in (one, other)]
    if not words and abs(spreads[1] - spreads[0]) > SPREAD * spreads[0]:
        words.append(f"logits spread by {spreads[0]:.3g} and {spreads[1]:.3g}")
    return "; ".join(words)


def _apart(one: object, other: object) -> float | None:
    pairs = zip(_tensors(one), _tensors(other), strict=False)
    far = [
        float((a.double() - b.double()).abs().max() / a.double().abs().max().clamp(min=1e-30))
        for a, b in pairs
        if a.shape == b.shape and a.numel()
    ]
    return max(far) if far else None


def _tensors(output: object) -> list[Tensor]:
    # What Hugging Face returns is a mapping that torch may not know.
    flat = tree_flatten(dict(output) if isinstance(output, Mapping) else output)[0]
    return [one.detach() for one in flat if isinstance(one, Tensor) and one.is_floating_point()]


def compare(
    a: nn.Module,
    b: nn.Module,
    batch: Any = None,
    *,
    forward: Way | tuple[Way, Way] | None = None,
    names: tuple[str, str] = ("a", "b"),
    rows: int = ROWS,
) -> Comparison:
    """Compare two models on a batch, or a model two ways.

    Both start from the same random state. For two ways of one model give it twice, with
    ``forward`` a pair of functions, such as ``(lambda m: m.eval()(x), lambda m: m.train()(x))``.

    Args:
        a: The one model.
        b: The other.
        batch: As :func:`attnscale.doctor.examine` takes it.
        forward: What to run instead, or a pair of it.
        names: What the two are called.
        rows: Rows of each head that are measured.
    """
    state = torch.get_rng_state()
    reports, outputs = [], []
    ways = forward if isinstance(forward, tuple) else (forward, forward)
    for model, way in zip((a, b), ways, strict=True):
        torch.set_rng_state(state)
        with watching(model, rows=rows) as watch:
            outputs.append(run(model, batch, way))
        seen = tuple(watch.attentions), tuple(dict.fromkeys(watch.not_visible))
        reports.append(Report(type(model).__name__, *seen))
    return Comparison(names, reports[0], reports[1], _apart(*outputs))
