"""What the models share: initialisation and the feed-forward network."""

import math

from jaxtyping import Float
from torch import Tensor, nn

from attnscale.attention import attentions
from attnscale.attention.dropout import Dropout

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
    for layer in module.modules():
        if not isinstance(layer, nn.Linear):
            continue
        if init == "xavier":
            nn.init.xavier_uniform_(layer.weight)
        else:
            gain = 2.0 if init == "kaiming" else 1.0
            nn.init.normal_(layer.weight, std=math.sqrt(gain / layer.in_features))
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    for attention in attentions(module).values():
        attention.fold()


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
        hidden: Tensor = self.dropout(self.inner(x).relu())
        result: Tensor = self.outer(hidden)
        return result
