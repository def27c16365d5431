"""Masks. One polarity in the whole project: ``keep`` is True where a key may be attended."""

import torch
from jaxtyping import Bool, Int
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


def combine(*masks: Bool[Tensor, "..."] | None) -> Bool[Tensor, "..."] | None:
    """Keep what every given mask keeps; None keeps everything."""
    kept: Tensor | None = None
    for mask in masks:
        if mask is not None:
            kept = mask if kept is None else kept & mask
    return kept
