"""The scale modes: how a raw score q·k becomes the logit that the softmax sees."""

from attnscale.attention.scale.base import (
    ArgumentError,
    Moments,
    OptimizerFactors,
    Scale,
    scores_of,
)
from attnscale.attention.scale.fixed import (
    Constant,
    Folded,
    Inverse,
    MuP,
    NoneEquivalent,
    Sqrt,
    SqrtDModel,
    Unscaled,
)
from attnscale.attention.scale.learnable import Learned, LearnedShared
from attnscale.attention.scale.length import LogN, LogNBase, SSMax
from attnscale.attention.scale.normalised import (
    NGPT,
    Cosine,
    CosineFixed,
    QKLayerNorm,
    QKNorm,
    QKRMSNorm,
)
from attnscale.attention.scale.registry import (
    SCALES,
    ScaleFactory,
    all_options,
    choose_scale,
    name_of,
    options_of,
    scale_name,
)
from attnscale.attention.scale.scores import NAP, ScoreBatchNorm, ScoreLayerNorm, SoftCap

__all__ = [
    "NAP",
    "NGPT",
    "SCALES",
    "ArgumentError",
    "Constant",
    "Cosine",
    "CosineFixed",
    "Folded",
    "Inverse",
    "Learned",
    "LearnedShared",
    "LogN",
    "LogNBase",
    "Moments",
    "MuP",
    "NoneEquivalent",
    "OptimizerFactors",
    "QKLayerNorm",
    "QKNorm",
    "QKRMSNorm",
    "SSMax",
    "Scale",
    "ScaleFactory",
    "ScoreBatchNorm",
    "ScoreLayerNorm",
    "SoftCap",
    "Sqrt",
    "SqrtDModel",
    "Unscaled",
    "all_options",
    "choose_scale",
    "name_of",
    "options_of",
    "scale_name",
    "scores_of",
]
