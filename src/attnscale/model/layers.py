"""What the models share: initialisation, residual connections, feed-forward network, embeddings."""

import math
from collections.abc import Callable
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnscale.attention import Dropout, MultiHeadAttention
from attnscale.checks import check_choice, check_min

INITS = ("torch", "xavier", "kaiming", "unit")
NORMS = ("none", "pre", "post")
POSITIONS = ("sinusoidal", "learned")


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
        check_min("model.feed_forward", d_hidden, or_else=", or null for none")
        self.inner = nn.Linear(d_model, d_hidden)
        self.outer = nn.Linear(d_hidden, d_model)
        self.dropout = Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "batch position d_model"]
    ) -> Float[Tensor, "batch position d_model"]:
        """Apply the network to each position."""
        return cast(Tensor, self.outer(self.dropout(self.inner(x).relu())))


class Embedding(nn.Module):
    """Token and position embeddings, added; Vaswani et al. 2017, sections 3.4 and 3.5."""

    def __init__(
        self,
        *,
        size: int,
        d_model: int,
        positions: str,
        max_length: int,
        scaled: bool,
        dropout: float,
    ) -> None:
        """Create the tables.

        Args:
            size: Number of tokens.
            d_model: Size of a vector.
            positions: "sinusoidal" or "learned".
            max_length: Number of positions.
            scaled: Whether token embeddings are multiplied by √d_model.
            dropout: Dropout of the sum.
        """
        super().__init__()
        check_choice("model.positions", positions, POSITIONS)
        self.token = nn.Embedding(size, d_model)
        self.factor = math.sqrt(d_model) if scaled else 1.0
        self.dropout = Dropout(dropout)
        self.max_length = max_length
        if positions == "learned":
            self.position = nn.Parameter(
                torch.empty(max_length, d_model).normal_(std=d_model**-0.5)
            )
        else:
            self.register_buffer("position", sinusoids(max_length, d_model), persistent=False)

    def forward(
        self, tokens: Int[Tensor, "batch position"], first: int = 0
    ) -> Float[Tensor, "batch position d_model"]:
        """Embed tokens that stand at positions ``first``, ``first`` + 1 and so on.

        Raises:
            ValueError: If a sentence is longer than the table of positions.
        """
        end = first + tokens.shape[1]
        if end > self.max_length:
            raise ValueError(
                f"model.max_length={self.max_length}: a sentence of {end} tokens is too long; "
                "raise it, or lower data.max_length"
            )
        vectors = self.token(tokens) * self.factor + self.position[first:end]
        return cast(Tensor, self.dropout(vectors))


def sinusoids(length: int, d_model: int) -> Float[Tensor, "length d_model"]:
    """Return sin(t / 10000^(2i/d)), cos(…) alternating; Vaswani et al. 2017, section 3.5."""
    position = torch.arange(length, dtype=torch.float64)[:, None]
    rate = torch.exp(
        -math.log(10000.0) * torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
    )
    table = torch.zeros(length, d_model, dtype=torch.float64)
    table[:, 0::2] = (position * rate).sin()
    table[:, 1::2] = (position * rate).cos()[:, : d_model // 2]
    return table.float()
