"""The seam, where q and k become logits; ``stats`` says what comes of it."""

from attnscale.attention.core import BACKENDS as BACKENDS
from attnscale.attention.core import Attended as Attended
from attnscale.attention.core import attend as attend
from attnscale.attention.dropout import Dropout as Dropout
from attnscale.attention.masks import causal_keep as causal_keep
from attnscale.attention.masks import padding_keep as padding_keep
from attnscale.attention.module import AttentionMaker as AttentionMaker
from attnscale.attention.module import KeyValueCache as KeyValueCache
from attnscale.attention.module import MultiHeadAttention as MultiHeadAttention
from attnscale.attention.module import attentions as attentions
from attnscale.attention.module import tapped as tapped
from attnscale.attention.scale import SCALES as SCALES
from attnscale.attention.scale import Moments as Moments
from attnscale.attention.scale import Scale as Scale
from attnscale.attention.scale import ScaleFactory as ScaleFactory
from attnscale.attention.scale import all_options as all_options
from attnscale.attention.scale import choose_scale as choose_scale
from attnscale.attention.scale import name_of as name_of
from attnscale.attention.scale import scores_of as scores_of
