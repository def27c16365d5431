import doctest
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from attnscale.attention import MultiHeadAttention, attend, padding_keep
from tests.support.modes import (
    BATCH,
    D_K,
    D_MODEL,
    D_V,
    HEADS,
    KEY,
    QUERY,
    Mode,
    build,
    every_mode,
    representative,
)


def head_by_head(
    attention: MultiHeadAttention, query: Tensor, source: Tensor, keep: Tensor
) -> Tensor:
    """Compute Vaswani et al. 2017, section 3.2.2, one head after the other, from the weights."""
    n_heads, d_k, d_v = attention.n_heads, attention.d_k, attention.d_v

    def project(layer: nn.Linear, x: Tensor, head: int, size: int) -> Tensor:
        rows = slice(head * size, (head + 1) * size)
        projected = torch.einsum("bpd,ed->bpe", x, layer.weight[rows])
        return projected if layer.bias is None else projected + layer.bias[rows]

    heads = []
    for h in range(n_heads):
        q = project(attention.q, query, h, d_k)
        k = project(attention.k, source, h, d_k)
        v = project(attention.v, source, h, d_v)
        logits = torch.einsum("bid,bjd->bij", q, k) / math.sqrt(d_k)
        heads.append(logits.masked_fill(~keep, -math.inf).softmax(dim=-1) @ v)
    joined = torch.cat(heads, dim=-1)
    out = torch.einsum("bpe,de->bpd", joined, attention.o.weight)
    return out if attention.o.bias is None else out + attention.o.bias


@pytest.mark.parametrize("n_heads", [1, 3])
def test_an_output_norm_is_a_layernorm_of_the_joined_heads(n_heads: int) -> None:
    attention = build("nap", n_heads=n_heads, bias=True).double()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    x = torch.randn(BATCH, KEY, D_MODEL, dtype=torch.float64)
    out = attention(x)
    q, k, v = (
        layer(x).view(BATCH, KEY, n_heads, -1).transpose(1, 2)
        for layer in (attention.q, attention.k, attention.v)
    )
    heads = attend(q, k, v, scale=attention.scale).unbind(dim=1)
    gain, shift = (attention.get_parameter(f"output_norm.{name}") for name in ("weight", "bias"))
    joined = functional.layer_norm(torch.cat(heads, -1), (n_heads * D_V,), gain, shift, eps=1e-3)
    torch.testing.assert_close(out, joined @ attention.o.weight.T + attention.o.bias)


@pytest.mark.parametrize("output_norm", [1, 0])
def test_only_the_output_norm_of_nap_keeps_long_sentences_from_large_outputs(
    output_norm: int,
) -> None:
    attention = build("nap", options={"output_norm": output_norm})
    with torch.no_grad():
        eight, many, most = (
            float(attention(torch.randn(16384 // n, n, D_MODEL)).square().mean().sqrt())
            for n in (8, 64, 512)
        )
    if output_norm:
        assert [many, most] == pytest.approx([eight, eight], rel=0.1)
    else:
        # With values that do not depend on the scores it is √8 from one to the next.
        assert most / many > 2.8 < many / eight


@pytest.mark.parametrize("backend", ["explicit", "fused"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("n_heads", [1, 3, 8])
def test_equals_the_paper_head_by_head(n_heads: int, bias: bool, backend: str) -> None:
    attention = build(n_heads=n_heads, bias=bias, backend=backend).double()
    query = torch.randn(BATCH, QUERY, D_MODEL, dtype=torch.float64, requires_grad=True)
    source = torch.randn(BATCH, KEY, D_MODEL, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([KEY, 4])
    out = attention(query, source, keep=padding_keep(lengths, KEY))
    wanted = head_by_head(attention, query, source, (torch.arange(KEY) < lengths[:, None])[:, None])
    torch.testing.assert_close(out, wanted, rtol=1e-9, atol=1e-11)
    leaves = (query, source, *attention.parameters())
    cotangent = torch.randn_like(out)
    for a, b in zip(
        torch.autograd.grad(out, leaves, cotangent),
        torch.autograd.grad(wanted, leaves, cotangent),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@representative
def test_self_attention_is_attention_to_itself(mode: Mode) -> None:
    attention = build(mode)
    x = torch.randn(BATCH, KEY, D_MODEL)
    assert torch.equal(attention(x), attention(x, x))
    assert not torch.allclose(attention(x), attention(x, x.flip(0)))


@every_mode
def test_a_seed_gives_the_same_weights_for_every_scale(mode: Mode) -> None:
    torch.manual_seed(3)
    wanted = build("sqrt").state_dict()
    torch.manual_seed(3)
    attention = build(mode)
    state = attention.state_dict()
    after = torch.rand(1)
    own = {name for name in state if name.startswith(("scale.", "output_norm."))}
    assert set(state) == set(wanted) | own
    gain = D_K**-0.5 if mode in ("folded", "none_equiv") else 1.0
    for name, weight in wanted.items():
        assert torch.equal(state[name], weight * (gain if name == "q.weight" else 1.0))
    torch.manual_seed(3)
    build("sqrt")
    assert torch.equal(torch.rand(1), after)


@pytest.mark.parametrize("bias", [False, True])
def test_sizes_of_the_projections(bias: bool) -> None:
    attention = build(bias=bias)
    projections = attention.projections()
    shapes = {
        name: [tuple(p.shape) for p in parameters] for name, parameters in projections.items()
    }
    wanted: dict[str, list[tuple[int, ...]]] = {
        "q": [(HEADS * D_K, D_MODEL)],
        "k": [(HEADS * D_K, D_MODEL)],
        "v": [(HEADS * D_V, D_MODEL)],
        "o": [(D_MODEL, HEADS * D_V)],
    }
    if bias:
        wanted = {name: [shapes[0], shapes[0][:1]] for name, shapes in wanted.items()}
    assert shapes == wanted
    listed = {id(p) for parameters in projections.values() for p in parameters}
    assert listed == {id(p) for p in attention.parameters()}


def test_has_no_bias_unless_asked_for() -> None:
    assert all(layer.bias is None for layer in build().modules() if isinstance(layer, nn.Linear))


@pytest.mark.parametrize("backend", ["explicit", "fused"])
def test_dropout_acts_in_training_only(backend: str) -> None:
    attention = build(dropout=0.5, backend=backend)
    x = torch.randn(BATCH, KEY, D_MODEL)
    plain = build(backend=backend)
    plain.load_state_dict(attention.state_dict())
    attention.eval()
    assert torch.equal(attention(x), plain(x))
    attention.train()
    assert not torch.allclose(attention(x), attention(x))
    torch.manual_seed(5)
    first = attention(x)
    torch.manual_seed(5)
    assert torch.equal(attention(x), first)


@pytest.mark.parametrize(("backend", "calls"), [("explicit", 0), ("fused", 1), ("auto", 0)])
def test_runs_the_backend_that_was_asked_for(
    backend: str, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, counts = functional.scaled_dot_product_attention, []

    def counted(*args: Tensor, **options: object) -> Tensor:
        counts.append(options)
        return kernel(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(functional, "scaled_dot_product_attention", counted)
    build(backend=backend)(torch.randn(BATCH, KEY, D_MODEL))
    assert len(counts) == calls


@pytest.mark.parametrize("size", ["d_model", "n_heads", "d_k", "d_v"])
@pytest.mark.parametrize("wrong", [0, -1])
def test_refuses_a_size_below_one(size: str, wrong: int) -> None:
    with pytest.raises(ValueError, match=rf"^model\.{size}={wrong}: must be at least 1$"):
        build(options=None, **{size: wrong})


@pytest.mark.parametrize("size", ["d_model", "n_heads", "d_k", "d_v"])
def test_a_size_of_one_is_allowed(size: str) -> None:
    attention = build(options=None, **{size: 1})
    x = torch.randn(BATCH, KEY, attention.d_model)
    assert attention(x).shape == x.shape


@pytest.mark.parametrize("wrong", [-0.1, 1.0, 1.5, math.nan])
def test_refuses_a_dropout_that_is_no_probability(wrong: float) -> None:
    with pytest.raises(
        ValueError, match=rf"^model\.dropout={wrong}: must be at least 0 and below 1$"
    ):
        build(dropout=wrong)


def test_refuses_a_backend() -> None:
    with pytest.raises(
        ValueError, match=r"^attention\.backend=flash: allowed are auto, explicit, fused"
    ):
        build(backend="flash")
    with pytest.raises(ValueError, match=r"^attention\.backend=fused: scale mode 'softcap'"):
        build("softcap", backend="fused")


def test_refuses_an_unknown_scale() -> None:
    with pytest.raises(ValueError, match=r"^attention\.scale=sqr: .*Did you mean 'sqrt'"):
        MultiHeadAttention(d_model=D_MODEL, n_heads=HEADS, d_k=D_K, d_v=D_V, scale="sqr")


@representative
def test_autocast_gives_finite_output_and_gradients(mode: Mode) -> None:
    attention = build(mode)
    with torch.no_grad():
        attention.q.weight *= 10
    x = torch.randn(BATCH, KEY, D_MODEL)
    keep = padding_keep(torch.tensor([KEY, 0]), KEY)
    wide = attention(x, keep=keep, causal=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attention(x, keep=keep, causal=True)
    out.float().square().sum().backward()
    assert out.isfinite().all()
    assert out[1].abs().max() == 0
    assert all(p.grad is not None and p.grad.isfinite().all() for p in attention.parameters())
    # bf16 keeps 8 bits: q, k, v, weights and output are each rounded by up to 2⁻⁹ of their size.
    error = (out - wide).detach().square().mean() / wide.detach().square().mean()
    assert error.sqrt() < 0.1, f"relative error {error.sqrt()}"


def test_the_example_of_the_module_runs() -> None:
    assert MultiHeadAttention.__doc__ is not None
    example = doctest.DocTestParser().get_doctest(
        MultiHeadAttention.__doc__, {}, "MultiHeadAttention", None, 0
    )
    result = doctest.DocTestRunner(verbose=False).run(example)
    assert (result.failed, result.attempted) == (0, len(example.examples))
    assert result.attempted == 6


def test_the_backend_leaves_the_initial_weights_alone() -> None:
    weights = []
    for backend in ("explicit", "fused"):
        torch.manual_seed(0)
        attention = MultiHeadAttention(
            d_model=4, n_heads=1, d_k=2, d_v=2, scale="sqrt", backend=backend
        )
        weights.append(attention.q.weight)
    assert torch.equal(*weights)


@pytest.mark.parametrize("sides", [{"queries": "encoder"}, {"keys": "memory"}])
def test_refuses_a_side(sides: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="allowed are source, target"):
        MultiHeadAttention(d_model=4, n_heads=1, d_k=2, d_v=2, scale="sqrt", **sides)
