"""From what taps received to samples."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from attnscale.attention.core import Attended
from attnscale.attention.scale import scores_of
from attnscale.attention.stats.sample import Sample


def sample_of(
    attended: Sequence[Attended], real_queries: Bool[Tensor, "batch query"] | None = None
) -> Sample:
    """Return the sample of what a tap received from one attention, or from several that are alike.

    Small tensors cost what starting their operations costs, so several attentions are measured as
    if their heads were those of one.

    Args:
        attended: What the tap received: the same shapes, mask, and kind of mode.
        real_queries: True where a query is no padding; None if all are real.
    """
    first = attended[0]
    inputs = [one.x for one in attended if one.x is not None]
    x: Tensor | None = inputs[0] if inputs else None
    if any(one is not x for one in inputs):
        x = torch.stack(inputs, dim=1)

    def heads(tensors: list[Tensor]) -> Tensor:
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim=1)

    q, k = (heads([getattr(one, name) for one in attended]) for name in ("raw_q", "raw_k"))
    return Sample(
        weights=heads([one.weights() for one in attended]) if first.scale.is_softmax else None,
        logits=heads([one.logits() for one in attended]),
        scores=scores_of(q, k),
        q=q,
        k=k,
        x=x,
        keep=first.keep,
        real_queries=None if real_queries is None else real_queries[:, None, :],
    )
