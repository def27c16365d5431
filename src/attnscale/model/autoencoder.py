"""The attention autoencoder: self-attention that reconstructs its own input.

    x̂ = softmax(x W_q (x W_k)ᵀ · scale) x W_v W_o

With one layer, no residual and no norm this is the experiment of many tutorials on the scale of
attention. Options add layers, residual connections, LayerNorm before or after each sublayer, and a
feed-forward network.
"""

from typing import cast

from jaxtyping import Float
from torch import Tensor, nn

from attnscale.attention import AttentionMaker, MultiHeadAttention
from attnscale.checks import check_choice, check_min
from attnscale.model.layers import NORMS, FeedForward, Residual, initialise


class AutoencoderLayer(nn.Module):
    """Self-attention and, if asked for, a feed-forward network."""

    def __init__(
        self,
        *,
        attention: MultiHeadAttention,
        feed_forward: FeedForward | None,
        residual: bool,
        norm: str,
    ) -> None:
        """Put the sublayers together."""
        super().__init__()
        self.attention = attention
        self.feed_forward = feed_forward
        self.attention_residual = Residual(attention.d_model, norm=norm, residual=residual)
        if feed_forward is not None:
            self.feed_forward_residual = Residual(attention.d_model, norm=norm, residual=residual)

    def forward(
        self, x: Float[Tensor, "batch position d_model"]
    ) -> Float[Tensor, "batch position d_model"]:
        """Apply attention, then the feed-forward network."""
        x = self.attention_residual(x, self.attention)
        if self.feed_forward is None:
            return x
        return cast(Tensor, self.feed_forward_residual(x, self.feed_forward))


class AttentionAutoencoder(nn.Module):
    """A stack of attention layers that maps a sequence to its reconstruction."""

    def __init__(
        self,
        *,
        attention: AttentionMaker,
        d_model: int,
        d_k: int,
        d_v: int | None,
        n_heads: int,
        n_layers: int,
        residual: bool,
        norm: str,
        feed_forward: int | None,
        bias: bool,
        dropout: float,
        init: str,
    ) -> None:
        """Build and initialise the layers.

        Args:
            attention: Makes the attentions, with the scale and backend of the run.
            d_model: Size of the vectors that are reconstructed.
            d_k: Size of a query or key, per head.
            d_v: Size of a value, per head; None means d_k.
            n_heads: Number of heads.
            n_layers: Number of layers.
            residual: Whether each sublayer adds to its input.
            norm: "none", "pre" (LayerNorm before each sublayer) or "post" (after it).
            feed_forward: Hidden size of the feed-forward network, or None for no such network.
            bias: Whether the attention's projections have biases.
            dropout: Dropout of attention weights and of the feed-forward network's hidden layer.
            init: "torch", "xavier", "kaiming" or "unit", see
                :func:`attnscale.model.layers.initialise`.

        Raises:
            ValueError: If a size or a choice is not allowed.
        """
        super().__init__()
        check_choice("model.norm", norm, NORMS)
        check_min("model.n_layers", n_layers)
        self.layers = nn.ModuleList(
            AutoencoderLayer(
                attention=attention(
                    d_model=d_model,
                    n_heads=n_heads,
                    d_k=d_k,
                    d_v=d_k if d_v is None else d_v,
                    bias=bias,
                    dropout=dropout,
                ),
                feed_forward=None
                if feed_forward is None
                else FeedForward(d_model=d_model, d_hidden=feed_forward, dropout=dropout),
                residual=residual,
                norm=norm,
            )
            for _ in range(n_layers)
        )
        initialise(self, init)

    def forward(
        self, x: Float[Tensor, "batch position d_model"]
    ) -> Float[Tensor, "batch position d_model"]:
        """Reconstruct ``x``."""
        for layer in self.layers:
            x = layer(x)
        return x
