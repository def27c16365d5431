"""Statistics of the vectors that attention compares: queries, keys, the layer input, W_q and W_k.

    σ_q² = mean over real positions i and components a of (q_ia − q̄_a)²,    q̄ the mean over i
    c̄    = mean over pairs i ≠ j of one sequence of cos(x_i, x_j)
         = (‖Σ_i u_i‖² − Σ_i ‖u_i‖²) / (m (m − 1)),    u_i = x_i / ‖x_i‖,  m real positions
    σ₁(W_qᵀ W_k) = σ₁(R_q R_kᵀ),    W_qᵀ = Q_q R_q,  W_kᵀ = Q_k R_k    (QR, R is d_k × d_k)

Sources: Vaswani et al. 2017, footnote 4 (independent components of variance 1); Ethayarajh 2019
(mean cosine); Zhai et al. 2023 (the spectral norm of the product bounds the logits). Different
here: c̄ takes one pass over the vectors instead of all pairs, and the d_model × d_model product is
never formed: Q_q and Q_k have orthonormal columns, which leave singular values as they are.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def ratio(above: Tensor, below: Tensor) -> Tensor:
    """Divide, with 0 where the denominator is 0: no statistic becomes NaN for want of data."""
    some = below > 0
    return torch.where(some, above / torch.where(some, below, 1.0), 0.0)


def blank(values: Tensor, keep: Tensor, weight: Tensor) -> Tensor:
    """Return 0 where values are not kept, whatever stands there.

    Args:
        values: Fp32 or wider.
        keep: True where a value is kept; broadcastable to ``values``.
        weight: The same as 1 and 0, in the type of ``values``.
    """
    # On a CPU a product is several times as fast as a choice, but 0 · ∞ is NaN.
    if values.device.type == "cpu" and bool(values.sum().isfinite()):
        return values * weight
    return torch.where(keep, values, 0.0)


def component_variance(
    vectors: Float[Tensor, "batch head position d_k"],
    real: Bool[Tensor, "#batch #head #position"],
) -> Float[Tensor, " head"]:
    """Return the variance of a component: mean square about the mean of that component.

    Args:
        vectors: Queries or keys, fp32 or wider.
        real: True where a position holds a real token.

    Returns:
        One variance per head, 0 where no position is real.
    """
    real = real.expand(vectors.shape[:3])
    weight = real.to(vectors.dtype)
    count = weight.sum(dim=(0, 2)).clamp(min=1)
    # (batch, head, 1, position) @ (batch, head, position, d_k) -> (head, d_k)
    mean = (weight[:, :, None] @ vectors)[:, :, 0].sum(dim=0) / count[:, None]
    if not bool(mean.isfinite().all()):
        # What stands where nothing is real may be anything, and 0 · ∞ is NaN.
        vectors = torch.where(real[..., None], vectors, 0.0)
        mean = vectors.sum(dim=(0, 2)) / count[:, None]
    distance = torch.linalg.vector_norm(vectors - mean[:, None, :], dim=-1)
    total = torch.where(real, distance.square(), 0.0).sum(dim=(0, 2))
    return total / (count * vectors.shape[-1])


def cosine_of_units(
    unit: Float[Tensor, " batch #some position d_model"],
    real: Bool[Tensor, " batch #some position"],
) -> Float[Tensor, " some"]:
    """Return the mean cosine between two different real positions of one sequence.

    Args:
        unit: Layer inputs of length 1, or 0; a zero vector has cosine 0 with every other. Several
            inputs may share one mask, and one input may have several masks.
        real: True where a position holds a real token; its second axis is input, head, or 1.

    Returns:
        Mean over the sequences with at least two real positions, each sequence counting once; 0
        where there is none.
    """
    weight = real.to(unit.dtype)
    # (batch, some, 1, position) @ (batch, some, position, d_model) -> (batch, some, d_model)
    together = (weight[:, :, None] @ unit)[:, :, 0].square().sum(dim=-1)
    alone = (weight * unit.square().sum(dim=-1)).sum(dim=-1)
    size = weight.sum(dim=-1)
    cosine = ratio(together - alone, size * (size - 1))
    return ratio(cosine.sum(dim=0), (size > 1).sum(dim=0).to(unit.dtype))


def spectral_norm(
    w_q: Float[Tensor, "rows d_model"], w_k: Float[Tensor, "rows d_model"], n_heads: int
) -> Float[Tensor, " head"]:
    """Return the largest singular value of W_qᵀ W_k of each head, NaN if weights are not finite.

    Args:
        w_q: (n_heads · d_k, d_model), the heads one after the other; fp32 or wider.
        w_k: Likewise.
        n_heads: Number of heads.
    """
    # (head · d_k, d_model) -> (head, d_model, d_k) -> (head, d_k, d_k), less if d_model < d_k
    r_q, r_k = (
        torch.linalg.qr(w.reshape(n_heads, -1, w.shape[-1]).mT, mode="r").R for w in (w_q, w_k)
    )
    product = r_q @ r_k.mT
    # The decomposition refuses what is not finite, and a run that diverges has such weights.
    finite = product.isfinite().all(dim=-1).all(dim=-1)
    norms = torch.linalg.matrix_norm(product.where(finite[:, None, None], 0.0), ord=2)
    return torch.where(finite, norms, torch.nan)
