import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnscale.attention import SCALES, Attended, Dropout, MultiHeadAttention, attentions, tapped
from attnscale.model.layers import sinusoids
from attnscale.model.transformer import STACK_NORMS, Transformer
from tests.support.models import transformer

# All different, so that no two axes can be taken for each other.
BATCH, SOURCE, TARGET, N_SOURCE, N_TARGET = 2, 7, 11, 23, 29
D_MODEL, D_K, D_V, HEADS, HIDDEN, LAYERS, LONGEST = 13, 5, 17, 3, 19, 2, 31
PADDING = 1


def build(scale: str | float = "sqrt", **changed: Any) -> Transformer:
    sizes: dict[str, Any] = {
        "source_size": N_SOURCE,
        "target_size": N_TARGET,
        "d_model": D_MODEL,
        "d_k": D_K,
        "d_v": D_V,
        "n_heads": HEADS,
        "n_layers": LAYERS,
        "feed_forward": HIDDEN,
        "max_length": LONGEST,
    }
    return transformer(scale, **sizes | changed).double()


def draw() -> tuple[Tensor, Tensor]:
    source = torch.randint(4, N_SOURCE, (BATCH, SOURCE))
    target = torch.randint(4, N_TARGET, (BATCH, TARGET))
    return source, target


def largest(x: Tensor) -> float:
    return float(x.detach().abs().max())


def assert_exact(made: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(made, wanted, rtol=0.0, atol=1e-12)


STACKS = pytest.mark.parametrize("norm", STACK_NORMS)
POSITIONS = pytest.mark.parametrize("positions", ["sinusoidal", "learned"])


# --- what may be seen ---


@STACKS
@POSITIONS
@pytest.mark.parametrize("scale", [*SCALES, 0.3])
def test_a_target_token_moves_nothing_before_it(
    norm: str, positions: str, scale: str | float
) -> None:
    # In evaluation: the statistics of a batch, which score_batchnorm takes, see all positions.
    model = build(norm=norm, positions=positions, scale=scale).eval()
    source, target = draw()
    before = model(source, target, PADDING)
    assert before.shape == (BATCH, TARGET, D_MODEL)
    for at in (1, 5, TARGET - 1):
        changed = target.clone()
        changed[:, at] = 4 + (changed[:, at] - 3) % (N_TARGET - 4)
        assert bool((changed[:, at] != target[:, at]).all())
        after = model(source, changed, PADDING)
        assert_exact(after[:, :at], before[:, :at])
        assert bool(((after - before)[:, at:].abs().amax(dim=-1) > 1e-6).all())


@STACKS
@POSITIONS
def test_padding_of_the_source_moves_nothing(norm: str, positions: str) -> None:
    model = build(norm=norm, positions=positions)
    source, target = draw()
    source[1, 4:] = PADDING
    plain = model(source, target, PADDING)
    wider = torch.cat([source, torch.full((BATCH, 6), PADDING)], dim=1)
    assert_exact(model(wider, target, PADDING), plain)
    alone = model(source[1:, :4], target[1:], PADDING)
    assert_exact(plain[1:], alone)
    # What stands in the padding's embedding does not matter either.
    with torch.no_grad():
        model.source_embedding.token.weight[PADDING] += 3.0
    assert_exact(model(source, target, PADDING), plain)


@STACKS
def test_padding_of_the_target_moves_nothing_before_it(norm: str) -> None:
    model = build(norm=norm)
    source, target = draw()
    plain = model(source, target, PADDING)
    padded = torch.cat([target, torch.full((BATCH, 5), PADDING)], dim=1)
    assert_exact(model(source, padded, PADDING)[:, :TARGET], plain)


@STACKS
def test_each_source_token_moves_all_of_the_target(norm: str) -> None:
    model = build(norm=norm)
    source, target = draw()
    before = model(source, target, PADDING)
    for at in range(SOURCE):
        changed = source.clone()
        changed[0, at] = 4 + (changed[0, at] - 3) % (N_SOURCE - 4)
        moved = (model(changed, target, PADDING) - before).abs().amax(dim=-1)
        assert bool((moved[0] > 1e-8).all())
        assert largest(moved[1]) == 0


def test_a_source_position_sees_those_after_it() -> None:
    model = build()
    source, _ = draw()
    keep = torch.ones(BATCH, 1, 1, SOURCE, dtype=torch.bool)
    before = model.encode(source, keep)
    source[:, -1] = 4 + (source[:, -1] - 3) % (N_SOURCE - 4)
    moved = (model.encode(source, keep) - before).abs().amax(dim=-1)
    assert bool((moved > 1e-8).all())


def test_the_order_of_the_source_matters() -> None:
    for positions in ("sinusoidal", "learned"):
        model = build(positions=positions)
        source, target = draw()
        moved = model(source.flip(1), target, PADDING) - model(source, target, PADDING)
        assert largest(moved) > 1e-6


def test_padding_learns_nothing() -> None:
    model = build(positions="learned")
    source, target = draw()
    source[:, 5:] = PADDING
    target[:, 8:] = PADDING
    hidden = model(source, target, PADDING)
    (hidden[:, :8] * torch.randn_like(hidden[:, :8])).sum().backward()

    def moved(parameter: Tensor) -> Tensor:
        assert parameter.grad is not None
        return parameter.grad.abs().amax(dim=-1) > 0

    tokens = moved(model.source_embedding.token.weight)
    assert tokens.nonzero().flatten().tolist() == sorted(set(source[:, :5].flatten().tolist()))
    tokens = moved(model.target_embedding.token.weight)
    assert tokens.nonzero().flatten().tolist() == sorted(set(target[:, :8].flatten().tolist()))
    for embedding, end in ((model.source_embedding, 5), (model.target_embedding, 8)):
        assert isinstance(embedding.position, nn.Parameter)
        assert moved(embedding.position).tolist() == [t < end for t in range(LONGEST)]


# --- positions ---


@pytest.mark.parametrize("d_model", [8, 13, 1])
def test_sinusoids(d_model: int) -> None:
    table = sinusoids(LONGEST, d_model)
    assert table.shape == (LONGEST, d_model)
    for t in (0, 1, 7, LONGEST - 1):
        for i in range(d_model):
            angle = t / 10000 ** ((i - i % 2) / d_model)
            wanted = math.cos(angle) if i % 2 else math.sin(angle)
            assert float(table[t, i]) == pytest.approx(wanted, abs=1e-6)


@POSITIONS
@pytest.mark.parametrize("scaled", [True, False])
def test_embeddings_are_tokens_and_positions(positions: str, scaled: bool) -> None:
    model = build(positions=positions, scaled_embeddings=scaled)
    tokens = torch.randint(0, N_TARGET, (BATCH, TARGET))
    factor = math.sqrt(D_MODEL) if scaled else 1.0
    made = model.target_embedding
    for first in (0, 9):
        wanted = made.token.weight[tokens] * factor + made.position[first : first + TARGET]
        assert_exact(made(tokens, first), wanted)


def test_learned_positions_are_learned_and_sinusoids_are_not() -> None:
    learned, fixed = (build(positions=kind) for kind in ("learned", "sinusoidal"))
    names = {name for name, _ in learned.named_parameters() if "position" in name}
    assert names == {"source_embedding.position", "target_embedding.position"}
    assert not any("position" in name for name, _ in fixed.named_parameters())
    # A longer table can take up the weights of a shorter one.
    assert not any("position" in name for name in fixed.state_dict())


@POSITIONS
def test_a_sentence_may_be_as_long_as_the_table(positions: str) -> None:
    model = build(positions=positions)
    longest = torch.full((1, LONGEST), 5)
    assert model(longest, longest, PADDING).shape == (1, LONGEST, D_MODEL)
    longer = torch.full((1, LONGEST + 1), 5)
    for pair in ((longer, longest), (longest, longer)):
        with pytest.raises(ValueError, match=r"model\.max_length=31: a sentence of 32 tokens"):
            model(*pair, PADDING)
    with pytest.raises(ValueError, match="a sentence of 33 tokens"):
        model.target_embedding(longest[:, :2], first=LONGEST)


# --- the parts ---


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_the_size_of_the_published_set_up() -> None:
    model = build(
        source_size=7853,
        target_size=5893,
        d_model=256,
        d_k=32,
        d_v=32,
        n_heads=8,
        n_layers=3,
        feed_forward=512,
        norm="post",
        positions="learned",
        max_length=100,
    )
    assert parameters(model) == 9_038_341


def test_values_are_as_wide_as_keys_unless_asked_otherwise() -> None:
    for d_v, wide in ((None, D_K), (D_V, D_V)):
        attentions = [m for m in build(d_v=d_v).modules() if isinstance(m, MultiHeadAttention)]
        assert len(attentions) == 3 * LAYERS
        for attention in attentions:
            assert attention.q.weight.shape == attention.k.weight.shape == (HEADS * D_K, D_MODEL)
            assert attention.v.weight.shape == (HEADS * wide, D_MODEL)
            assert attention.o.weight.shape == (D_MODEL, HEADS * wide)


def test_every_attention_has_a_scale_of_its_own() -> None:
    found = attentions(build(scale="learned")).values()
    assert len({id(attention.scale) for attention in found}) == len(found) == 3 * LAYERS


def test_biases_of_attention_are_an_option() -> None:
    added = parameters(build(bias=True)) - parameters(build(bias=False))
    assert added == 3 * LAYERS * (HEADS * (2 * D_K + D_V) + D_MODEL)


@pytest.mark.parametrize("init", ["torch", "xavier", "kaiming", "unit"])
def test_tied_weights_are_one(init: str) -> None:
    tied, free = build(tied=True, init=init), build(tied=False, init=init)
    embedding = tied.target_embedding.token.weight
    assert tied.output.weight is embedding
    assert tied.output.weight.data_ptr() == embedding.data_ptr()
    assert tied.source_embedding.token.weight.data_ptr() != embedding.data_ptr()
    assert free.output.weight.data_ptr() != free.target_embedding.token.weight.data_ptr()
    assert parameters(free) - parameters(tied) == N_TARGET * D_MODEL


def test_a_stack_ends_with_a_norm_only_before_sublayers() -> None:
    assert parameters(build(norm="pre")) - parameters(build(norm="post")) == 2 * 2 * D_MODEL


@STACKS
def test_where_the_norms_are(norm: str) -> None:
    model = build(norm=norm, n_layers=1)
    source, target = draw()
    keep = torch.ones(BATCH, 1, 1, SOURCE, dtype=torch.bool)
    memory = model.encode(source, keep)
    hidden = model.decode(target, memory, keep)
    causal = torch.ones(TARGET, TARGET, dtype=torch.bool).tril()

    def sublayer(residual: nn.Module, x: Tensor, apply: Any) -> Tensor:
        layer_norm = residual.get_submodule("norm")
        normed: Tensor = x + apply(layer_norm(x)) if norm == "pre" else layer_norm(x + apply(x))
        return normed

    def attention(layer: nn.Module, name: str, **rest: Any) -> Any:
        return lambda y: layer.get_submodule(name)(y, **rest)

    x = model.source_embedding(source)
    layer = model.encoder[0]
    x = sublayer(layer.get_submodule("self_residual"), x, attention(layer, "self"))
    residual, forward = (layer.get_submodule(f"feed_forward{end}") for end in ("_residual", ""))
    x = sublayer(residual, x, forward)
    wanted_memory = model.encoder_norm(x) if norm == "pre" else x
    torch.testing.assert_close(memory, wanted_memory, rtol=0.0, atol=1e-12)

    y = model.target_embedding(target)
    layer = model.decoder[0]
    y = sublayer(layer.get_submodule("self_residual"), y, attention(layer, "self", keep=causal))
    y = sublayer(
        layer.get_submodule("cross_residual"), y, attention(layer, "cross", source=wanted_memory)
    )
    residual, forward = (layer.get_submodule(f"feed_forward{end}") for end in ("_residual", ""))
    y = sublayer(residual, y, forward)
    torch.testing.assert_close(
        hidden, model.decoder_norm(y) if norm == "pre" else y, rtol=0.0, atol=1e-12
    )


@STACKS
def test_hidden_states_are_normalised(norm: str) -> None:
    hidden = build(norm=norm)(*draw(), PADDING)
    torch.testing.assert_close(hidden.mean(dim=-1), torch.zeros(BATCH, TARGET).double())
    variance = hidden.var(dim=-1, unbiased=False)
    torch.testing.assert_close(variance, torch.ones_like(variance), rtol=1e-2, atol=0.0)


@pytest.mark.parametrize(("attention_dropout", "found"), [(None, 0.25), (0.0, 0.0), (0.5, 0.5)])
def test_dropouts(attention_dropout: float | None, found: float) -> None:
    model = build(dropout=0.25, attention_dropout=attention_dropout)
    attentions = [m for m in model.modules() if isinstance(m, MultiHeadAttention)]
    assert {attention.dropout for attention in attentions} == {found}
    dropouts = [m for m in model.modules() if isinstance(m, Dropout)]
    assert {dropout.p for dropout in dropouts} == {0.25}
    # Two embeddings, and per layer the sublayers and the feed-forward network.
    assert len(dropouts) == 2 + LAYERS * (2 + 1 + 3 + 1)


def test_dropout_acts_in_training_only() -> None:
    model = build(dropout=0.3)
    source, target = draw()
    first, second = (model(source, target, PADDING) for _ in range(2))
    assert largest(first - second) > 1e-3
    model.eval()
    first, second = (model(source, target, PADDING) for _ in range(2))
    assert largest(first - second) == 0


# --- initialisation ---


@POSITIONS
def test_xavier_bounds_every_matrix(positions: str) -> None:
    model = build(init="xavier", positions=positions)
    matrices = {name: p for name, p in model.named_parameters() if p.dim() == 2}
    assert len(matrices) == 2 + 1 + LAYERS * (4 + 2 + 8 + 2) + 2 * (positions == "learned")
    for name, matrix in matrices.items():
        bound = math.sqrt(6 / sum(matrix.shape))
        most = largest(matrix)
        # Of n uniform draws the largest is nearly at the bound.
        assert bound * (1 - 20 / matrix.numel()) < most <= bound * (1 + 1e-6), name
        spread = float(matrix.detach().std()) / (bound / math.sqrt(3))
        assert abs(spread - 1) < 5 / math.sqrt(matrix.numel()), name
    biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
    assert all(largest(p) == 0 for p in biases)


@pytest.mark.parametrize("init", ["torch", "kaiming", "unit"])
def test_scaled_embeddings_have_unit_variance(init: str) -> None:
    model = build(init=init, source_size=499, target_size=503)
    for made in (model.source_embedding, model.target_embedding):
        spread = float((made.token.weight * made.factor).detach().std())
        assert abs(spread - 1) < 5 / math.sqrt(2 * made.token.weight.numel())


def test_a_seed_gives_the_same_weights_for_any_scale() -> None:
    states = []
    for scale in ("sqrt", "none", 0.4):
        torch.manual_seed(5)
        states.append(build(scale=scale).state_dict())
    for state in states[1:]:
        assert state.keys() == states[0].keys()
        assert all(torch.equal(state[name], states[0][name]) for name in state)


# --- settings ---


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"norm": "none"}, r"model\.norm=none: allowed are pre, post"),
        ({"positions": "rotary"}, r"model\.positions=rotary: allowed are sinusoidal, learned"),
        ({"init": "he"}, r"model\.init=he: allowed are torch"),
        ({"n_layers": 0}, r"model\.n_layers=0: must be at least 1"),
        ({"d_model": 0}, r"model\.d_model=0: must be at least 1"),
        ({"feed_forward": 0}, r"model\.feed_forward=0"),
        ({"dropout": 1.0}, r"model\.dropout=1\.0: must be at least 0 and below 1"),
        ({"d_v": 0}, r"model\.d_v=0"),
        ({"n_heads": 0}, r"model\.n_heads=0"),
        ({"scale": "sqr"}, r"attention\.scale=sqr"),
    ],
)
def test_what_is_not_allowed_is_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**changed)


def test_each_attention_knows_its_sides() -> None:
    model = build()
    sides: dict[str, tuple[str, str]] = {}

    def receive(path: str, attended: Attended) -> None:
        sides[path] = (attended.queries, attended.keys)

    with tapped(model, receive):
        model(*draw(), PADDING)
    expected = {f"encoder.{i}.self": ("source", "source") for i in range(LAYERS)}
    for i in range(LAYERS):
        expected[f"decoder.{i}.self"] = ("target", "target")
        expected[f"decoder.{i}.cross"] = ("target", "source")
    assert sides == expected
    assert {path: (a.queries, a.keys) for path, a in attentions(model).items()} == expected
