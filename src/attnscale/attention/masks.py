"""Masks, and what is done over the keys that they keep.

One polarity in the whole project: ``keep`` is True where a key may be attended.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def padding_keep(lengths: Int[Tensor, " batch"], size: int) -> Bool[Tensor, "batch 1 1 size"]:
    """Keep the first ``lengths[i]`` keys of each sequence.

    Args:
        lengths: Number of real keys of each sequence, 0 to ``size``.
        size: Number of key positions, padding included.

    Returns:
        A mask that broadcasts over heads and queries.
    """
    positions = torch.arange(size, device=lengths.device)
    return (positions < lengths[:, None])[:, None, None, :]


def causal_keep(
    n_queries: int, n_keys: int, device: torch.device | str = "cpu"
) -> Bool[Tensor, "n_queries n_keys"]:
    """Keep the keys at or before each query.

    The mask is anchored at the *end*: the last query sees every key. That is what decoding step by
    step needs, where one query meets all the keys so far. (``is_causal`` of PyTorch's fused
    attention is anchored at the start and would show that query the first key only.)
    """
    keep = torch.ones(n_queries, n_keys, dtype=torch.bool, device=device)
    return keep.tril(diagonal=n_keys - n_queries)


def kept_count(keep: Bool[Tensor, "..."] | None, n_keys: int) -> Float[Tensor, "..."] | float:
    """Return the number of kept keys of each row, broadcastable to (batch, head, query, 1)."""
    if keep is None:
        return float(n_keys)
    count = keep.sum(dim=-1, keepdim=True)
    return (count if keep.shape[-1] == n_keys else count * n_keys).float()


def softmax_over_kept(
    logits: Float[Tensor, "batch head query key"], keep: Bool[Tensor, "..."] | None
) -> Float[Tensor, "batch head query key"]:
    """Softmax over the kept keys; a row without any has weights 0 and sends no gradient back."""
    if keep is None:
        return logits.softmax(dim=-1)
    # The lowest finite number, not -inf: a row without any key must not become NaN in the softmax.
    weights = torch.where(keep, logits, torch.finfo(logits.dtype).min).softmax(dim=-1)
    if weights.device.type == "cpu":
        return weights * keep.to(weights.dtype)  # several times as fast as a choice there
    return torch.where(keep, weights, 0.0)
