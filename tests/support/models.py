"""Models of both kinds, small: a test says only what it changes."""

from functools import partial
from typing import Any

from attnscale.attention import MultiHeadAttention, Scale, ScaleFactory, choose_scale
from attnscale.model.autoencoder import AttentionAutoencoder
from attnscale.model.transformer import Transformer
from tests.support.modes import STATISTICS

AnyScale = str | float | ScaleFactory | Scale


def _attention(scale: AnyScale, backend: str) -> "partial[MultiHeadAttention]":
    if isinstance(scale, str | float):
        # A cap that logits reach.
        options = {"cap": 2.0} if scale == "softcap" else None
        scale = choose_scale(scale, options, STATISTICS)
    return partial(MultiHeadAttention, scale=scale, backend=backend)


def autoencoder(
    scale: AnyScale = "sqrt", *, backend: str = "auto", **changed: Any
) -> AttentionAutoencoder:
    """Return the textbook experiment: one layer of one head, and nothing else."""
    arguments: dict[str, Any] = {
        "d_model": 17,
        "d_k": 11,
        "d_v": None,
        "n_heads": 1,
        "n_layers": 1,
        "residual": False,
        "norm": "none",
        "feed_forward": None,
        "bias": False,
        "dropout": 0.0,
        "init": "torch",
    }
    return AttentionAutoencoder(attention=_attention(scale, backend), **arguments | changed)


def transformer(scale: AnyScale = "sqrt", *, backend: str = "auto", **changed: Any) -> Transformer:
    """Return a Transformer whose sizes all differ, so that no axis can be taken for another."""
    arguments: dict[str, Any] = {
        "source_size": 23,
        "target_size": 29,
        "d_model": 13,
        "d_k": 5,
        "d_v": 17,
        "n_heads": 3,
        "n_layers": 2,
        "feed_forward": 19,
        "norm": "pre",
        "positions": "sinusoidal",
        "max_length": 31,
        "tied": False,
        "scaled_embeddings": True,
        "bias": True,
        "dropout": 0.0,
        "attention_dropout": None,
        "init": "torch",
    }
    return Transformer(attention=_attention(scale, backend), **arguments | changed)
