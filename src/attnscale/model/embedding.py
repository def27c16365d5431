"""Token and position embeddings; Vaswani et al. 2017, sections 3.4 and 3.5."""

import math
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnscale.attention import Dropout
from attnscale.model.layers import check_choice

POSITIONS = ("sinusoidal", "learned")


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
