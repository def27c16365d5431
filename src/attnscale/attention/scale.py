"""The scale modes: how a raw score q·k becomes the logit that the softmax sees.

    score  r_ij = q_i · k_j                       (q_i, k_j of length d_k, one head)
    logit  s_ij = q'_i · k'_j   or   f(r)_ij      (before the mask)

A mode is one frozen :class:`ScaleMode` record in :data:`SCALE_MODES`. It has either a *q/k
function* (q, k) -> (q', k'), which may run on PyTorch's fused attention, or a *score function* r ->
s, which needs the score matrix and so the explicit path. Nothing outside this file knows a mode by
its name.

Sources: Vaswani et al. 2017, section 3.2.1 (``sqrt``, and the unscaled comparison ``none``); Yang
et al. 2022, "Tensor Programs V" (1/d_k); Lee et al. 2021, "Vision Transformer for Small-Size
Datasets", section 3.2 (a learned temperature; there one per layer, here one per head); Gemma 2
technical report 2024 (soft-capping; here the cap acts on r/√d_k, before the mask, as its released
code does).
"""

import difflib
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor
from torch import full as torch_full

Values = Mapping[str, Tensor | float]
"""A mode's options (plain numbers) and parameters (tensors), by name."""

QKFunction = Callable[[Tensor, Tensor, Values], tuple[Tensor, Tensor]]
ScoreFunction = Callable[[Tensor, int, Values], Tensor]
ParameterFunction = Callable[[int, int], dict[str, Tensor]]


@dataclass(frozen=True, kw_only=True)
class ScaleMode:
    """One way to turn scores into logits.

    Attributes:
        name: What ``attention.scale`` is set to.
        formula: The logit, in the words of ``docs/design.md``.
        source: Where the definition comes from.
        qk: (q, k, values) -> (q', k') with logits = q'·k'. Shapes are kept:
            (batch, head, query, d_k) and (batch, head, key, d_k).
        score: (scores, d_k, values) -> logits, both (batch, head, query, key). Applied before the
            mask.
        options: Names of the numbers that the mode reads, each with the check that it must pass.
        parameters: (n_heads, d_k) -> initial values of what the mode learns. Parameters of a scale
            mode are temperatures: they get no weight decay.
    """

    name: str
    formula: str
    source: str
    qk: QKFunction | None = None
    score: ScoreFunction | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    parameters: ParameterFunction | None = None

    def __post_init__(self) -> None:
        """Refuse a record with both kinds of function, or none."""
        if (self.qk is None) == (self.score is None):
            raise ValueError(f"scale mode {self.name!r} needs either a q/k or a score function")

    @property
    def fusible(self) -> bool:
        """Whether the mode may run on the fused backend."""
        return self.qk is not None


def _per_head(values: Tensor) -> Tensor:
    """(head,) -> (head, 1, 1), so that it multiplies (batch, head, query, d_k)."""
    return values[:, None, None]


def _sqrt(q: Tensor, k: Tensor, values: Values) -> tuple[Tensor, Tensor]:
    return q * q.shape[-1] ** -0.5, k


def _none(q: Tensor, k: Tensor, values: Values) -> tuple[Tensor, Tensor]:
    return q, k


def _inverse(q: Tensor, k: Tensor, values: Values) -> tuple[Tensor, Tensor]:
    return q * (1.0 / q.shape[-1]), k


def _learned(q: Tensor, k: Tensor, values: Values) -> tuple[Tensor, Tensor]:
    log_scale = values["log_scale"]
    assert isinstance(log_scale, Tensor)
    return q * _per_head(log_scale.exp()).to(q.dtype), k


def _learned_parameters(n_heads: int, d_k: int) -> dict[str, Tensor]:
    return {"log_scale": torch_full((n_heads,), -0.5 * math.log(d_k))}


def _softcap(scores: Tensor, d_k: int, values: Values) -> Tensor:
    cap = values["cap"]
    assert not isinstance(cap, Tensor)
    capped: Tensor = cap * (scores * (d_k**-0.5 / cap)).tanh()
    return capped


SCALE_MODES: dict[str, ScaleMode] = {
    "sqrt": ScaleMode(
        name="sqrt",
        formula="r / √d_k",
        source="Vaswani et al. 2017, section 3.2.1",
        qk=_sqrt,
    ),
    "none": ScaleMode(
        name="none",
        formula="r",
        source="Luong et al. 2015 (dot); Vaswani et al. 2017, section 3.2.1",
        qk=_none,
    ),
    "inverse": ScaleMode(
        name="inverse",
        formula="r / d_k",
        source="Yang et al. 2022, Tensor Programs V",
        qk=_inverse,
    ),
    "learned": ScaleMode(
        name="learned",
        formula="exp(τ_head) · r, τ starts at −½ ln d_k",
        source="Lee et al. 2021, section 3.2 (one per layer there)",
        qk=_learned,
        parameters=_learned_parameters,
    ),
    "softcap": ScaleMode(
        name="softcap",
        formula="C · tanh(r / (√d_k · C))",
        source="Gemma 2 technical report 2024",
        score=_softcap,
        options={"cap": "a positive number"},
    ),
}


def _constant(factor: float) -> ScaleMode:
    def multiply(q: Tensor, k: Tensor, values: Values) -> tuple[Tensor, Tensor]:
        return q * factor, k

    return ScaleMode(
        name=f"{factor:g}", formula=f"{factor:g} · r", source="a number of one's own", qk=multiply
    )


def resolve_scale(scale: str | float) -> ScaleMode:
    """Return the record that ``attention.scale`` names.

    Args:
        scale: A name in :data:`SCALE_MODES`, or a positive, finite number that multiplies the
            scores.

    Raises:
        ValueError: For an unknown name (with the nearest known one) or a number that is not
            positive and finite.
    """
    if isinstance(scale, str):
        if scale in SCALE_MODES:
            return SCALE_MODES[scale]
        near = difflib.get_close_matches(scale, SCALE_MODES, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"attention.scale={scale}: no such scale mode. Did you mean {near!r}? "
            f"Allowed: {', '.join(SCALE_MODES)}, or a positive number"
        )
    if isinstance(scale, bool) or not 0 < scale < math.inf or scale > sys.float_info.max:
        raise ValueError(
            f"attention.scale={scale}: a number must be positive and finite; "
            f"names are {', '.join(SCALE_MODES)}"
        )
    return _constant(scale)


def check_options(mode: ScaleMode, options: Mapping[str, float]) -> dict[str, float]:
    """Return a mode's options after checking that they are complete, known and positive.

    Raises:
        ValueError: Naming the config key, the value and what is allowed.
    """
    key = f"attention.options.{mode.name}"
    for name in options:
        if name not in mode.options:
            known = ", ".join(mode.options) or "none"
            raise ValueError(f"{key}.{name}: unknown option; {mode.name!r} has: {known}")
    for name, allowed in mode.options.items():
        if name not in options:
            raise ValueError(f"{key}.{name} is missing: {allowed}")
        value = options[name]
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 < value < math.inf
        ):
            raise ValueError(f"{key}.{name}={value}: allowed is {allowed}")
    return dict(options)
