"""Greedy decoding: the most probable next token, again and again, with cached keys and values."""

import torch
from jaxtyping import Int
from torch import Tensor

from attnscale.data.vocabulary import BEGIN, END, PADDING
from attnscale.model.transformer import Transformer


@torch.no_grad()
def greedy(
    model: Transformer,
    source: Int[Tensor, "batch source"],
    *,
    extra: int = 50,
    factor: float = 2.0,
    cached: bool = True,
) -> list[list[int]]:
    """Translate a batch.

    A sentence that has ended leaves the batch, so the cost is that of the tokens that come out.

    Args:
        model: In evaluation mode.
        source: Source tokens, padded at the end.
        extra: A translation is cut at ``factor`` × source length + ``extra`` tokens, and at the
            model's number of positions.
        factor: See ``extra``.
        cached: False recomputes everything at each step, for comparison.

    Returns:
        For each sentence its tokens, without BEGIN, with END unless it was cut.
    """
    keep = (source != PADDING)[:, None, None, :]
    memory = model.encode(source, keep)
    lengths = keep.sum(dim=-1).flatten()
    limits = (lengths * factor + extra).long().clamp(max=model.target_embedding.max_length - 1)
    caches = model.new_caches() if cached else None
    sentences: list[list[int]] = [[] for _ in range(len(source))]
    rows = torch.arange(len(source), device=source.device)
    tokens = torch.full((len(source), 1), BEGIN, dtype=torch.long, device=source.device)
    step = 0
    while len(rows):
        inputs = tokens[:, -1:] if cached else tokens
        hidden = model.decode(inputs, memory, keep, caches=caches, first=step if cached else 0)
        newest = model.output(hidden[:, -1]).argmax(dim=-1)
        for row, token in zip(rows.tolist(), newest.tolist(), strict=True):
            sentences[row].append(token)
        step += 1
        open_ended = (newest != END) & (step < limits[rows])
        tokens = torch.cat([tokens, newest[:, None]], dim=1)
        if not bool(open_ended.all()):
            stay = open_ended.nonzero().flatten()
            rows, tokens, memory, keep = rows[stay], tokens[stay], memory[stay], keep[stay]
            for self_cache, cross_cache in caches or ():
                self_cache.select(stay)
                cross_cache.select(stay)
    return sentences
