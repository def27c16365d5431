"""What the registry of attention statistics keeps of each of them."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from attnscale.attention.stats_sample import Sample

GROUPS = ("weights", "logits", "scores", "qk")


@dataclass(frozen=True, kw_only=True)
class Statistic:
    """One number per head.

    Attributes:
        name: The last part of the metric's key.
        formula: The definition, in the symbols of this module.
        unit: "nats", "keys", "rows" (a share of them), "logits", "scores", or "1".
        source: Where the definition, or the reason to look at it, comes from.
        group: What it is made of, one of :data:`GROUPS`; "qk" is vectors and projections.
        of: Sample -> (head,); None where ``of_rows`` is given.
        of_rows: Sample -> (batch, head, query), of which the mean over counted rows is taken; of a
            condition that is the share of rows where it holds.
    """

    name: str
    formula: str
    unit: str
    source: str
    group: str
    of: Callable[[Sample], Tensor] | None = None
    of_rows: Callable[[Sample], Tensor] | None = None
