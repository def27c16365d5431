"""Modes that multiply the score by a number, fixed before training or learned.

    logit = c · r,   c = 1/√d_k (sqrt), 1 (none, folded, none_equiv), 1/d_k (inverse),
                     √d₀/d_k (mup), 1/√d_model (sqrt_d_model), or any positive number;
                     exp(τ), τ starts at −½ ln d_k (learned, learned_shared)

Sources: Vaswani et al. 2017, section 3.2.1 (``sqrt``, and the unscaled comparison); Raffel et al.
2020, T5 (``folded``: 1/√d_k goes into the initial W_q); Yang et al. 2022, "Tensor Programs V", and
the README of its library (``mup``: equal to ``sqrt`` at the base size d₀; that library also starts
W_q at zero, here the initialisation stays the model's); Lee et al. 2021, "Vision Transformer for
Small-Size Datasets", section 3.2, where τ is one number per layer (``learned_shared``); that paper
also hides the diagonal, which is a mask and not part of the mode. ``learned`` has one τ per head.
What is learned multiplies the logits: a temperature would divide them.

``none_equiv`` proves that the factor is a reparametrisation. With c = 1/√d_k and W_q' = c W_q the
model is that of ``sqrt``, and ∂L/∂W_q' = (1/c) ∂L/∂W_q. Adam's step does not depend on the size of
the gradient, so its learning rate must be multiplied by c and its ε by 1/c; decay that is decoupled
(AdamW) by 1/c, as it is multiplied by the learning rate; decay that is added to the gradient by
1/c², for g/c + w c W must be proportional to g + decay W. SGD's step is proportional to the
gradient, so its learning rate must be multiplied by c².
"""

import math

import torch
from torch import Tensor, nn

from attnscale.attention.scale.base import (
    Moments,
    OptimizerFactors,
    Scale,
    mean_of,
    per_head,
    positive,
)


class FixedScale(Scale):
    """Multiplies the score by a number that depends on sizes only."""

    def factor(self, d_k: int) -> float:
        """Return c for queries and keys of size d_k."""
        raise NotImplementedError

    def qk(self, q: Tensor, k: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Multiply q by c."""
        return q * self.factor(q.shape[-1]), k

    def predicted_std(self, moments: Moments) -> float:
        """Return c times that of the scores."""
        return self.factor(moments.d_k) * moments.score_std


class Sqrt(FixedScale):
    """The usual scale."""

    formula = "r / √d_k"
    source = "Vaswani et al. 2017, section 3.2.1"

    def factor(self, d_k: int) -> float:
        """Return 1/√d_k."""
        return float(d_k**-0.5)


class Unscaled(Scale):
    """No scale."""

    formula = "r"
    source = "Luong et al. 2015 (dot); Vaswani et al. 2017, section 3.2.1"

    def predicted_std(self, moments: Moments) -> float:
        """Return that of the scores."""
        return moments.score_std


class Folded(Unscaled):
    """The usual scale, in the initial W_q instead of the forward pass."""

    formula = "r, with W_q and its bias initialised × 1/√d_k"
    source = "Raffel et al. 2020 (T5), whose optimizer steps in proportion to the weights"

    def init_gain(self, d_k: int) -> float:
        """Return 1/√d_k."""
        return float(d_k**-0.5)


class NoneEquivalent(Folded):
    """The control: no scale in the forward pass, and yet the training curve of ``sqrt``."""

    formula = "r, with W_q initialised × 1/√d_k and its optimizer's numbers changed to match sqrt"
    source = (
        "derived in docs/theory.md, section 5: trains as sqrt in exact arithmetic, without "
        "clipping by norm"
    )

    def optimizer_factors(self, d_k: int, kind: str) -> OptimizerFactors:
        """Return the factors that the module's docstring derives."""
        c = d_k**-0.5
        if kind == "adamw":
            return OptimizerFactors(lr=c, eps=1 / c, weight_decay=1 / c)
        if kind == "adam":
            return OptimizerFactors(lr=c, eps=1 / c, weight_decay=1 / c**2)
        if kind == "sgd":
            return OptimizerFactors(lr=c**2, eps=1.0, weight_decay=1 / c**2)
        raise ValueError(
            f"attention.scale=none_equiv: knows no factors for the optimizer {kind!r}; "
            "allowed are adam, adamw and sgd"
        )


class Inverse(FixedScale):
    """The scale of maximal update parametrisation, for q and k that align."""

    formula = "r / d_k"
    source = "Yang et al. 2022, Tensor Programs V"

    def factor(self, d_k: int) -> float:
        """Return 1/d_k."""
        return 1.0 / d_k


class MuP(FixedScale):
    """``inverse``, set to equal ``sqrt`` at a base size."""

    formula = "√d₀ · r / d_k, equal to sqrt at d_k = d₀"
    source = "Yang et al. 2022 and the README of its library (W_q starts at zero there, not here)"

    def __init__(self, *, base_d_k: float = 64.0) -> None:
        """Set d₀, where ``mup`` equals ``sqrt``."""
        super().__init__()
        self.base_d_k = positive("base_d_k", base_d_k)

    def factor(self, d_k: int) -> float:
        """Return √d₀/d_k."""
        return float(self.base_d_k**0.5 / d_k)


class SqrtDModel(FixedScale):
    """A common bug: the size of the model in place of the size of a head."""

    formula = "r / √d_model: a common bug, √n_heads too small where d_k = d_model / n_heads"
    source = "bug reports against public implementations; to see what it does, not to use it"

    def __init__(self, *, d_model: int) -> None:
        """Set the size of the attention's input."""
        super().__init__()
        self.d_model = d_model

    def factor(self, d_k: int) -> float:
        """Return 1/√d_model."""
        return float(float(self.d_model) ** -0.5)


class Constant(FixedScale):
    """Any positive number."""

    formula = "c · r"
    source = "a number of one's own"

    def __init__(self, *, factor: float) -> None:
        """Set c."""
        super().__init__()
        self.constant = positive("factor", factor)

    def factor(self, d_k: int) -> float:
        """Return c."""
        return self.constant


class Learned(Scale):
    """One learned scale per head."""

    formula = "exp(τ_head) · r, τ starts at −½ ln d_k"
    source = "Lee et al. 2021, section 3.2 (one per layer there)"

    def __init__(self, *, n_heads: int, d_k: int) -> None:
        """Start at ``sqrt``."""
        super().__init__()
        self.log_scale = nn.Parameter(torch.full((n_heads,), -0.5 * math.log(d_k)))

    def learned_scale(self) -> Tensor:
        """Return exp(τ)."""
        return self.log_scale.exp()

    def qk(self, q: Tensor, k: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Multiply q by exp(τ)."""
        return q * per_head(self.learned_scale()).to(q.dtype), k

    def predicted_std(self, moments: Moments) -> float:
        """Return the mean of exp(τ) times that of the scores."""
        return mean_of(self.learned_scale()) * moments.score_std


class LearnedShared(Learned):
    """One learned scale for all heads of an attention."""

    formula = "exp(τ) · r, one τ per attention, starts at −½ ln d_k"
    source = "Lee et al. 2021, section 3.2 (which also hides the diagonal)"

    def __init__(self, *, d_k: int) -> None:
        """Start at ``sqrt``."""
        super().__init__(n_heads=1, d_k=d_k)
