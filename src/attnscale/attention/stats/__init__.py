"""Statistics of what an attention does: a registry, samples made from taps, and predictions."""

from attnscale.attention.stats.prediction import (
    counted_rows,
    logit_std,
    predicted_std,
    predicted_stds,
)
from attnscale.attention.stats.registry import (
    GROUPS,
    LIVE_FROM,
    STATISTICS,
    Statistic,
    measure,
)
from attnscale.attention.stats.sample import Sample
from attnscale.attention.stats.taps import sample_of
from attnscale.attention.stats.vectors import spectral_norm

__all__ = [
    "GROUPS",
    "LIVE_FROM",
    "STATISTICS",
    "Sample",
    "Statistic",
    "counted_rows",
    "logit_std",
    "measure",
    "predicted_std",
    "predicted_stds",
    "sample_of",
    "spectral_norm",
]
