from typing import Any

import pytest
import torch
from torch import Tensor

from attnscale.attention import SCALES
from attnscale.data.vocabulary import BEGIN, END, PADDING
from attnscale.decoding.greedy import greedy
from attnscale.model.transformer import Transformer
from tests.support.models import transformer
from tests.support.modes import REPRESENTATIVE

N_SOURCE, N_TARGET, LONGEST = 23, 19, 37
LENGTHS = (6, 2, 9, 1, 5, 4, 7)


def build(scale: str | float = "sqrt", *, ends: float = 0.0, **changed: Any) -> Transformer:
    """Return a random model; ``ends`` is added to the logit of END."""
    sizes: dict[str, Any] = {
        "source_size": N_SOURCE,
        "target_size": N_TARGET,
        "d_model": 17,
        "d_v": 7,
        "feed_forward": 29,
        "max_length": LONGEST,
    }
    model = transformer(scale, init="unit", **sizes, **changed).double().eval()
    with torch.no_grad():
        model.output.bias[END] += ends
    return model


def sentences() -> Tensor:
    source = torch.randint(4, N_SOURCE, (len(LENGTHS), max(LENGTHS)))
    for row, length in enumerate(LENGTHS):
        source[row, length:] = PADDING
    return source


def by_hand(model: Transformer, source: Tensor, most: int) -> list[int]:
    """Translate one sentence with the whole model, step by step."""
    tokens = [BEGIN]
    with torch.no_grad():
        while len(tokens) <= most:
            hidden = model(source[None], torch.tensor([tokens]), PADDING)
            tokens.append(int(model.output(hidden[0, -1]).argmax()))
            if tokens[-1] == END:
                break
    return tokens[1:]


@pytest.mark.parametrize(
    ("scale", "norm"),
    [*((scale, "pre") for scale in (*SCALES, 0.3)), *((mode, "post") for mode in REPRESENTATIVE)],
)
def test_cached_decoding_is_decoding(scale: str | float, norm: str) -> None:
    model, source = build(scale, ends=1.5, norm=norm), sentences()
    cached = greedy(model, source, extra=2)
    assert cached == greedy(model, source, extra=2, cached=False)
    alone = [by_hand(model, row[:n], 2 * n + 2) for row, n in zip(source, LENGTHS, strict=True)]
    assert cached == alone
    # Sentences leave the batch at different times, or nothing was tried.
    assert len({len(tokens) for tokens in cached}) > 2


@pytest.mark.parametrize("backend", ["explicit", "fused"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_backends_and_positions(backend: str, positions: str) -> None:
    model = build(ends=1.5, backend=backend, positions=positions)
    source = sentences()
    cached = greedy(model, source)
    assert cached == greedy(model, source, cached=False)
    assert len({len(tokens) for tokens in cached}) > 2


@pytest.mark.parametrize("cached", [True, False])
def test_a_batch_is_its_sentences(cached: bool) -> None:
    model, source = build(ends=1.5), sentences()
    together = greedy(model, source, cached=cached)
    apart = [
        greedy(model, row[None, : LENGTHS[i]], cached=cached)[0] for i, row in enumerate(source)
    ]
    assert together == apart
    order = torch.tensor([4, 0, 6, 2, 1, 5, 3])
    assert greedy(model, source[order], cached=cached) == [together[i] for i in order.tolist()]


@pytest.mark.parametrize("cached", [True, False])
def test_a_translation_stops_at_its_end(cached: bool) -> None:
    made = greedy(build(ends=1.5), sentences(), cached=cached)
    ended = [tokens for tokens in made if END in tokens]
    assert len(ended) > 2
    assert all(tokens.index(END) == len(tokens) - 1 for tokens in ended)
    assert all(len(tokens) == LONGEST - 1 for tokens in made if END not in tokens)
    assert greedy(build(ends=1e3), sentences(), cached=cached) == [[END]] * len(LENGTHS)


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize(("extra", "factor"), [(3, 2.0), (0, 1.0), (1, 0.5), (5, 0.0), (50, 2.0)])
def test_a_translation_is_cut(cached: bool, extra: int, factor: float) -> None:
    model = build(ends=-1e3)
    made = greedy(model, sentences(), extra=extra, factor=factor, cached=cached)
    wanted = [min(int(factor * n + extra), LONGEST - 1) for n in LENGTHS]
    assert [len(tokens) for tokens in made] == [max(1, n) for n in wanted]
    assert all(END not in tokens for tokens in made)


@pytest.mark.parametrize("cached", [True, False])
def test_it_starts_with_begin_and_sees_all_of_the_source(
    monkeypatch: pytest.MonkeyPatch, cached: bool
) -> None:
    model, source = build(), torch.randint(4, N_SOURCE, (1, 6))
    decode, seen = model.decode, []

    def watched(*args: Any, **rest: Any) -> Tensor:
        seen.append(decode(*args, **rest))
        return seen[-1]

    monkeypatch.setattr(model, "decode", watched)

    def first(given: Tensor) -> Tensor:
        seen.clear()
        greedy(model, given, extra=2, factor=0.0, cached=cached)
        return seen[0]

    before = first(source)
    with torch.no_grad():
        wanted = model(source, torch.tensor([[BEGIN]]), PADDING)
    torch.testing.assert_close(before, wanted, rtol=0.0, atol=1e-12)
    for at in range(6):
        changed = source.clone()
        changed[0, at] = 4 + (changed[0, at] - 3) % (N_SOURCE - 4)
        moved = float((first(changed) - before).abs().max())
        assert moved > 1e-6, f"source position {at} moves nothing"


def test_the_model_learns_nothing() -> None:
    model = build(ends=1.5)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    greedy(model, sentences())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_an_empty_batch() -> None:
    assert greedy(build(), torch.zeros(0, 3, dtype=torch.long)) == []


def test_each_step_projects_one_position(monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = build(ends=-1e3), []
    decode = model.decode

    def counted(target: Tensor, *args: Any, **rest: Any) -> Tensor:
        given.append(tuple(target.shape))
        return decode(target, *args, **rest)

    monkeypatch.setattr(model, "decode", counted)
    greedy(model, sentences()[:2], extra=1, factor=0.5)
    # Two sentences of 6 and 2 tokens: 4 and 2 steps, and the shorter one leaves.
    assert given == [(2, 1), (2, 1), (1, 1), (1, 1)]
