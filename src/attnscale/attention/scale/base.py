"""What a scale mode is: a module that says how q and k become logits.

    score   r_ij = q_i · k_j                        (q_i, k_j of length d_k, one head)
    logit   s    = logits(q' k'ᵀ),  q', k' = qk(q, k)        (before the mask)
    weight  p    = weights(s),  the softmax over the kept keys

A mode that overrides :meth:`Scale.qk` alone may run on PyTorch's fused attention; one that
overrides :meth:`Scale.logits` or :meth:`Scale.weights` needs the score matrix, and so the explicit
path.

The arguments of a mode's constructor are keyword-only, and of two kinds. What an attention or the
data knows has no default: ``n_heads``, ``d_k``, ``d_model``, a statistic of the training data. What
a person may choose, an *option*, has one; ``attention.options.<mode>.<option>`` sets it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnscale.attention.masks import softmax_over_kept

_HALF = (torch.float16, torch.bfloat16)


class ArgumentError(ValueError):
    """A number that a mode does not take.

    Attributes:
        argument: Which argument of the mode's constructor.
    """

    def __init__(self, argument: str, value: object, allowed: str) -> None:
        """Say which argument, its value, and what is allowed."""
        super().__init__(argument, value, allowed)
        self.argument = argument

    def __str__(self) -> str:
        """Return the sentence."""
        return "{}={}: allowed is {}".format(*self.args)


def checked(argument: str, value: float, allowed: str, test: Callable[[float], bool]) -> float:
    """Return a finite number that passes a test, or raise :class:`ArgumentError`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and math.isfinite(value) and test(value)):
        raise ArgumentError(argument, value, allowed)
    return value


def positive(argument: str, value: float) -> float:
    """Return a number above 0, or raise :class:`ArgumentError`."""
    return checked(argument, value, "a positive number", lambda number: number > 0)


def root_factor(scalar: float, d_k: int) -> float:
    """Return 1/√scalar, with 0 for d_k: published models divide by √ of another size too.

    Raises:
        ArgumentError: For a negative scalar.
    """
    checked("scalar", scalar, "a positive number, or 0 for d_k", lambda number: number >= 0)
    return float((scalar or d_k) ** -0.5)


@dataclass(frozen=True, kw_only=True)
class Moments:
    """What the spread of the logits of an untrained attention depends on.

    Attributes:
        d_k: Size of a query or key.
        q_rms: Root mean square of a component of q.
        k_rms: Root mean square of a component of k.
        x_cos: Mean cosine between two different inputs of a sequence.
        log_n: Root mean square, over rows, of ln(number of kept keys).
        row_share: Standard deviation of the scores within rows ÷ in all; for modes that normalise
            over more than a row.
        shrink: √(n / (n − 1)), root mean square over rows; for modes that set a row's standard
            deviation.
    """

    d_k: int
    q_rms: float = 1.0
    k_rms: float = 1.0
    x_cos: float = 0.0
    log_n: float = 1.0
    row_share: float = 1.0
    shrink: float = 1.0

    @property
    def score_std(self) -> float:
        """Standard deviation within a row of q·k for independent q and k: literature's √Var_row."""
        return float(self.d_k**0.5 * self.q_rms * self.k_rms * (1.0 - self.x_cos) ** 0.5)

    @property
    def cosine_std(self) -> float:
        """Standard deviation within a row of the cosine between q and k."""
        return float(((1.0 - self.x_cos) / self.d_k) ** 0.5)


@dataclass(frozen=True, kw_only=True)
class OptimizerFactors:
    """What multiplies the optimizer's numbers for W_q and its bias."""

    lr: float
    eps: float
    weight_decay: float


class Scale(nn.Module):
    """How q and k become logits: one mode, with what it learns and keeps.

    It works in any model: ``Scale(...)(q, k)`` are logits, and :func:`attnscale.attention.attend`
    takes it. A mode says its ``formula`` and ``source``, overrides one of :meth:`qk`,
    :meth:`logits` and :meth:`weights`, and gives :meth:`predicted_std`.

    Attributes:
        formula: The logit, in the words of ``docs/design.md``.
        source: Where the definition comes from, and how this differs.
        statistics: Constructor argument -> name of the statistic of the training data that it is.
        over_batch: Whether the mode normalises over more than a row, so that its prediction
            depends on ``Moments.row_share``.
        fusible: Whether the mode may run on the fused backend.
        is_softmax: Whether its weights are a softmax.
        adjusts_optimizer: Whether it has factors for the optimizer of W_q.
    """

    formula: ClassVar[str]
    source: ClassVar[str]
    statistics: ClassVar[Mapping[str, str]] = {}
    over_batch: ClassVar[bool] = False
    fusible: ClassVar[bool] = True
    is_softmax: ClassVar[bool] = True
    adjusts_optimizer: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Note what the mode overrides; a class may also say more of itself, never less."""
        super().__init_subclass__()
        cls.is_softmax = cls.is_softmax and cls.weights is Scale.weights
        cls.fusible = cls.fusible and cls.is_softmax and cls.logits is Scale.logits
        own = cls.optimizer_factors is not Scale.optimizer_factors
        cls.adjusts_optimizer = cls.adjusts_optimizer or own

    def qk(
        self,
        q: Float[Tensor, "batch head query d_k"],
        k: Float[Tensor, "batch head key d_k"],
        keep: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "batch head query d_k"], Float[Tensor, "batch head key d_k"]]:
        """Return q' and k', whose product goes to :meth:`logits`.

        Args:
            q: Queries.
            k: Keys.
            keep: True where a key may be attended, broadcastable to (batch, head, query, key).
        """
        return q, k

    def logits(
        self,
        scores: Float[Tensor, "batch head query key"],
        keep: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch head query key"]:
        """Return the logits of the products q'·k', before the mask.

        Args:
            scores: q'·k', fp32 or wider.
            keep: True where a key may be attended; a mode that normalises ignores what is hidden.
        """
        return scores

    def weights(
        self,
        logits: Float[Tensor, "batch head query key"],
        keep: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch head query key"]:
        """Return the weights: 0 at hidden keys, and in a row without any kept key."""
        return softmax_over_kept(logits, keep)

    def forward(
        self,
        q: Float[Tensor, "batch head query d_k"],
        k: Float[Tensor, "batch head key d_k"],
        keep: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch head query key"]:
        """Return the logits of q and k, before the mask, fp32 or wider."""
        return self.logits(scores_of(*self.qk(q, k, keep)), keep)

    def output_norm(self, size: int) -> nn.Module | None:
        """Return what an attention applies to its joined heads, (…, size), before W_o, or None.

        Each attention has its own; :func:`attnscale.attention.attend` ends before it.
        """
        return None

    def init_gain(self, d_k: int) -> float:
        """Return what multiplies the initial W_q and its bias."""
        return 1.0

    def optimizer_factors(self, d_k: int, kind: str) -> OptimizerFactors:
        """Return what multiplies the optimizer's numbers for W_q and its bias.

        Args:
            d_k: Size of a query or key.
            kind: The optimizer: "adam", "adamw" or "sgd"; another by its class's name.

        Raises:
            ValueError: If the mode knows no factors for the optimizer.
        """
        return OptimizerFactors(lr=1.0, eps=1.0, weight_decay=1.0)

    def learned_scale(self) -> Float[Tensor, " head"] | None:
        """Return what multiplies the logits as learned so far, one number or one per head."""
        return None

    def predicted_std(self, moments: Moments) -> float:
        """Return the standard deviation within a row (n − 1) of an untrained attention's logits."""
        raise NotImplementedError


def widen(values: Tensor) -> Tensor:
    """Return a tensor in fp32, or as it is where it is wider."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def scores_of(
    q: Float[Tensor, "batch head query d_k"], k: Float[Tensor, "batch head key d_k"]
) -> Float[Tensor, "batch head query key"]:
    """Multiply q and k, in fp32 where they are narrower.

    Half precision is widened first: an unscaled score of 1024 components passes fp16's 65,504, and
    bf16 keeps three digits, which moves a weight by several per cent at a logit of 30.
    """
    if q.dtype in _HALF or torch.is_autocast_enabled(q.device.type):
        with torch.autocast(q.device.type, enabled=False):
            return widen(q) @ widen(k).transpose(-2, -1)
    return q @ k.transpose(-2, -1)


def per_head(values: Float[Tensor, " head"]) -> Float[Tensor, "head 1 1"]:
    """Shape one number per head so that it multiplies (batch, head, query, d_k)."""
    return values[:, None, None]


def mean_of(learned: Tensor) -> float:
    """Return the mean of what a mode has learned, as a number."""
    return float(learned.detach().mean())
