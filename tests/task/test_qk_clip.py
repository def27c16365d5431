"""QK-Clip: which weights shrink, by how much, and what that does to the logits."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor

from attnscale.attention import Attended, MultiHeadAttention, choose_scale, tapped
from attnscale.data.translation import TranslationBatch
from attnscale.data.vocabulary import BEGIN, END, PADDING
from attnscale.task.qk_clip import QKClip
from tests.support.models import autoencoder, transformer
from tests.task.toy import translation

BATCH, HEADS, POSITION, D_K, D_V, D_MODEL = 2, 3, 7, 11, 5, 13
LINEAR = ("sqrt", "none", "inverse", 0.37, "mup", "learned", "log_n", "ssmax")


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def build(scale: str | float = "none", options: dict[str, float] | None = None) -> Any:
    """Return attention whose heads have small, middling and large logits, with biases."""
    made = MultiHeadAttention(
        d_model=D_MODEL,
        n_heads=HEADS,
        d_k=D_K,
        d_v=D_V,
        scale=choose_scale(scale, options),
        bias=True,
    )
    with torch.no_grad():
        for layer in (made.q, made.k):
            for parameter in layer.parameters():
                parameter.copy_(torch.randn_like(parameter))
                parameter.view(HEADS, -1).mul_(torch.tensor([[0.1], [0.5], [1.0]]))
    return made


def largest(attention: MultiHeadAttention, x: Tensor, keep: Tensor | None = None) -> Tensor:
    """Return the largest kept logit of each head, from the weights alone."""
    seen: list[Tensor] = []
    attention.tap = lambda attended: seen.append(attended.logits())
    attention(x, keep=keep)
    attention.tap = None
    logits = seen[0] if keep is None else seen[0].masked_fill(~keep, -torch.inf)
    return logits.amax(dim=(0, 2, 3))


def clipped(
    attention: MultiHeadAttention,
    *batches: Tensor,
    threshold: float,
    alpha: float = 0.5,
    keep: Tensor | None = None,
) -> Tensor:
    """Watch some batches, clip, and return η."""
    clip = QKClip(attention, threshold=threshold, alpha=alpha)
    with tapped(attention, clip.watch):
        for x in batches:
            attention(x, keep=keep)
    return clip.clip()[""]


def heads(parameter: Tensor) -> Tensor:
    """(head · d_k, …) -> (head, d_k · …)."""
    return parameter.detach().view(HEADS, -1)


def draw() -> Tensor:
    return torch.randn(BATCH, POSITION, D_MODEL)


def test_below_the_threshold_nothing_changes() -> None:
    attention, x = build(), draw()
    before = copy.deepcopy(attention.state_dict())
    shrink = clipped(attention, x, threshold=float(largest(attention, x).max()) + 1e-9)
    assert torch.equal(shrink, torch.ones(HEADS))
    assert all(torch.equal(v, before[k]) for k, v in attention.state_dict().items())


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("scale", LINEAR)
def test_the_same_batch_reaches_the_threshold_exactly(scale: str | float, alpha: float) -> None:
    attention, x = build(scale), draw()
    before = largest(attention, x)
    assert bool((before > 0).all())
    threshold = float(before.sort().values[:2].mean())
    shrink = clipped(attention, x, threshold=threshold, alpha=alpha)
    torch.testing.assert_close(shrink, (threshold / before).clamp(max=1.0))
    torch.testing.assert_close(largest(attention, x), before.clamp(max=threshold))


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_only_heads_above_shrink_and_in_the_given_shares(alpha: float) -> None:
    attention, x = build(), draw()
    old = copy.deepcopy(attention)
    before = largest(attention, x)
    threshold = float(before.sort().values[1:].mean())
    shrink = clipped(attention, x, threshold=threshold, alpha=alpha)
    touched = before > threshold
    assert touched.tolist() == [False, False, True]
    for name, share in (("q", alpha), ("k", 1.0 - alpha)):
        for made, was in zip(
            getattr(attention, name).parameters(), getattr(old, name).parameters(), strict=True
        ):
            wanted = heads(was) * (shrink**share)[:, None]
            torch.testing.assert_close(heads(made), wanted)
            untouched = torch.ones_like(touched) if share == 0 else ~touched
            assert torch.equal(heads(made)[untouched], heads(was)[untouched])
            assert (share == 0) or not torch.equal(heads(made)[touched], heads(was)[touched])
    for name in ("v", "o"):
        for made, was in zip(
            getattr(attention, name).parameters(), getattr(old, name).parameters(), strict=True
        ):
            assert torch.equal(made, was)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_largest_of_several_batches_counts(order: tuple[int, ...]) -> None:
    attention = build()
    batches = [0.5 * draw(), draw(), 2 * draw()]
    every = torch.stack([largest(attention, x) for x in batches]).amax(dim=0)
    shrink = clipped(attention, *(batches[i] for i in order), threshold=1.0)
    torch.testing.assert_close(shrink, (1.0 / every).clamp(max=1.0))
    assert float(shrink.max()) < 1


def test_a_step_does_not_remember_the_one_before() -> None:
    attention, x = build(), draw()
    clip = QKClip(attention, threshold=1.0, alpha=0.5)
    for factor in (3.0, 1e-3):
        with tapped(attention, clip.watch):
            attention(factor * x)
        shrink = clip.clip()[""]
    assert torch.equal(shrink, torch.ones(HEADS))
    assert clip.clip() == {}


def test_hidden_keys_do_not_count() -> None:
    attention, x = build(), draw()
    attention.q.bias.data.abs_()
    x[:, 4:] *= 1e3
    keep = (torch.arange(POSITION) < 4)[None, None, None, :].expand(BATCH, 1, 1, -1)
    real = (x[:, :4], keep[..., :4])
    # The hidden keys' logits would be far larger; only real queries, to know the answer.
    seen: list[Tensor] = []
    clip = QKClip(attention, threshold=1.0, alpha=0.5)
    with tapped(attention, clip.watch), tapped(attention, lambda _, a: seen.append(a.logits())):
        attention(x[:, :4], x, keep=keep)
    assert float(seen[0][..., 4:].max()) > 10 * float(seen[0][..., :4].max())
    shrink = clip.clip()[""]
    before = seen[0][..., :4].amax(dim=(0, 2, 3))
    torch.testing.assert_close(shrink, (1.0 / before).clamp(max=1.0))
    torch.testing.assert_close(largest(attention, *real), before.clamp(max=1.0))


def test_padded_queries_do_not_count() -> None:
    model = transformer("none", norm="post")
    task = translation(model)
    source = torch.tensor([[5, 6, 7, 8, END], [9, END, *[PADDING] * 3]])
    target = torch.tensor([[BEGIN, 5, 6, 7, END], [BEGIN, 8, END, *[PADDING] * 2]])
    batch = TranslationBatch(source, target, torch.arange(2), loss_weight=1.0)
    maxima: list[Tensor] = []
    tops: list[Tensor] = []
    for factor in (1.0, 1e3):
        with torch.no_grad():
            for embedding in (model.source_embedding, model.target_embedding):
                embedding.token.weight[PADDING] *= factor
        clip = QKClip(model, threshold=1.0, alpha=0.5)
        clip.setup(pl.Trainer(logger=False), task, "validate")
        receiver = clip.receiver(batch)
        with tapped(model, receiver), tapped(model, lambda _, a: tops.append(a.logits().max())):
            task.loss(batch)
        maxima.append(torch.cat(list(clip.max_logits.values())))
    torch.testing.assert_close(maxima[1], maxima[0])
    n_attentions = len(tops) // 2
    assert max(tops[n_attentions:]) > 2 * max(tops[:n_attentions])


def test_later_keys_of_causal_attention_do_not_count() -> None:
    attention, x = build(), draw()
    causal = torch.ones(POSITION, POSITION, dtype=torch.bool).tril()
    before = largest(attention, x, causal)
    assert bool((before < largest(attention, x)).any())
    clip = QKClip(attention, threshold=1.0, alpha=0.5)
    with tapped(attention, clip.watch):
        attention(x, causal=True)
    torch.testing.assert_close(clip.clip()[""], (1.0 / before).clamp(max=1.0))


@pytest.mark.parametrize("hidden", ["all", "negative"])
def test_without_a_positive_logit_nothing_changes(hidden: str) -> None:
    attention, x = build(), draw()
    keep = None
    if hidden == "all":
        keep = torch.zeros(1, 1, 1, POSITION, dtype=torch.bool)
    else:
        with torch.no_grad():
            for layer, value in ((attention.q, 1.0), (attention.k, -1.0)):
                layer.weight.zero_()
                layer.bias.fill_(value)
    before = copy.deepcopy(attention.state_dict())
    shrink = clipped(attention, x, threshold=0.5, keep=keep)
    assert torch.equal(shrink, torch.ones(HEADS))
    assert all(torch.equal(v, before[k]) for k, v in attention.state_dict().items())


@pytest.mark.parametrize(
    ("scale", "options"),
    [
        ("cosine", {"start": 10.0, "largest": 100.0}),
        ("qk_rmsnorm", {"eps": 1e-30}),
        ("score_layernorm", {"eps": 1e-30}),
    ],
)
def test_where_scores_are_normalised_there_is_nothing_to_clip(
    scale: str, options: dict[str, float]
) -> None:
    attention, x = build(scale, options), draw()
    before = largest(attention, x)
    assert float(clipped(attention, x, threshold=0.1).max()) < 1
    torch.testing.assert_close(largest(attention, x), before)


def test_each_attention_of_a_model_has_its_own_maximum() -> None:
    model = autoencoder(
        "none",
        d_model=D_MODEL,
        d_k=D_K,
        n_heads=HEADS,
        n_layers=2,
        residual=True,
        norm="pre",
        bias=True,
        init="unit",
    )
    x = draw()
    clip = QKClip(model, threshold=0.5, alpha=0.5)
    seen: dict[str, Tensor] = {}

    def look(path: str, attended: Attended) -> None:
        seen[path] = attended.logits().amax(dim=(0, 2, 3))

    with tapped(model, clip.watch), tapped(model, look):
        model(x)
    made = clip.clip()
    assert list(made) == ["layers.0.attention", "layers.1.attention"] == list(seen)
    for path, shrink in made.items():
        assert shrink.shape == (HEADS,)
        torch.testing.assert_close(shrink, (0.5 / seen[path]).clamp(max=1.0))


@pytest.mark.parametrize(
    ("threshold", "alpha", "message"),
    [
        (0.0, 0.5, r"attention\.qk_clip=0\.0: must be positive"),
        (-1.0, 0.5, r"attention\.qk_clip=-1\.0: must be positive"),
        (float("nan"), 0.5, r"attention\.qk_clip=nan: must be positive"),
        (1.0, -0.1, r"attention\.qk_clip_alpha=-0\.1: must be from 0 to 1"),
        (1.0, 1.1, r"attention\.qk_clip_alpha=1\.1: must be from 0 to 1"),
        (1.0, float("nan"), r"attention\.qk_clip_alpha=nan: must be from 0 to 1"),
    ],
)
def test_wrong_values_are_refused(threshold: float, alpha: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        QKClip(build(), threshold=threshold, alpha=alpha)
