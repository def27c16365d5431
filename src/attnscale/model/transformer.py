"""The encoder–decoder Transformer, Vaswani et al. 2017, section 3.

Differences from the paper are options: LayerNorm before each sublayer (``pre``, then one more at
the end of each stack) instead of after it, learned positions, the scale of attention, d_k and d_v
free of d_model / n_heads, no tied embeddings unless asked for.
"""

from functools import partial
from typing import cast

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnscale.attention import AttentionMaker, KeyValueCache
from attnscale.checks import check_choice, check_min
from attnscale.model.layers import Embedding, FeedForward, Residual, initialise

STACK_NORMS = ("pre", "post")


class TransformerLayer(nn.Module):
    """A layer of the encoder, or of the decoder."""

    def __init__(
        self,
        *,
        attention: AttentionMaker,
        d_model: int,
        feed_forward: int,
        norm: str,
        dropout: float,
        decoder: bool,
    ) -> None:
        """Create the sublayers; ``attention`` lacks but the sides of queries and keys."""
        super().__init__()
        self.decoder = decoder

        def residual() -> Residual:
            return Residual(d_model, norm=norm, dropout=dropout)

        # Named "self" and "cross", so that a metric reads attention/encoder.0.self/...
        side = "target" if decoder else "source"
        self.add_module("self", attention(queries=side, keys=side))
        self.self_residual = residual()
        if decoder:
            self.cross = attention(queries="target", keys="source")
            self.cross_residual = residual()
        self.feed_forward = FeedForward(d_model=d_model, d_hidden=feed_forward, dropout=dropout)
        self.feed_forward_residual = residual()

    def forward(
        self,
        x: Float[Tensor, "batch position d_model"],
        *,
        keep: Bool[Tensor, "..."] | None = None,
        memory: Float[Tensor, "batch source d_model"] | None = None,
        memory_keep: Bool[Tensor, "batch 1 1 source"] | None = None,
        caches: tuple[KeyValueCache, KeyValueCache] | None = None,
    ) -> Float[Tensor, "batch position d_model"]:
        """Apply the sublayers; ``caches`` are those of self- and cross-attention."""
        cache, cross_cache = caches or (None, None)
        attention = self.get_submodule("self")
        x = self.self_residual(
            x, lambda inner: attention(inner, keep=keep, causal=self.decoder, cache=cache)
        )
        if self.decoder:
            x = self.cross_residual(
                x, lambda inner: self.cross(inner, memory, keep=memory_keep, cache=cross_cache)
            )
        return cast(Tensor, self.feed_forward_residual(x, self.feed_forward))


class Transformer(nn.Module):
    """An encoder–decoder Transformer for translation."""

    def __init__(
        self,
        *,
        attention: AttentionMaker,
        source_size: int,
        target_size: int,
        d_model: int,
        d_k: int,
        d_v: int | None,
        n_heads: int,
        n_layers: int,
        feed_forward: int,
        norm: str,
        positions: str,
        max_length: int,
        tied: bool,
        scaled_embeddings: bool,
        bias: bool,
        dropout: float,
        attention_dropout: float | None,
        init: str,
    ) -> None:
        """Build and initialise the model.

        Args:
            attention: Makes the attentions, with the scale and backend of the run.
            source_size: Tokens of the source vocabulary.
            target_size: Tokens of the target vocabulary.
            d_model: Size of a position's vector.
            d_k: Size of a query or key, per head.
            d_v: Size of a value, per head; None means d_k.
            n_heads: Number of heads.
            n_layers: Layers of the encoder, and of the decoder.
            feed_forward: Hidden size of the feed-forward networks.
            norm: "pre" or "post".
            positions: "sinusoidal" or "learned".
            max_length: Number of positions; longer sentences are an error.
            tied: Whether the output layer is the target embedding.
            scaled_embeddings: Whether embeddings are multiplied by √d_model.
            bias: Whether the attentions' projections have biases.
            dropout: Dropout of embeddings, sublayers and feed-forward networks.
            attention_dropout: Dropout of attention weights; None means ``dropout``.
            init: "torch", "xavier", "kaiming" or "unit"; "xavier" is used for embeddings too.

        Raises:
            ValueError: If a size or a choice is not allowed.
        """
        super().__init__()
        check_choice("model.norm", norm, STACK_NORMS)
        check_min("model.n_layers", n_layers)
        check_min("model.d_model", d_model)
        embedding = partial(
            Embedding,
            d_model=d_model,
            positions=positions,
            max_length=max_length,
            scaled=scaled_embeddings,
            dropout=dropout,
        )
        layer = partial(
            TransformerLayer,
            attention=partial(
                attention,
                d_model=d_model,
                n_heads=n_heads,
                d_k=d_k,
                d_v=d_k if d_v is None else d_v,
                bias=bias,
                dropout=dropout if attention_dropout is None else attention_dropout,
            ),
            d_model=d_model,
            feed_forward=feed_forward,
            norm=norm,
            dropout=dropout,
        )
        self.source_embedding = embedding(size=source_size)
        self.target_embedding = embedding(size=target_size)
        self.encoder = nn.ModuleList(layer(decoder=False) for _ in range(n_layers))
        self.decoder = nn.ModuleList(layer(decoder=True) for _ in range(n_layers))
        pre = norm == "pre"
        self.encoder_norm = nn.LayerNorm(d_model) if pre else nn.Identity()
        self.decoder_norm = nn.LayerNorm(d_model) if pre else nn.Identity()
        self.output = nn.Linear(d_model, target_size)
        initialise(self, init)
        for table in (self.source_embedding, self.target_embedding):
            if init == "xavier":
                nn.init.xavier_uniform_(table.token.weight)
                if positions == "learned":
                    nn.init.xavier_uniform_(table.position)
            else:
                nn.init.normal_(table.token.weight, std=d_model**-0.5)
        if tied:
            self.output.weight = self.target_embedding.token.weight

    def encode(
        self, source: Int[Tensor, "batch source"], keep: Bool[Tensor, "batch 1 1 source"]
    ) -> Float[Tensor, "batch source d_model"]:
        """Encode source tokens; ``keep`` is False on padding."""
        x = self.source_embedding(source)
        for layer in self.encoder:
            x = layer(x, keep=keep)
        return cast(Tensor, self.encoder_norm(x))

    def decode(
        self,
        target: Int[Tensor, "batch target"],
        memory: Float[Tensor, "batch source d_model"],
        memory_keep: Bool[Tensor, "batch 1 1 source"],
        *,
        caches: list[tuple[KeyValueCache, KeyValueCache]] | None = None,
        first: int = 0,
    ) -> Float[Tensor, "batch target d_model"]:
        """Return what the output layer reads at each target position.

        The target's padding is at its end: the causal mask hides it from all real positions.

        Args:
            target: Target tokens so far; with ``caches``, the new ones only.
            memory: What :meth:`encode` returned.
            memory_keep: False on the source's padding.
            caches: From :meth:`new_caches`, for decoding step by step.
            first: Position of the first of ``target``.
        """
        x = self.target_embedding(target, first)
        for number, layer in enumerate(self.decoder):
            x = layer(
                x,
                memory=memory,
                memory_keep=memory_keep,
                caches=None if caches is None else caches[number],
            )
        return cast(Tensor, self.decoder_norm(x))

    def new_caches(self) -> list[tuple[KeyValueCache, KeyValueCache]]:
        """Return empty caches for decoding step by step."""
        return [(KeyValueCache(), KeyValueCache()) for _ in self.decoder]

    def forward(
        self, source: Int[Tensor, "batch source"], target: Int[Tensor, "batch target"], padding: int
    ) -> Float[Tensor, "batch target d_model"]:
        """Return what the output layer reads at each target position; ``padding`` is that token."""
        keep = (source != padding)[:, None, None, :]
        return self.decode(target, self.encode(source, keep), keep)
