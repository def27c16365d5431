"""The seam: where q and k become logits."""

from attnscale.attention.core import BACKENDS, Attended, attend
from attnscale.attention.masks import causal_keep, combine, padding_keep
from attnscale.attention.module import KeyValueCache, MultiHeadAttention
from attnscale.attention.scale import (
    SCALE_MODES,
    Moments,
    ScaleMode,
    Sizes,
    check_options,
    resolve_scale,
)
from attnscale.attention.taps import attentions, tapped

__all__ = [
    "BACKENDS",
    "SCALE_MODES",
    "Attended",
    "KeyValueCache",
    "Moments",
    "MultiHeadAttention",
    "ScaleMode",
    "Sizes",
    "attend",
    "attentions",
    "causal_keep",
    "check_options",
    "combine",
    "padding_keep",
    "resolve_scale",
    "tapped",
]
