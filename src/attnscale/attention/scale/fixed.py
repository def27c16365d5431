"""Modes that multiply the score by a number that is fixed before training.

    logit = c · r,   c = 1/√d_k (sqrt), 1 (none, folded, none_equiv), 1/d_k (inverse),
                     √d₀/d_k (mup), 1/√d_model (sqrt_d_model), or any positive number

Sources: Vaswani et al. 2017, section 3.2.1 (``sqrt``, and the unscaled comparison); Raffel et al.
2020, T5 (``folded``: 1/√d_k goes into the initial W_q); Yang et al. 2022, "Tensor Programs V", and
the README of its library (``mup``: equal to ``sqrt`` at the base size d₀; that library also starts
W_q at zero, here the initialisation stays the model's).

``none_equiv`` proves that the factor is a reparametrisation. With c = 1/√d_k and W_q' = c W_q the
model is that of ``sqrt``, and ∂L/∂W_q' = (1/c) ∂L/∂W_q. Adam's step does not depend on the size of
the gradient, so its learning rate must be multiplied by c and its ε by 1/c; decay that is decoupled
(AdamW) by 1/c, as it is multiplied by the learning rate; decay that is added to the gradient by
1/c², for g/c + w c W must be proportional to g + decay W. SGD's step is proportional to the
gradient, so its learning rate must be multiplied by c².
"""

from collections.abc import Callable

from torch import Tensor

from attnscale.attention.scale.record import (
    POSITIVE,
    Count,
    Moments,
    OptimizerFactors,
    QKFunction,
    ScaleMode,
    Values,
    number,
)


def _times(factor: Callable[[int, Values], float]) -> QKFunction:
    def multiply(q: Tensor, k: Tensor, n: Count, values: Values) -> tuple[Tensor, Tensor]:
        return q * factor(q.shape[-1], values), k

    return multiply


def _unchanged(q: Tensor, k: Tensor, n: Count, values: Values) -> tuple[Tensor, Tensor]:
    return q, k


def _deviation(factor: Callable[[int, Values], float]) -> Callable[[Moments, Values], float]:
    return lambda moments, values: factor(moments.d_k, values) * moments.score_std


def _sqrt(d_k: int, values: Values) -> float:
    return float(d_k**-0.5)


def _one(d_k: int, values: Values) -> float:
    return 1.0


def _inverse(d_k: int, values: Values) -> float:
    return 1.0 / d_k


def _mup(d_k: int, values: Values) -> float:
    return float(number(values, "base_d_k") ** 0.5 / d_k)


def _sqrt_d_model(d_k: int, values: Values) -> float:
    return float(number(values, "d_model") ** -0.5)


def _fold(d_k: int) -> float:
    return float(d_k**-0.5)


def _equivalent(d_k: int, rule: str) -> OptimizerFactors:
    c = d_k**-0.5
    if rule == "adamw":
        return OptimizerFactors(lr=c, eps=1 / c, weight_decay=1 / c)
    if rule == "adam":
        return OptimizerFactors(lr=c, eps=1 / c, weight_decay=1 / c**2)
    if rule == "sgd":
        return OptimizerFactors(lr=c**2, eps=1.0, weight_decay=1 / c**2)
    raise ValueError(
        f"attention.scale=none_equiv: knows no factors for the optimizer {rule!r}; "
        "allowed are adam, adamw and sgd"
    )


def constant(factor: float) -> ScaleMode:
    """Return the mode that multiplies scores by a number."""

    def fixed(d_k: int, values: Values) -> float:
        return factor

    return ScaleMode(
        name=f"{factor:g}",
        formula=f"{factor:g} · r",
        source="a number of one's own",
        qk=_times(fixed),
        deviation=_deviation(fixed),
    )


SQRT = ScaleMode(
    name="sqrt",
    formula="r / √d_k",
    source="Vaswani et al. 2017, section 3.2.1",
    qk=_times(_sqrt),
    deviation=_deviation(_sqrt),
)
NONE = ScaleMode(
    name="none",
    formula="r",
    source="Luong et al. 2015 (dot); Vaswani et al. 2017, section 3.2.1",
    qk=_unchanged,
    deviation=_deviation(_one),
)
FOLDED = ScaleMode(
    name="folded",
    formula="r, with W_q and its bias initialised × 1/√d_k",
    source="Raffel et al. 2020 (T5), whose optimizer steps in proportion to the weights",
    qk=_unchanged,
    init_gain=_fold,
    deviation=_deviation(_one),
)
INVERSE = ScaleMode(
    name="inverse",
    formula="r / d_k",
    source="Yang et al. 2022, Tensor Programs V",
    qk=_times(_inverse),
    deviation=_deviation(_inverse),
)
MUP = ScaleMode(
    name="mup",
    formula="√d₀ · r / d_k, equal to sqrt at d_k = d₀",
    source="Yang et al. 2022 and the README of its library (W_q starts at zero there, not here)",
    qk=_times(_mup),
    options={"base_d_k": POSITIVE},
    deviation=_deviation(_mup),
)
SQRT_D_MODEL = ScaleMode(
    name="sqrt_d_model",
    formula="r / √d_model: a common bug, √n_heads too small where d_k = d_model / n_heads",
    source="bug reports against public implementations; to see what it does, not to use it",
    qk=_times(_sqrt_d_model),
    needs=("d_model",),
    deviation=_deviation(_sqrt_d_model),
)
NONE_EQUIV = ScaleMode(
    name="none_equiv",
    formula="r, with W_q initialised × 1/√d_k and its optimizer's numbers changed to match sqrt",
    source="derived above: the control that must train exactly as sqrt does",
    qk=_unchanged,
    init_gain=_fold,
    optimizer=_equivalent,
    deviation=_deviation(_one),
)
