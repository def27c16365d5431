"""Untrained models of both kinds, and what taps show of them: for figures at step zero."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from attnscale.attention import Attended, ScaleFactory, tapped
from attnscale.data.toy_translation import ToyTranslation
from attnscale.data.translation import TranslationBatch
from attnscale.data.vocabulary import PADDING
from tests.support import models

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


def autoencoder(scale: str | ScaleFactory, init: str, d_k: int, seed: int) -> Iterator[Shown]:
    """Show the attention of an autoencoder on Gaussian sequences."""
    torch.manual_seed(seed)
    model = models.autoencoder(scale, d_model=D_MODEL, d_k=d_k, init=init)
    shown: dict[str, Attended] = {}
    with torch.no_grad(), tapped(model, shown.__setitem__):
        model(torch.randn(SEQUENCES, LENGTH, D_MODEL))
    for path, attended in shown.items():
        yield path, attended, torch.ones(SEQUENCES, LENGTH, dtype=torch.bool)


def transformer(
    scale: str | ScaleFactory, init: str, d_k: int, seed: int, n_layers: int = 1
) -> Iterator[Shown]:
    """Show the attentions of a Transformer on a batch of the bundled corpus."""
    torch.manual_seed(seed)
    batches, vocabularies = corpus()
    sizes: dict[str, Any] = {**vocabularies, "n_heads": HEADS, "feed_forward": HIDDEN}
    model = models.transformer(
        scale,
        **sizes,
        d_model=D_MODEL,
        d_k=d_k,
        d_v=16,
        n_layers=n_layers,
        max_length=64,
        init=init,
    )
    source, target = batches[seed].source, batches[seed].target
    assert bool((source == PADDING).any())
    shown: dict[str, Attended] = {}
    with torch.no_grad(), tapped(model, shown.__setitem__):
        model(source, target[:, :-1], PADDING)
    for path, attended in shown.items():
        side = {"source": source, "target": target[:, 1:]}[attended.queries]
        yield path, attended, side != PADDING
