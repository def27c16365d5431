"""Where modes are the same thing, and where they reproduce ``sqrt``."""

import math

import pytest
import torch
from torch import Tensor, nn

from attnscale.attention import MultiHeadAttention, Scale, attend
from attnscale.attention.masks import softmax_over_kept
from attnscale.attention.scale import LogN, LogNBase, SoftCap
from attnscale.model.layers import INITS, initialise
from tests.support.modes import (
    BATCH,
    D_K,
    D_MODEL,
    KEY,
    QUERY,
    Mode,
    attended_of,
    build,
    draw,
    every_mode,
    mask,
    new_scale,
)

KINDS = ("none", "padding", "random+causal", "rows with no key")


def assert_is_sqrt(scale: Scale, d_k: int = D_K) -> None:
    """Compare outputs and gradients of q, k and v in fp64 with those of ``sqrt``."""
    for kind in KINDS:
        q, k, v = draw(d_k)
        keep, causal = mask(kind)
        results = []
        for one in (scale, "sqrt"):
            out = attend(q, k, v, scale=one, keep=keep, causal=causal)
            results.append((out, *torch.autograd.grad(out.square().sum(), (q, k, v))))
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("d_k", [D_K, 64])
def test_mup_at_its_base_is_sqrt(d_k: int) -> None:
    assert_is_sqrt(new_scale("mup", base_d_k=float(d_k)), d_k=d_k)
    if d_k == 64:  # a power of four: nothing is rounded
        q, k, v = draw(d_k)
        assert torch.equal(attend(q, k, v, scale="mup"), attend(q, k, v))


def test_mup_away_from_its_base_is_not_sqrt() -> None:
    q, k, _ = draw(16)
    logits = attended_of(q, k, new_scale("mup", base_d_k=64.0)).logits()
    torch.testing.assert_close(logits, 2 * attended_of(q, k, "sqrt").logits())


@pytest.mark.parametrize("name", ["learned", "learned_shared"])
def test_learned_starts_as_sqrt(name: str) -> None:
    assert_is_sqrt(new_scale(name, dtype=torch.float64))


def test_softcap_without_a_cap_is_sqrt() -> None:
    assert_is_sqrt(SoftCap(d_k=D_K, cap=1e8))


@pytest.mark.parametrize("n_keys", [2, KEY])
def test_log_n_base_at_its_base_is_sqrt(n_keys: int) -> None:
    q, k, v = draw(n_keys=n_keys)
    scale = LogNBase(base=float(n_keys))
    torch.testing.assert_close(
        attend(q, k, v, scale=scale), attend(q, k, v), rtol=1e-12, atol=1e-12
    )
    longer = draw(n_keys=n_keys + 1)
    assert not torch.allclose(attend(*longer, scale=scale), attend(*longer), rtol=1e-4)


def test_ssmax_with_the_inverse_of_ln_n_is_sqrt() -> None:
    q, k, v = draw()
    scale = new_scale("ssmax", dtype=torch.float64, start=1 / math.log(KEY))
    torch.testing.assert_close(
        attend(q, k, v, scale=scale), attend(q, k, v), rtol=1e-12, atol=1e-12
    )


def test_length_modes_are_multiples_of_each_other() -> None:
    q, k, _ = draw()
    base, start = 5.0, 0.7
    ssmax = new_scale("ssmax", dtype=torch.float64, start=start)
    for kind in KINDS:
        keep, causal = mask(kind)
        plain = attended_of(q, k, LogN(), keep, causal=causal).logits()
        of_base = attended_of(q, k, LogNBase(base=base), keep, causal=causal).logits()
        learned = attended_of(q, k, ssmax, keep, causal=causal).logits()
        torch.testing.assert_close(of_base, plain / math.log(base), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(learned, start * plain, rtol=1e-12, atol=1e-12)


def test_subtracting_s_ln_n_instead_of_multiplying_does_nothing() -> None:
    q, k, _ = draw()
    for kind in KINDS:
        keep, causal = mask(kind)
        attended = attended_of(q, k, "sqrt", keep, causal=causal)
        logits, keep = attended.logits(), attended.keep
        n = torch.tensor(float(KEY)) if keep is None else keep.sum(dim=-1, keepdim=True).clamp(1)
        weights = softmax_over_kept(logits, keep)
        torch.testing.assert_close(softmax_over_kept(logits - 0.43 * n.log(), keep), weights)
        multiplied = softmax_over_kept(logits * 0.43 * n.log(), keep)
        assert not torch.allclose(multiplied, weights, rtol=1e-3)


def test_cosine_at_its_start_is_cosine_fixed() -> None:
    q, k, v = draw()
    torch.testing.assert_close(
        attend(q, k, v, scale=new_scale("cosine", dtype=torch.float64)),
        attend(q, k, v, scale="cosine_fixed"),
    )


def test_rmsnorm_of_vectors_without_mean_is_layernorm() -> None:
    q, k, v = draw()
    q, k = (y - y.mean(dim=-1, keepdim=True) for y in (q, k))
    a, b = (
        attend(q, k, v, scale=new_scale(name, dtype=torch.float64))
        for name in ("qk_layernorm", "qk_rmsnorm")
    )
    torch.testing.assert_close(a, b)


def test_a_number_is_the_mode_of_that_factor() -> None:
    q, k, v = draw()
    for name, factor in (("sqrt", D_K**-0.5), ("none", 1.0), ("inverse", 1 / D_K)):
        a, b = attend(q, k, v, scale=factor), attend(q, k, v, scale=name)
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


# --- folded: the factor goes into the initial weights ---


def seeded(scale: str, init: str, d_k: int) -> MultiHeadAttention:
    torch.manual_seed(7)
    attention = build(scale, d_k=d_k, bias=True)
    initialise(attention, init)
    return attention


@pytest.mark.parametrize("d_k", [16, D_K])
@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("name", ["folded", "none_equiv"])
def test_folded_starts_as_sqrt(name: str, init: str, d_k: int) -> None:
    folded, sqrt = seeded(name, init, d_k), seeded("sqrt", init, d_k)
    for path, weight in sqrt.state_dict().items():
        gain = d_k**-0.5 if path in ("q.weight", "q.bias") else 1.0
        assert torch.equal(folded.state_dict()[path], weight * gain), path
    assert (sqrt.q.bias.abs().max() > 0) == (init == "torch")
    query, source = torch.randn(BATCH, QUERY, D_MODEL), torch.randn(BATCH, KEY, D_MODEL)
    if d_k == 16:  # the factor is a power of two: nothing is rounded
        assert torch.equal(folded(query, source), sqrt(query, source))
    torch.testing.assert_close(folded(query, source), sqrt(query, source), rtol=1e-5, atol=1e-6)
    unfolded = seeded("none", init, d_k)
    assert not torch.allclose(unfolded(query, source), sqrt(query, source), rtol=1e-3, atol=1e-4)


def test_factors_of_each_optimizer() -> None:
    scale = new_scale("none_equiv")
    c = 0.25
    expected = {
        "adamw": (c, 1 / c, 1 / c),
        "adam": (c, 1 / c, 1 / c**2),
        "sgd": (c**2, 1.0, 1 / c**2),
    }
    for kind, numbers in expected.items():
        factors = scale.optimizer_factors(16, kind)
        assert (factors.lr, factors.eps, factors.weight_decay) == numbers
    with pytest.raises(ValueError, match=r"none_equiv: knows no factors for the optimizer 'lion'"):
        scale.optimizer_factors(16, "lion")


@every_mode
def test_no_other_mode_changes_what_the_optimizer_does(mode: Mode) -> None:
    scale = new_scale(mode)
    assert scale.adjusts_optimizer == (mode == "none_equiv")
    assert scale.init_gain(16) == (0.25 if mode in ("folded", "none_equiv") else 1.0)
    if not scale.adjusts_optimizer:
        factors = scale.optimizer_factors(16, "lion")
        assert (factors.lr, factors.eps, factors.weight_decay) == (1.0, 1.0, 1.0)


LR, EPS, DECAY = 0.03, 1e-3, 0.1


def optimizer(attention: MultiHeadAttention, kind: str) -> torch.optim.Optimizer:
    own = attention.projections()["q"]
    others = [p for p in attention.parameters() if all(p is not q for q in own)]
    factors = attention.scale.optimizer_factors(attention.d_k, kind)
    groups = [
        {
            "params": own,
            "lr": LR * factors.lr,
            "eps": EPS * factors.eps,
            "weight_decay": DECAY * factors.weight_decay,
        },
        {"params": others, "lr": LR, "eps": EPS, "weight_decay": DECAY},
    ]
    if kind == "sgd":
        groups = [{n: x for n, x in group.items() if n != "eps"} for group in groups]
        return torch.optim.SGD(groups, momentum=0.9)
    return torch.optim.Adam(groups) if kind == "adam" else torch.optim.AdamW(groups)


@pytest.mark.parametrize("d_k", [16, D_K])
@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
def test_none_equiv_trains_as_sqrt_does(kind: str, d_k: int) -> None:
    inputs = torch.randn(BATCH, KEY, D_MODEL, dtype=torch.float64)
    target = torch.randn(BATCH, KEY, D_MODEL, dtype=torch.float64)
    curves = {}
    for name in ("sqrt", "none_equiv", "folded"):
        torch.manual_seed(7)
        attention = build("sqrt", d_k=d_k, bias=True).double()
        state = attention.state_dict()
        if name != "sqrt":
            attention = build(name, d_k=d_k, bias=True).double()
            attention.load_state_dict(state)
            attention.reset_parameters(lambda layer: None)  # folds
        with torch.no_grad():  # logits that are not all but flat
            attention.k.weight *= 4
        optimiser = optimizer(attention, kind)
        losses = []
        for _ in range(20):
            loss: Tensor = nn.functional.mse_loss(attention(inputs), target)
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
            losses.append(loss.detach())
        curves[name] = torch.stack(losses)
    assert curves["sqrt"][-1] < curves["sqrt"][0]
    torch.testing.assert_close(curves["none_equiv"], curves["sqrt"], rtol=1e-9, atol=0)
    torch.testing.assert_close(curves["folded"][0], curves["sqrt"][0], rtol=1e-12, atol=0)
    assert not torch.allclose(curves["folded"], curves["sqrt"], rtol=1e-6)
