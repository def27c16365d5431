"""The seam, where q and k become logits; ``stats`` says what comes of it."""

from attnscale.attention.core import BACKENDS, Attended, attend
from attnscale.attention.dropout import Dropout
from attnscale.attention.masks import causal_keep, combine, padding_keep
from attnscale.attention.module import AttentionMaker, KeyValueCache, MultiHeadAttention
from attnscale.attention.scale import (
    SCALES,
    Moments,
    Scale,
    ScaleFactory,
    all_options,
    choose_scale,
    name_of,
    scores_of,
)
from attnscale.attention.taps import attentions, tapped

__all__ = [
    "BACKENDS",
    "SCALES",
    "Attended",
    "AttentionMaker",
    "Dropout",
    "KeyValueCache",
    "Moments",
    "MultiHeadAttention",
    "Scale",
    "ScaleFactory",
    "all_options",
    "attend",
    "attentions",
    "causal_keep",
    "choose_scale",
    "combine",
    "name_of",
    "padding_keep",
    "scores_of",
    "tapped",
]
