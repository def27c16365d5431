"""The scale modes: how a raw score q·k becomes the logit that the softmax sees."""

from attnscale.attention.scale.record import (
    Moments,
    OptimizerFactors,
    ScaleMode,
    Sizes,
    Values,
)
from attnscale.attention.scale.registry import SCALE_MODES, check_options, resolve_scale

__all__ = [
    "SCALE_MODES",
    "Moments",
    "OptimizerFactors",
    "ScaleMode",
    "Sizes",
    "Values",
    "check_options",
    "resolve_scale",
]
