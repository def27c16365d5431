"""Modes with a learned temperature: logit = exp(τ) · r, τ starts at −½ ln d_k.

Source: Lee et al. 2021, "Vision Transformer for Small-Size Datasets", section 3.2, where τ is one
number per layer (``learned_shared``); that paper also hides the diagonal, which is a mask and not
part of the mode. ``learned`` has one τ per head.
"""

import math

import torch
from torch import Tensor

from attnscale.attention.scale.record import (
    Count,
    Moments,
    ScaleMode,
    Sizes,
    Values,
    per_head,
    tensor,
)


def _temperature(values: Values) -> Tensor:
    return tensor(values, "log_scale").exp()


def _times(q: Tensor, k: Tensor, n: Count, values: Values) -> tuple[Tensor, Tensor]:
    return q * per_head(_temperature(values)).to(q.dtype), k


def _each(sizes: Sizes) -> dict[str, Tensor]:
    return {"log_scale": torch.full((sizes.n_heads,), -0.5 * math.log(sizes.d_k))}


def _shared(sizes: Sizes) -> dict[str, Tensor]:
    return {"log_scale": torch.full((1,), -0.5 * math.log(sizes.d_k))}


def _deviation(moments: Moments, values: Values) -> float:
    return float(_temperature(values).mean()) * moments.score_std


LEARNED = ScaleMode(
    name="learned",
    formula="exp(τ_head) · r, τ starts at −½ ln d_k",
    source="Lee et al. 2021, section 3.2 (one per layer there)",
    qk=_times,
    parameters=_each,
    temperature=_temperature,
    deviation=_deviation,
)
LEARNED_SHARED = ScaleMode(
    name="learned_shared",
    formula="exp(τ) · r, one τ per attention, starts at −½ ln d_k",
    source="Lee et al. 2021, section 3.2 (which also hides the diagonal)",
    qk=_times,
    parameters=_shared,
    temperature=_temperature,
    deviation=_deviation,
)
