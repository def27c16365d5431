"""Untrained models of both kinds, and what taps show of them: for figures at step zero."""

from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

from attnscale.attention import Attended, tapped
from attnscale.data.toy_translation import ToyTranslation
from attnscale.data.translation import TranslationBatch
from attnscale.data.vocabulary import PADDING
from attnscale.model.autoencoder import AttentionAutoencoder
from attnscale.model.layers import AttentionSettings
from attnscale.model.transformer import Transformer

SEEDS = 16
D_MODEL, HEADS, HIDDEN, LENGTH, SEQUENCES = 48, 3, 64, 8, 32

Shown = tuple[str, Attended, Tensor]
"""(path, what its tap received, which queries are no padding)."""


@cache
def corpus() -> tuple[list[TranslationBatch], dict[str, int]]:
    """Return a batch of the bundled corpus for each seed, and the sizes of its vocabularies."""
    data = ToyTranslation(
        n_train=SEEDS * SEQUENCES,
        n_val=1,
        n_test=1,
        corpus_seed=0,
        source="de",
        target="en",
        test=None,
        tokenizer="split",
        lowercase=False,
        min_frequency=1,
        max_length=50,
        too_long="skip",
        batch_tokens=None,
        batch_sentences=SEQUENCES,
        eval_batch_sentences=1,
        seed=0,
    )
    data.prepare_data()
    data.setup("fit")
    return [batch for block in data.train_dataloader() for batch in block], data.model_arguments()


def autoencoder(settings: AttentionSettings, init: str, d_k: int, seed: int) -> Iterator[Shown]:
    """Show the attention of an autoencoder on Gaussian sequences."""
    torch.manual_seed(seed)
    model = AttentionAutoencoder(
        attention=settings,
        d_model=D_MODEL,
        d_k=d_k,
        d_v=None,
        n_heads=1,
        n_layers=1,
        residual=False,
        norm="none",
        feed_forward=None,
        bias=False,
        dropout=0.0,
        init=init,
    )
    seen: dict[str, Attended] = {}
    with torch.no_grad(), tapped(model, seen.__setitem__):
        model(torch.randn(SEQUENCES, LENGTH, D_MODEL))
    for path, attended in seen.items():
        yield path, attended, torch.ones(SEQUENCES, LENGTH, dtype=torch.bool)


def transformer(
    settings: AttentionSettings, init: str, d_k: int, seed: int, n_layers: int = 1
) -> Iterator[Shown]:
    """Show the attentions of a Transformer on a batch of the bundled corpus."""
    torch.manual_seed(seed)
    batches, sizes = corpus()
    model = Transformer(
        attention=settings,
        **sizes,
        d_model=D_MODEL,
        d_k=d_k,
        d_v=16,
        n_heads=HEADS,
        n_layers=n_layers,
        feed_forward=HIDDEN,
        norm="pre",
        positions="sinusoidal",
        max_length=64,
        tied=False,
        scaled_embeddings=True,
        bias=True,
        dropout=0.0,
        attention_dropout=None,
        init=init,
    )
    source, target = batches[seed].source, batches[seed].target
    assert bool((source == PADDING).any())
    seen: dict[str, Attended] = {}
    with torch.no_grad(), tapped(model, seen.__setitem__):
        model(source, target[:, :-1], PADDING)
    for path, attended in seen.items():
        real = (source if attended.queries == "source" else target[:, 1:]) != PADDING
        yield path, attended, real
