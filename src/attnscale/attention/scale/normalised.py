"""Modes that normalise q and k before their product, so that the logits are bounded.

    q̂ = q / ‖q‖,   RMS(q) = γ ⊙ q / √(mean q² + ε),   LN(q) = γ ⊙ (q − mean q) / √(var q + ε)

Random directions have a cosine of standard deviation 1/√d_k. A gain γ (length d_k) is shared by the
heads. Norms are taken in fp32 where q is narrower.

Sources: Liu et al. 2022, Swin Transformer V2 (``cosine``; its position bias is not part of the
mode); Henry et al. 2020, "Query-Key Normalization for Transformers" (``qknorm``); the
x-transformers library (``cosine_fixed``); Dehghani et al. 2023, ViT-22B (``qk_layernorm``, without
a bias); Gemma 3 technical report 2025 (``qk_rmsnorm``); Loshchilov et al. 2024, nGPT (``ngpt``,
whose scale is stored at 1/√d_model so that it learns at the pace of the other weights).
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from attnscale.attention.scale.record import (
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

LENGTH_PERCENTILE = "length_p97_5"
"""Name of the statistic: the 97.5th percentile of the training sequences' lengths."""


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _unit(x: Tensor) -> Tensor:
    wide = _wide(x)
    # Added, not a bound: a vector of zeros stays zero, and clamping took a third of the time.
    return wide * (wide.square().sum(dim=-1, keepdim=True) + 1e-24).rsqrt()


# --- one factor on the cosine ---


def _cosine_temperature(values: Values) -> Tensor:
    return tensor(values, "log_scale").clamp(max=math.log(number(values, "largest"))).exp()


def _cosine(q: Tensor, k: Tensor, n: Count, values: Values) -> tuple[Tensor, Tensor]:
    scaled = _unit(q) * per_head(_cosine_temperature(values))
    return scaled.to(q.dtype), _unit(k).to(k.dtype)


def _cosine_start(sizes: Sizes) -> dict[str, Tensor]:
    return {"log_scale": torch.full((sizes.n_heads,), math.log(sizes.options["start"]))}


def _qknorm_temperature(values: Values) -> Tensor:
    return tensor(values, "gain")


def _qknorm(q: Tensor, k: Tensor, n: Count, values: Values) -> tuple[Tensor, Tensor]:
    return (_unit(q) * _qknorm_temperature(values)).to(q.dtype), _unit(k).to(k.dtype)


def _qknorm_start(sizes: Sizes) -> dict[str, Tensor]:
    length = sizes.statistics.get(LENGTH_PERCENTILE)
    if length is None or length < 2:
        raise ValueError(
            f"attention.scale=qknorm: needs the statistic {LENGTH_PERCENTILE} of the training "
            f"data, at least 2; got {length}"
        )
    return {"gain": torch.tensor([math.log2(length**2 - length)])}


def _cosine_fixed(q: Tensor, k: Tensor, n: Count, values: Values) -> tuple[Tensor, Tensor]:
    return (_unit(q) * number(values, "factor")).to(q.dtype), _unit(k).to(k.dtype)


# --- gains on the components ---


def _gains(sizes: Sizes) -> dict[str, Tensor]:
    return {"q_gain": torch.ones(sizes.d_k), "k_gain": torch.ones(sizes.d_k)}


def _gain_temperature(values: Values) -> Tensor:
    # What multiplies the score of normalised q and k of unit-variance components, on average.
    return (tensor(values, "q_gain") * tensor(values, "k_gain")).square().mean().sqrt()[None]


def _layernorm(q: Tensor, k: Tensor, n: Count, values: Values) -> tuple[Tensor, Tensor]:
    size, eps = q.shape[-1:], number(values, "eps")
    gain = tensor(values, "q_gain") * size[0] ** -0.5
    normed_q = functional.layer_norm(_wide(q), size, gain.to(_wide(q).dtype), None, eps)
    normed_k = functional.layer_norm(
        _wide(k), size, tensor(values, "k_gain").to(_wide(k).dtype), None, eps
    )
    return normed_q.to(q.dtype), normed_k.to(k.dtype)


def _rms(x: Tensor, eps: float) -> Tensor:
    wide = _wide(x)
    return wide * (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt()


def _rmsnorm(q: Tensor, k: Tensor, n: Count, values: Values) -> tuple[Tensor, Tensor]:
    eps = number(values, "eps")
    # Both gains go to q: the product of q' and k' is the same, for one multiplication less.
    gain = tensor(values, "q_gain") * tensor(values, "k_gain") * q.shape[-1] ** -0.5
    normed = _rms(q, eps)
    return (normed * gain.to(normed.dtype)).to(q.dtype), _rms(k, eps).to(k.dtype)


def _ngpt_scale(values: Values) -> Tensor:
    # Stored at 1/√d_model, so that its effective start is 1.
    scaled: Tensor = tensor(values, "scale") * number(values, "d_model") ** 0.5
    return scaled


def _ngpt(q: Tensor, k: Tensor, n: Count, values: Values) -> tuple[Tensor, Tensor]:
    # s stands with q and with k: once squared with q is the same, for one multiplication less.
    scale = _ngpt_scale(values).square()[:, None, :] * q.shape[-1] ** 0.5
    wide = _unit(q)
    return (wide * scale.to(wide.dtype)).to(q.dtype), _unit(k).to(k.dtype)


def _ngpt_start(sizes: Sizes) -> dict[str, Tensor]:
    return {"scale": torch.full((sizes.n_heads, sizes.d_k), sizes.d_model**-0.5)}


def _ngpt_temperature(values: Values) -> Tensor:
    return _ngpt_scale(values).square().square().mean(dim=-1).sqrt()


def _layernorm_deviation(moments: Moments, values: Values) -> float:
    # The components of a LayerNormed vector add up to 0, so that d_k − 1 of them are free.
    free = (moments.d_k / max(moments.d_k - 1, 1)) ** 0.5
    return float(_gain_temperature(values) * moments.d_k**0.5 * moments.cosine_std * free)


COSINE = ScaleMode(
    name="cosine",
    formula="exp(min(τ_head, ln 100)) · q̂·k̂, τ starts at ln 10",
    source="Liu et al. 2022, Swin Transformer V2",
    qk=_cosine,
    options={"start": POSITIVE, "largest": POSITIVE},
    parameters=_cosine_start,
    temperature=_cosine_temperature,
    deviation=lambda m, values: float(_cosine_temperature(values).mean()) * m.cosine_std,
)
QKNORM = ScaleMode(
    name="qknorm",
    formula="g · q̂·k̂, one g per attention, starts at log₂(L² − L) with L the 97.5th percentile "
    "of the training sequences' lengths",
    source="Henry et al. 2020",
    qk=_qknorm,
    statistic=LENGTH_PERCENTILE,
    parameters=_qknorm_start,
    temperature=_qknorm_temperature,
    deviation=lambda m, values: float(_qknorm_temperature(values).mean()) * m.cosine_std,
)
COSINE_FIXED = ScaleMode(
    name="cosine_fixed",
    formula="10 · q̂·k̂",
    source="the x-transformers library, attn_qk_norm",
    qk=_cosine_fixed,
    options={"factor": POSITIVE},
    deviation=lambda m, values: number(values, "factor") * m.cosine_std,
)
QK_LAYERNORM = ScaleMode(
    name="qk_layernorm",
    formula="LN(q)·LN(k) / √d_k, gains start at 1, no bias",
    source="Dehghani et al. 2023, ViT-22B (per head, gains shared by the heads)",
    qk=_layernorm,
    options={"eps": POSITIVE},
    parameters=_gains,
    temperature=_gain_temperature,
    deviation=_layernorm_deviation,
)
QK_RMSNORM = ScaleMode(
    name="qk_rmsnorm",
    formula="RMS(q)·RMS(k) / √d_k, gains start at 1",
    source="Gemma 3 technical report 2025 (gains stored as 1 + w there)",
    qk=_rmsnorm,
    options={"eps": POSITIVE},
    parameters=_gains,
    temperature=_gain_temperature,
    deviation=lambda m, values: float(_gain_temperature(values)) * m.d_k**0.5 * m.cosine_std,
)
NGPT = ScaleMode(
    name="ngpt",
    formula="√d_k · (s⊙q̂)·(s⊙k̂), s per head and component, starts at 1",
    source="Loshchilov et al. 2024, nGPT",
    qk=_ngpt,
    needs=("d_model",),
    parameters=_ngpt_start,
    temperature=_ngpt_temperature,
    deviation=lambda m, values: float(_ngpt_temperature(values).mean()) * m.d_k**0.5 * m.cosine_std,
)
