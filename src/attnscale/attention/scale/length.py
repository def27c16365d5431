"""Modes whose factor depends on n, the number of kept keys of a row.

    log_n       ln(n) · r / √d_k
    log_n_base  log_base(n) · r / √d_k, equal to sqrt at n = base
    ssmax       s_head · ln(n) · r / √d_k

n is the source's length in cross-attention and i + 1 in row i (from 0) of causal self-attention,
also while decoding step by step. With n = 1 the logit is 0; a softmax over one key does not mind.

Sources: Chiang & Cholak 2022, "Overcoming a Theoretical Limitation of Self-Attention" (``log_n``,
there applied to the input of W_q, so that its bias is not multiplied); Su 2021, on entropy
invariance (``log_n_base``); Nakanishi 2025, "Scalable-Softmax Is Superior for Attention"
(``ssmax``). Subtracting s · ln n instead of multiplying would do nothing at all.
"""

import math

import torch
from torch import Tensor

from attnscale.attention.scale.record import (
    ABOVE_ONE,
    POSITIVE,
    Count,
    Moments,
    ScaleMode,
    Sizes,
    Values,
    number,
    per_head,
    tensor,
)


def _log(n: Count, q: Tensor) -> Count:
    # A row with no key has weights 0 whatever its logits; ln 0 would make it NaN.
    if isinstance(n, Tensor):
        return n.to(torch.promote_types(q.dtype, torch.float32)).clamp_min(1).log()
    return math.log(max(n, 1.0))


def _times(q: Tensor, factor: Count) -> Tensor:
    factor = factor * q.shape[-1] ** -0.5
    # The product is rounded once, whether n is a number or a tensor: a step of decoding, which has
    # no mask, must equal the row of a whole pass, which has one.
    wide = q.to(torch.promote_types(q.dtype, torch.float32))
    return (wide * factor).to(q.dtype)


def _log_n(q: Tensor, k: Tensor, n: Count, values: Values) -> tuple[Tensor, Tensor]:
    return _times(q, _log(n, q)), k


def _log_n_base(q: Tensor, k: Tensor, n: Count, values: Values) -> tuple[Tensor, Tensor]:
    return _times(q, _log(n, q) / math.log(number(values, "base"))), k


def _ssmax(q: Tensor, k: Tensor, n: Count, values: Values) -> tuple[Tensor, Tensor]:
    return _times(q, _log(n, q) * per_head(tensor(values, "gain"))), k


def _ssmax_start(sizes: Sizes) -> dict[str, Tensor]:
    return {"gain": torch.full((sizes.n_heads,), sizes.options["start"])}


def _temperature(values: Values) -> Tensor:
    return tensor(values, "gain")


def _scaled(moments: Moments) -> float:
    return float(moments.log_n * moments.d_k**-0.5 * moments.score_std)


LOG_N = ScaleMode(
    name="log_n",
    formula="ln(n) · r / √d_k",
    source="Chiang & Cholak 2022 (there on the input of W_q, so not on its bias)",
    qk=_log_n,
    counts=True,
    deviation=lambda m, values: _scaled(m),
)
LOG_N_BASE = ScaleMode(
    name="log_n_base",
    formula="log_base(n) · r / √d_k, equal to sqrt at n = base",
    source="Su 2021, on entropy invariance",
    qk=_log_n_base,
    counts=True,
    options={"base": ABOVE_ONE},
    deviation=lambda m, values: _scaled(m) / math.log(number(values, "base")),
)
SSMAX = ScaleMode(
    name="ssmax",
    formula="s_head · ln(n) · r / √d_k, s learned",
    source="Nakanishi 2025, Scalable-Softmax",
    qk=_ssmax,
    counts=True,
    options={"start": POSITIVE},
    parameters=_ssmax_start,
    temperature=_temperature,
    deviation=lambda m, values: float(_temperature(values).mean()) * _scaled(m),
)
