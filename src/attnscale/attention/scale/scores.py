"""Modes that change the score matrix: squashed, or normalised over a row or a batch.

    softcap          C · tanh(r / (√d_k · C)), before the mask: tanh of a masked −10⁹ is −C
    score_layernorm  γ_head · (r − mean r) / (std r + ε)      over the kept keys of a row
    score_batchnorm  γ_head · (r − mean r) / √(var r + ε)     over all kept pairs of a batch
    nap              (r − mean r) / (std r + ε) · γ_head + β_head as the weights, without a softmax

Means and deviations count what ``keep`` keeps and nothing else; deviations of a row divide by n. A
bias before a softmax has no effect and is left out. A row with one key gets logit 0.

Sources: Gemma 2 technical report 2024 (``softcap``); Richter & Wattenhofer 2020, "Normalized
Attention Without Probability Cage", and its code (``nap``; ``score_layernorm`` is the same
normalisation in front of a softmax); Wang et al. 2020, Axial-DeepLab (``score_batchnorm``, which in
training lets a batch's examples, and later positions, see each other; running statistics in
evaluation).
"""

import torch
from torch import Tensor

from attnscale.attention.scale.record import (
    POSITIVE,
    SHARE,
    Count,
    Moments,
    ScaleMode,
    Sizes,
    Values,
    number,
    per_head,
    tensor,
)


def _softcap(scores: Tensor, keep: Tensor | None, d_k: int, values: Values) -> Tensor:
    cap = number(values, "cap")
    capped: Tensor = cap * (scores * (d_k**-0.5 / cap)).tanh()
    return capped


def _softcap_deviation(moments: Moments, values: Values) -> float:
    # E[C² tanh²(βz/C)] for a normal z, by quadrature over the normal density.
    cap, beta = number(values, "cap"), moments.d_k**-0.5 * moments.score_std
    z = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    density = (-0.5 * z * z).exp()
    squared = (cap * (beta * z / cap).tanh()).square()
    return float(((squared * density).sum() / density.sum()).sqrt())


def _row_normed(scores: Tensor, keep: Tensor | None, eps: float) -> Tensor:
    """Centre and divide each row over its kept keys; hidden places are 0."""
    if keep is None:
        n: Tensor | float = float(scores.shape[-1])
        centred = scores - scores.mean(dim=-1, keepdim=True)
    else:
        kept = keep.expand(*keep.shape[:-1], scores.shape[-1])
        n = kept.sum(dim=-1, keepdim=True).clamp_min(1).to(scores.dtype)
        total = scores.masked_fill(~kept, 0.0).sum(dim=-1, keepdim=True)
        centred = (scores - total / n).masked_fill(~kept, 0.0)
    variance = centred.square().sum(dim=-1, keepdim=True) / n
    # A row of equal scores has deviation 0, where a square root has no gradient.
    flat = variance == 0
    deviation = variance.masked_fill(flat, 1.0).sqrt().masked_fill(flat, 0.0)
    return centred / (deviation + eps)


def _score_layernorm(scores: Tensor, keep: Tensor | None, d_k: int, values: Values) -> Tensor:
    return _row_normed(scores, keep, number(values, "eps")) * per_head(tensor(values, "gain"))


def _head_gain(sizes: Sizes) -> dict[str, Tensor]:
    return {"gain": torch.ones(sizes.n_heads)}


def _temperature(values: Values) -> Tensor:
    return tensor(values, "gain")


def _batch_moments(scores: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return (mean, variance, count) over all kept pairs of each head, (head, 1, 1).

    The count is a scalar where nothing is hidden.
    """
    if keep is None:
        count = scores.new_tensor(float(scores.numel() // scores.shape[1]))
        mean = scores.mean(dim=(0, 2, 3), keepdim=True)
        centred = scores - mean
    else:
        kept = keep.broadcast_to(scores.shape)
        # Of each head: a mask may differ between them.
        count = kept.sum(dim=(0, 2, 3), keepdim=True).clamp_min(1).to(scores.dtype)
        mean = scores.masked_fill(~kept, 0.0).sum(dim=(0, 2, 3), keepdim=True) / count
        centred = (scores - mean).masked_fill(~kept, 0.0)
    variance = centred.square().sum(dim=(0, 2, 3), keepdim=True) / count
    return mean[0], variance[0], count[0] if count.dim() else count


def _score_batchnorm(scores: Tensor, keep: Tensor | None, d_k: int, values: Values) -> Tensor:
    if values["training"]:
        mean, variance, _ = _batch_moments(scores, keep)
    else:
        mean = per_head(tensor(values, "running_mean"))
        variance = per_head(tensor(values, "running_variance"))
    factor = (variance + number(values, "eps")).rsqrt() * per_head(tensor(values, "gain"))
    return (scores - mean) * factor


@torch.no_grad()
def _observe(scores: Tensor, keep: Tensor | None, values: Values) -> None:
    mean, variance, count = _batch_moments(scores, keep)
    unbiased = variance * (count / (count - 1).clamp_min(1))
    # One pair, or none, has no variance: such a batch leaves the running statistics alone.
    share = (count > 1).to(mean.dtype).expand_as(mean).flatten() * number(values, "momentum")
    for name, found in (("running_mean", mean), ("running_variance", unbiased)):
        kept = tensor(values, name)
        kept.lerp_(found.flatten().to(kept.dtype), share.to(kept.dtype))


def _running(sizes: Sizes) -> dict[str, Tensor]:
    return {
        "running_mean": torch.zeros(sizes.n_heads),
        "running_variance": torch.ones(sizes.n_heads),
    }


def _unchanged(q: Tensor, k: Tensor, n: Count, values: Values) -> tuple[Tensor, Tensor]:
    return q, k


def _nap(logits: Tensor, keep: Tensor | None, values: Values) -> Tensor:
    gain, bias = per_head(tensor(values, "gain")), per_head(tensor(values, "bias"))
    weights = _row_normed(logits, keep, number(values, "eps")) * gain + bias
    return weights if keep is None else weights.masked_fill(~keep, 0.0)


def _nap_parameters(sizes: Sizes) -> dict[str, Tensor]:
    return {"gain": torch.ones(sizes.n_heads), "bias": torch.zeros(sizes.n_heads)}


SOFTCAP = ScaleMode(
    name="softcap",
    formula="C · tanh(r / (√d_k · C))",
    source="Gemma 2 technical report 2024",
    score=_softcap,
    options={"cap": POSITIVE},
    deviation=_softcap_deviation,
)
SCORE_LAYERNORM = ScaleMode(
    name="score_layernorm",
    formula="γ_head · (r − mean r) / (std r + ε) over the row's kept keys, γ starts at 1",
    source="the normalisation of Richter & Wattenhofer 2020, in front of a softmax",
    score=_score_layernorm,
    options={"eps": POSITIVE},
    parameters=_head_gain,
    temperature=_temperature,
    deviation=lambda m, values: float(_temperature(values).mean()) * m.shrink,
)
SCORE_BATCHNORM = ScaleMode(
    name="score_batchnorm",
    formula="γ_head · (r − mean r) / √(var r + ε) over the batch's kept pairs, γ starts at 1; "
    "running statistics in evaluation",
    source="Wang et al. 2020, Axial-DeepLab (its bias has no effect before a softmax)",
    score=_score_batchnorm,
    options={"eps": POSITIVE, "momentum": SHARE},
    parameters=_head_gain,
    buffers=_running,
    observe=_observe,
    temperature=_temperature,
    deviation=lambda m, values: float(_temperature(values).mean()) * m.row_share,
)
NAP = ScaleMode(
    name="nap",
    formula="r; weights γ_head · (r − mean r) / (std r + ε) + β_head instead of a softmax",
    source="Richter & Wattenhofer 2020, Normalized Attention Without Probability Cage",
    qk=_unchanged,
    normaliser=_nap,
    options={"eps": POSITIVE},
    parameters=_nap_parameters,
    temperature=_temperature,
    deviation=lambda m, values: m.score_std,
)
