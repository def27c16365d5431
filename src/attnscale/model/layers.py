"""What the models share: initialisation, residual connections and the feed-forward network."""

import math
from collections.abc import Callable
from typing import cast

from jaxtyping import Float
from torch import Tensor, nn

from attnscale.attention import Dropout, MultiHeadAttention

INITS = ("torch", "xavier", "kaiming", "unit")
NORMS = ("none", "pre", "post")


def check_choice(key: str, value: str, allowed: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of ``allowed``.

    Raises:
        ValueError: Naming the config key, the value and what is allowed.
    """
    if value not in allowed:
        raise ValueError(f"{key}={value}: allowed are {', '.join(allowed)}")
    return value


def initialise(module: nn.Module, init: str) -> None:
    """Initialise every Linear layer of a module in place, biases to zero unless ``torch``.

    With fan_in inputs and fan_out outputs, the variance of a weight is

        torch    1 / (3 fan_in)            PyTorch's default: uniform within ±1/√fan_in
        xavier   2 / (fan_in + fan_out)    uniform; Glorot & Bengio 2010
        kaiming  2 / fan_in                normal; He et al. 2015
        unit     1 / fan_in                normal: unit-variance input gives unit-variance output

    A scale mode's gain of W_q comes on top.

    Raises:
        ValueError: If ``init`` is none of these.
    """
    check_choice("model.init", init, INITS)
    if init == "torch":
        return  # as constructed, with the gain

    def draw(layer: nn.Linear) -> None:
        if init == "xavier":
            nn.init.xavier_uniform_(layer.weight)
        else:
            gain = 2.0 if init == "kaiming" else 1.0
            nn.init.normal_(layer.weight, std=math.sqrt(gain / layer.in_features))
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)

    projections: set[nn.Module] = set()
    for layer in module.modules():
        if isinstance(layer, MultiHeadAttention):
            layer.reset_parameters(draw)
            projections.update(layer.children())
        elif isinstance(layer, nn.Linear) and layer not in projections:
            draw(layer)


class Residual(nn.Module):
    """Residual connection, dropout and LayerNorm around a sublayer."""

    def __init__(
        self, d_model: int, *, norm: str, dropout: float = 0.0, residual: bool = True
    ) -> None:
        """Create the LayerNorm: "none", "pre" (before the sublayer) or "post" (after it)."""
        super().__init__()
        if norm != "none":
            self.norm = nn.LayerNorm(d_model)
        self.dropout = Dropout(dropout)
        self.pre, self.post, self.residual = norm == "pre", norm == "post", residual

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply a sublayer."""
        update = self.dropout(sublayer(self.norm(x) if self.pre else x))
        x = x + update if self.residual else update
        return cast(Tensor, self.norm(x)) if self.post else x


class FeedForward(nn.Module):
    """Position-wise feed-forward network, Vaswani et al. 2017, section 3.3: W_2 relu(W_1 x)."""

    def __init__(self, *, d_model: int, d_hidden: int, dropout: float = 0.0) -> None:
        """Create the two layers.

        Raises:
            ValueError: If ``d_hidden`` is below 1.
        """
        super().__init__()
        if d_hidden < 1:
            raise ValueError(f"model.feed_forward={d_hidden}: must be at least 1, or null for none")
        self.inner = nn.Linear(d_model, d_hidden)
        self.outer = nn.Linear(d_hidden, d_model)
        self.dropout = Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "batch position d_model"]
    ) -> Float[Tensor, "batch position d_model"]:
        """Apply the network to each position."""
        return cast(Tensor, self.outer(self.dropout(self.inner(x).relu())))
