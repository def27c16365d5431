"""Statistics of what an attention does: a registry, samples made from taps, and predictions."""

from attnscale.attention.stats.prediction import counted_rows as counted_rows
from attnscale.attention.stats.prediction import logit_std as logit_std
from attnscale.attention.stats.prediction import predicted_std as predicted_std
from attnscale.attention.stats.prediction import predicted_stds as predicted_stds
from attnscale.attention.stats.registry import LIVE_FROM as LIVE_FROM
from attnscale.attention.stats.registry import OF_SCORES as OF_SCORES
from attnscale.attention.stats.registry import OF_VECTORS as OF_VECTORS
from attnscale.attention.stats.registry import OF_WEIGHTS as OF_WEIGHTS
from attnscale.attention.stats.registry import STATISTICS as STATISTICS
from attnscale.attention.stats.registry import Statistic as Statistic
from attnscale.attention.stats.registry import measure as measure
from attnscale.attention.stats.sample import Sample as Sample
from attnscale.attention.stats.sample import sample_of as sample_of
from attnscale.attention.stats.vectors import spectral_norm as spectral_norm
