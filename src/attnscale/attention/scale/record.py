"""What a scale mode is: one frozen record that says all the project must know of it.

    score  r_ij = q_i · k_j                       (q_i, k_j of length d_k, one head)
    logit  s_ij = q'_i · k'_j   or   f(r)_ij      (before the mask)

A mode has either a *q/k function* (q, k, n) -> (q', k'), which may run on PyTorch's fused
attention, or a *score function* r -> s, which needs the score matrix and so the explicit path.
Where it needs them it also has a gain for the initial W_q, factors for the optimizer of W_q,
parameters, buffers, a statistic that the data must supply, and a normaliser in place of the
softmax.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

Values = Mapping[str, Tensor | float]
"""What a mode reads at run time, by name: options and facts (numbers), parameters and buffers."""

Count = Tensor | float
"""Number of kept keys of each row, broadcastable to (batch, head, query, 1)."""

QKFunction = Callable[[Tensor, Tensor, Count, Values], tuple[Tensor, Tensor]]
ScoreFunction = Callable[[Tensor, Tensor | None, int, Values], Tensor]
Normaliser = Callable[[Tensor, Tensor | None, Values], Tensor]
Observer = Callable[[Tensor, Tensor | None, Values], None]


class Option(NamedTuple):
    """A number that a mode reads: what is allowed, in words and as a test."""

    allowed: str
    test: Callable[[float], bool]


POSITIVE = Option("a positive number", lambda value: value > 0)
ABOVE_ONE = Option("a number above 1", lambda value: value > 1)
SHARE = Option("a number above 0, at most 1", lambda value: 0 < value <= 1)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What the initial values of parameters and buffers may depend on.

    Attributes:
        n_heads: Number of heads.
        d_k: Size of a query or key, per head.
        d_model: Size of the attention's input.
        options: The mode's options.
        statistics: What the data supplied, by name.
    """

    n_heads: int
    d_k: int
    d_model: int
    options: Mapping[str, float] = field(default_factory=dict)
    statistics: Mapping[str, float] = field(default_factory=dict)


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
        shrink: √(n / (n − 1)), root mean square over rows; for modes that set a row's deviation.
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
        spread: float = (1.0 - self.x_cos) ** 0.5
        return float(self.d_k**0.5 * self.q_rms * self.k_rms * spread)

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


@dataclass(frozen=True, kw_only=True)
class ScaleMode:
    """One way to turn scores into logits.

    Attributes:
        name: What ``attention.scale`` is set to.
        formula: The logit, in the words of ``docs/design.md``.
        source: Where the definition comes from, and how this differs.
        deviation: (moments, values) -> predicted standard deviation of the logits within a row
            (n − 1) of an untrained attention.
        qk: (q, k, n, values) -> (q', k') with logits = q'·k'. Shapes are kept: (batch, head,
            query, d_k) and (batch, head, key, d_k).
        score: (scores, keep, d_k, values) -> logits, both (batch, head, query, key). Applied
            before the mask; it must ignore what ``keep`` hides.
        options: The numbers that the mode reads, each with what is allowed.
        needs: Facts that the mode reads beside its options and parameters: "d_model".
        counts: Whether the q/k function reads n.
        statistic: Name of the statistic that the data must supply, or None.
        parameters: Sizes -> initial values of what the mode learns. They get no weight decay.
        buffers: Sizes -> initial values of what the mode keeps without learning it.
        observe: (scores, keep, values) -> None: updates the buffers in place while training.
        normaliser: (logits, keep, values) -> weights, where it is not the softmax.
        init_gain: d_k -> what multiplies the initial W_q and its bias.
        optimizer: (d_k, rule) -> factors for the optimizer of W_q; the rule is "adam", "adamw" or
            "sgd".
        temperature: values -> what multiplies the logits as learned so far: a scalar or one per
            head; None where nothing is learned.
    """

    name: str
    formula: str
    source: str
    deviation: Callable[[Moments, Values], float]
    qk: QKFunction | None = None
    score: ScoreFunction | None = None
    options: Mapping[str, Option] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    counts: bool = False
    statistic: str | None = None
    parameters: Callable[[Sizes], dict[str, Tensor]] | None = None
    buffers: Callable[[Sizes], dict[str, Tensor]] | None = None
    observe: Observer | None = None
    normaliser: Normaliser | None = None
    init_gain: Callable[[int], float] | None = None
    optimizer: Callable[[int, str], OptimizerFactors] | None = None
    temperature: Callable[[Values], Tensor] | None = None

    def __post_init__(self) -> None:
        """Refuse a record with both kinds of function, or none."""
        if (self.qk is None) == (self.score is None):
            raise ValueError(f"scale mode {self.name!r} needs either a q/k or a score function")

    @property
    def fusible(self) -> bool:
        """Whether the mode may run on the fused backend."""
        return self.qk is not None and self.normaliser is None

    def start(self, sizes: Sizes) -> dict[str, Tensor | float]:
        """Return all that the mode reads before any training: the ``values`` of ``attend``.

        Raises:
            ValueError: If the data's statistic is missing or not usable.
        """
        made: dict[str, Tensor | float] = {**sizes.options}
        if "d_model" in self.needs:
            made["d_model"] = float(sizes.d_model)
        if self.parameters is not None:
            made |= self.parameters(sizes)
        if self.buffers is not None:
            made |= {**self.buffers(sizes), "training": 1.0}
        return made


def tensor(values: Values, name: str) -> Tensor:
    """Return a parameter or buffer."""
    value = values[name]
    assert isinstance(value, Tensor)
    return value


def number(values: Values, name: str) -> float:
    """Return an option or a fact."""
    value = values[name]
    assert not isinstance(value, Tensor)
    return value


def per_head(values: Tensor) -> Tensor:
    """(head,) -> (head, 1, 1), so that it multiplies (batch, head, query, d_k)."""
    return values[:, None, None]
