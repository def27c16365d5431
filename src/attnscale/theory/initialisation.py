"""What the untrained models of this project really do, beside what is predicted.

The spread of the logits in each attention of the autoencoder and the Transformer, on Gaussian
sequences and on sentences of the bundled grammar, over several seeds.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from attnscale.analysis.estimate import Estimate
from attnscale.attention import Attended, AttentionMaker, MultiHeadAttention, choose_scale, tapped
from attnscale.attention.stats import logit_std, predicted_std
from attnscale.data.toy_translation import draw_pairs
from attnscale.model.autoencoder import AttentionAutoencoder
from attnscale.model.layers import INITS
from attnscale.model.transformer import Transformer
from attnscale.theory.draws import mean_of, seeded

PADDING = 0
VOCABULARY = 200
BATCH = 16


@dataclass(frozen=True, kw_only=True)
class InitialStd:
    """The spread of the logits in one attention of one untrained model.

    Attributes:
        model: Which model, with its norm.
        attention: Path of the attention.
        init: How the weights were drawn.
        value: Standard deviation of the logits within rows, over seeds.
        predicted: Mean of the prediction from the same batches.
    """

    model: str
    attention: str
    init: str
    value: Estimate
    predicted: float


def autoencoder(
    attention: AttentionMaker,
    init: str,
    norm: str,
    d_k: int,
    *,
    d_model: int = 64,
    n_layers: int = 3,
) -> nn.Module:
    """Return an untrained autoencoder of two heads, with residuals where it has norms."""
    return AttentionAutoencoder(
        attention=attention,
        d_model=d_model,
        d_k=d_k,
        d_v=d_model // 2,
        n_heads=2,
        n_layers=n_layers,
        residual=norm != "none",
        norm=norm,
        feed_forward=None,
        bias=False,
        dropout=0.0,
        init=init,
    )


def _transformer(attention: AttentionMaker, init: str, norm: str, d_k: int) -> nn.Module:
    return Transformer(
        attention=attention,
        source_size=VOCABULARY,
        target_size=VOCABULARY,
        d_model=64,
        d_k=d_k,
        d_v=32,
        n_heads=2,
        n_layers=2,
        feed_forward=128,
        norm=norm,
        positions="sinusoidal",
        max_length=64,
        tied=False,
        scaled_embeddings=True,
        bias=True,
        dropout=0.0,
        attention_dropout=None,
        init=init,
    )


def _numbers(texts: list[str]) -> Tensor:
    """Number the words of sentences as they come; 0 is padding."""
    known: dict[str, int] = {}
    rows = [
        [1 + known.setdefault(word, len(known)) % (VOCABULARY - 1) for word in text.split()]
        for text in texts
    ]
    return pad_sequence(list(map(torch.tensor, rows)), batch_first=True, padding_value=PADDING)


def _batches(count: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Return batches of sixteen sentences of the grammar, source and target."""
    sides = zip(*draw_pairs(BATCH * count, seed), strict=True)
    sources, targets = (_numbers(list(side)).chunk(count) for side in sides)
    return list(zip(sources, targets, strict=True))


def _observe(model: nn.Module, batch: tuple[Tensor, ...]) -> Iterator[tuple[str, float, float]]:
    taps: list[tuple[str, Attended]] = []
    with torch.no_grad(), tapped(model, lambda path, attended: taps.append((path, attended))):
        model(*batch, *([PADDING] if len(batch) > 1 else []))
    for path, attended in taps:
        real = None
        if len(batch) > 1:
            side = batch[("source", "target").index(attended.queries)]
            real = side != PADDING
        yield path, logit_std(attended, real), predicted_std(attended, real)


def mode_std(scale: str, options: Mapping[str, float], *, seeds: int, seed: int) -> Estimate:
    """Measure a mode in the encoder's first self-attention of the pre-norm Transformer.

    Args:
        scale: Any scale mode.
        options: Its options.
        seeds: Models, at least 2.
        seed: The first of them.
    """
    batches = _batches(seeds, seed)
    lengths = torch.cat([(source != PADDING).sum(dim=-1) for source, _ in batches]).double()
    statistics = {"length_p97_5": float(lengths.quantile(0.975))}
    attention = partial(MultiHeadAttention, scale=choose_scale(scale, options, statistics))
    stds = []
    for number, batch in enumerate(batches):
        with seeded(seed + number):
            model = _transformer(attention, "torch", "pre", 64)
        path, std, _ = next(_observe(model, batch))
        assert path == "encoder.0.self"
        stds.append(std)
    return mean_of(torch.tensor(stds, dtype=torch.float64))


def initial_stds(*, scale: str = "sqrt", d_k: int = 64, seeds: int, seed: int) -> list[InitialStd]:
    """Measure both models under each initialisation, with LayerNorm and, where it can be, without.

    Args:
        scale: The scale mode; one without options.
        d_k: Size of a query or key.
        seeds: Models per case, at least 2.
        seed: The first of them.
    """
    builders = (
        ("autoencoder, no norm", autoencoder, "none"),
        ("autoencoder, pre-norm", autoencoder, "pre"),
        ("Transformer, pre-norm", _transformer, "pre"),
        ("Transformer, post-norm", _transformer, "post"),
    )
    sentences = _batches(seeds, seed)
    cases = []
    for name, build, norm in builders:
        for init in INITS:
            values: dict[str, list[tuple[float, float]]] = {}
            for number, pair in enumerate(sentences):
                with seeded(seed + number):
                    model = build(partial(MultiHeadAttention, scale=scale), init, norm, d_k)
                    vectors = torch.randn(BATCH, 8, 64)
                batch = pair if build is _transformer else (vectors,)
                for path, std, predicted in _observe(model, batch):
                    values.setdefault(path, []).append((std, predicted))
            for path, pairs in values.items():
                both = torch.tensor(pairs, dtype=torch.float64)
                cases.append(
                    InitialStd(
                        model=name,
                        attention=path,
                        init=init,
                        value=mean_of(both[:, 0]),
                        predicted=float(both[:, 1].mean()),
                    )
                )
    return cases
