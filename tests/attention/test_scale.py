import math

import pytest
import torch
from torch import Tensor

from attnscale.attention import (
    SCALE_MODES,
    Attended,
    MultiHeadAttention,
    ScaleMode,
    attend,
    check_options,
    resolve_scale,
)
from tests.attention.conftest import (
    BATCH,
    D_K,
    D_V,
    KEY,
    LINEAR,
    QUERY,
    SCALES,
    STATISTICS,
    Numbers,
    factor_of,
    options_of,
    seen_by_tap,
    values_of,
)

D_MODEL = 40
NAMES = ", ".join(SCALE_MODES)
FACTORS: tuple[str | float, ...] = (*LINEAR, 3)


def logits(q: Tensor, k: Tensor, scale: str | float, values: Numbers) -> Tensor:
    """Return the logits as a tap sees them."""
    return seen_by_tap(q, k, scale, values).logits()


@pytest.mark.parametrize("heads", [1, 4, 8])
@pytest.mark.parametrize("scale", FACTORS)
def test_the_factor_comes_from_the_size_of_a_query(scale: str | float, heads: int) -> None:
    for d_k in (1, 2, 11, 64, 257):
        q = torch.randn(BATCH, heads, QUERY, d_k, dtype=torch.float64)
        k = torch.randn(BATCH, heads, KEY, d_k, dtype=torch.float64)
        made = logits(q, k, scale, values_of(scale, heads, d_k, d_model=D_MODEL))
        wanted = torch.einsum("bhid,bhjd->bhij", q, k) * factor_of(scale, d_k, D_MODEL)
        torch.testing.assert_close(made, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("heads", [1, 4, 8])
@pytest.mark.parametrize("scale", [*FACTORS, "softcap"])
def test_the_factor_of_a_module_comes_from_its_d_k(scale: str | float, heads: int) -> None:
    assert D_K not in {D_V, D_MODEL // heads, D_MODEL}
    attention = MultiHeadAttention(
        d_model=D_MODEL,
        n_heads=heads,
        d_k=D_K,
        d_v=D_V,
        scale=scale,
        options=options_of(scale, cap=0.8),
    )
    seen: list[Attended] = []
    attention.tap = seen.append
    x = torch.randn(BATCH, KEY, D_MODEL)
    attention(x)
    q = attention.q(x).reshape(BATCH, KEY, heads, D_K)
    k = attention.k(x).reshape(BATCH, KEY, heads, D_K)
    scores = torch.einsum("bihd,bjhd->bhij", q, k)
    if scale == "softcap":
        wanted = 0.8 * torch.tanh(scores / math.sqrt(D_K) / 0.8)
    else:
        wanted = scores * factor_of(scale, D_K, D_MODEL)
    torch.testing.assert_close(seen[0].logits(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("scale", "variance"),
    [
        ("none", 512.0),
        ("sqrt", 1.0),
        ("learned", 1.0),
        ("learned_shared", 1.0),
        ("inverse", 1 / 512),
        ("mup", 64 / 512),
        ("sqrt_d_model", 512 / 40),
    ],
)
def test_the_variance_of_logits(scale: str, variance: float) -> None:
    groups, n, d_k = 16, 64, 512
    q, k = torch.randn(4, 4, n, d_k), torch.randn(4, 4, n, d_k)
    made = logits(q, k, scale, values_of(scale, 4, d_k, d_model=D_MODEL))
    found = float(made.square().mean()) / variance
    # r = q·k has variance d; r² has variance 2d² + 6d, and two r² that share a q or a k have
    # covariance 2d. Of each of the groups × n² scores, 2(n − 1) others share one.
    deviation = math.sqrt((2 + 6 / d_k + 2 * (n - 1) * 2 / d_k) / (groups * n**2))
    assert abs(found - 1) < 5 * deviation, f"{found} times {variance}, allowed 1 ± {5 * deviation}"
    assert abs(float(made.mean())) < 5 * math.sqrt(variance / (groups * n**2))


def test_learned_starts_as_sqrt_in_every_head_and_learns() -> None:
    attention = MultiHeadAttention(d_model=D_MODEL, n_heads=3, d_k=D_K, d_v=D_V, scale="learned")
    (temperature,) = attention.temperatures()
    assert temperature.shape == (3,)
    torch.testing.assert_close(temperature.exp(), torch.full((3,), 1 / math.sqrt(D_K)))
    assert [name for name, p in attention.named_parameters() if p is temperature] == [
        "scale.log_scale"
    ]

    x = torch.randn(BATCH, KEY, D_MODEL)
    attention(x).square().sum().backward()
    assert temperature.grad is not None
    assert bool(temperature.grad.abs().gt(0).all())
    before = attention(x).detach()
    with torch.no_grad():
        temperature[1] += 1.0
    seen: list[Attended] = []
    attention.tap = seen.append
    assert not torch.allclose(attention(x), before)
    q = attention.q(x).unflatten(-1, (3, D_K))
    k = attention.k(x).unflatten(-1, (3, D_K))
    factors = torch.tensor([1.0, math.e, 1.0]) / math.sqrt(D_K)
    wanted = torch.einsum("bihd,bjhd,h->bhij", q, k, factors)
    torch.testing.assert_close(seen[0].logits(), wanted, rtol=1e-4, atol=1e-5)


LEARNED = {
    "learned": {"log_scale": (3,)},
    "learned_shared": {"log_scale": (1,)},
    "cosine": {"log_scale": (3,)},
    "qknorm": {"gain": (1,)},
    "qk_layernorm": {"q_gain": (D_K,), "k_gain": (D_K,)},
    "qk_rmsnorm": {"q_gain": (D_K,), "k_gain": (D_K,)},
    "ngpt": {"scale": (3, D_K)},
    "score_layernorm": {"gain": (3,)},
    "score_batchnorm": {"gain": (3,)},
    "nap": {"gain": (3,), "bias": (3,)},
    "ssmax": {"gain": (3,)},
}


@pytest.mark.parametrize("scale", SCALES)
def test_what_each_mode_learns(scale: str | float) -> None:
    attention = MultiHeadAttention(
        d_model=D_MODEL,
        n_heads=3,
        d_k=D_K,
        d_v=D_V,
        scale=scale,
        options=options_of(scale),
        statistics=STATISTICS,
    )
    learned = {name: tuple(parameter.shape) for name, parameter in attention.scale.items()}
    assert learned == LEARNED.get(str(scale), {})
    projections = {id(p) for found in attention.projections().values() for p in found}
    others = [p for p in attention.parameters() if id(p) not in projections]
    assert [id(p) for p in others] == [id(p) for p in attention.temperatures()]
    assert all(p.requires_grad for p in others)


START = {
    "learned": D_K**-0.5,
    "learned_shared": D_K**-0.5,
    "cosine": 10.0,
    "qknorm": math.log2(26**2 - 26),
    "qk_layernorm": 1.0,
    "qk_rmsnorm": 1.0,
    "ngpt": 1.0,
    "score_layernorm": 1.0,
    "score_batchnorm": 1.0,
    "nap": 1.0,
    "ssmax": 0.379,
}


@pytest.mark.parametrize("scale", SCALES)
def test_the_temperature_of_a_module(scale: str | float) -> None:
    attention = MultiHeadAttention(
        d_model=D_MODEL,
        n_heads=3,
        d_k=D_K,
        d_v=D_V,
        scale=scale,
        options=options_of(scale),
        statistics=STATISTICS,
    )
    temperature = attention.temperature()
    if scale not in START:
        assert temperature is None
        return
    assert temperature is not None
    assert not temperature.requires_grad
    torch.testing.assert_close(temperature, torch.full((3,), START[str(scale)]))
    # It is what the parameters have become, not what they started as.
    before = temperature.clone()
    with torch.no_grad():
        for parameter in attention.temperatures():
            parameter.mul_(1.1)
    moved = attention.temperature()
    assert moved is not None
    assert bool((moved != before).all())


@pytest.mark.parametrize("cap", [0.01, 1.5, 50])
def test_softcap_is_bounded_and_keeps_the_order(cap: float) -> None:
    q, k = torch.randn(BATCH, 3, QUERY, D_K), torch.randn(BATCH, 3, KEY, D_K)
    q, k = q.double() * 5, k.double() * 5
    made = logits(q, k, "softcap", {"cap": cap})
    plain = logits(q, k, "sqrt", {})
    assert float(made.abs().max()) <= cap
    assert float(plain.abs().max()) > cap or cap == 50
    assert torch.equal(made.sign(), plain.sign())
    assert bool((made.abs() <= plain.abs() + 1e-12).all())
    torch.testing.assert_close(made, cap * torch.tanh(plain / cap))


@pytest.mark.parametrize("cap", [1e4, 1e6])
def test_softcap_tends_to_sqrt(cap: float) -> None:
    q, k = torch.randn(BATCH, 3, QUERY, D_K).double(), torch.randn(BATCH, 3, KEY, D_K).double()
    plain = logits(q, k, "sqrt", {})
    made = logits(q, k, "softcap", {"cap": cap})
    # tanh x = x − x³/3 + …
    allowed = float(plain.abs().max()) ** 3 / (3 * cap**2)
    torch.testing.assert_close(made, plain, rtol=1e-12, atol=allowed)


def test_softcap_comes_before_the_mask() -> None:
    q, k = torch.randn(BATCH, 3, QUERY, D_K), torch.randn(BATCH, 3, KEY, D_K)
    keep = torch.rand(BATCH, 3, QUERY, KEY) < 0.5
    keep[..., 0] = True
    seen: list[Attended] = []
    attend(
        q,
        k,
        torch.randn(BATCH, 3, KEY, D_V),
        scale="softcap",
        values={"cap": 0.1},
        keep=keep,
        tap=seen.append,
    )
    weights = seen[0].weights()
    assert weights[~keep].abs().max() == 0
    assert weights[keep].min() > 0
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(BATCH, 3, QUERY))


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("sqr", "sqrt"),
        ("squareroot", "sqrt"),
        ("non", "none"),
        ("inverted", "inverse"),
        ("learn", "learned"),
        ("qk_norm", "qknorm"),
        ("cosin", "cosine"),
        ("soft_cap", "softcap"),
        ("", ""),
    ],
)
def test_refuses_an_unknown_name(wrong: str, near: str) -> None:
    with pytest.raises(
        ValueError, match=rf"^attention\.scale={wrong}: no such scale mode"
    ) as caught:
        resolve_scale(wrong)
    assert f"Allowed: {NAMES}, or a positive number" in str(caught.value)
    assert f"Did you mean '{near}" in str(caught.value)


@pytest.mark.parametrize("wrong", [True, False, math.nan, math.inf, -math.inf, 0, 0.0, -1, -0.5])
def test_refuses_a_number_that_is_no_scale(wrong: float) -> None:
    with pytest.raises(
        ValueError, match=rf"^attention\.scale={wrong}: .*positive and finite.*{NAMES}"
    ):
        resolve_scale(wrong)
    with pytest.raises(ValueError, match="positive and finite"):
        MultiHeadAttention(d_model=D_MODEL, n_heads=1, d_k=D_K, d_v=D_V, scale=wrong)


@pytest.mark.parametrize("name", SCALE_MODES)
def test_a_record_is_found_by_its_name(name: str) -> None:
    mode = resolve_scale(name)
    assert mode is SCALE_MODES[name]
    assert mode.name == name
    assert mode.formula
    assert mode.source
    assert mode.fusible == (mode.score is None and mode.normaliser is None)


def test_a_number_is_a_mode_with_its_own_name() -> None:
    mode = resolve_scale(0.125)
    assert mode.name == "0.125"
    assert mode.formula == "0.125 · r"
    assert mode.fusible
    assert resolve_scale(2).name == "2"


def test_a_record_has_one_kind_of_function() -> None:
    sqrt, softcap = SCALE_MODES["sqrt"], SCALE_MODES["softcap"]
    with pytest.raises(ValueError, match="'neither' needs either a q/k or a score function"):
        ScaleMode(name="neither", formula="", source="", deviation=sqrt.deviation)
    with pytest.raises(ValueError, match="'both' needs either a q/k or a score function"):
        ScaleMode(
            name="both",
            formula="",
            source="",
            deviation=sqrt.deviation,
            qk=sqrt.qk,
            score=softcap.score,
        )


def test_options_are_returned_once_checked() -> None:
    given = {"cap": 30}
    checked = check_options(SCALE_MODES["softcap"], given)
    assert checked == given
    assert checked is not given
    assert check_options(SCALE_MODES["sqrt"], {}) == {}


def test_refuses_an_unknown_option() -> None:
    with pytest.raises(
        ValueError, match=r"^attention\.options\.softcap\.cup: unknown option; 'softcap' has: cap$"
    ):
        check_options(SCALE_MODES["softcap"], {"cap": 1.0, "cup": 2.0})
    with pytest.raises(
        ValueError, match=r"^attention\.options\.sqrt\.cap: unknown option; 'sqrt' has: none$"
    ):
        check_options(SCALE_MODES["sqrt"], {"cap": 1.0})


def test_refuses_a_missing_option() -> None:
    with pytest.raises(
        ValueError, match=r"^attention\.options\.softcap\.cap is missing: a positive number$"
    ):
        check_options(SCALE_MODES["softcap"], {})
    with pytest.raises(ValueError, match=r"attention\.options\.softcap\.cap is missing"):
        MultiHeadAttention(d_model=D_MODEL, n_heads=1, d_k=D_K, d_v=D_V, scale="softcap")


ALL_OPTIONS = [(name, option) for name, mode in SCALE_MODES.items() for option in mode.options]


@pytest.mark.parametrize("wrong", [0, 0.0, -1.0, math.nan, math.inf, True])
@pytest.mark.parametrize(("name", "option"), ALL_OPTIONS)
def test_refuses_an_option_that_is_not_allowed(name: str, option: str, wrong: float) -> None:
    allowed = {
        "log_n_base": "a number above 1",
        "score_batchnorm.momentum": "a number above 0, at most 1",
    }
    words = allowed.get(name, allowed.get(f"{name}.{option}", "a positive number"))
    with pytest.raises(
        ValueError, match=rf"^attention\.options\.{name}\.{option}={wrong}: allowed is {words}$"
    ):
        check_options(SCALE_MODES[name], options_of(name) | {option: wrong})


def test_refuses_an_option_beyond_its_bound() -> None:
    with pytest.raises(ValueError, match=r"log_n_base\.base=1\.0: allowed is a number above 1$"):
        check_options(SCALE_MODES["log_n_base"], {"base": 1.0})
    assert check_options(SCALE_MODES["log_n_base"], {"base": 1.01}) == {"base": 1.01}
    momentum = {"eps": 1e-5, "momentum": 1.0}
    assert check_options(SCALE_MODES["score_batchnorm"], momentum) == momentum
    with pytest.raises(ValueError, match=r"momentum=1\.01: allowed is .* at most 1$"):
        check_options(SCALE_MODES["score_batchnorm"], momentum | {"momentum": 1.01})


@pytest.mark.parametrize("length", [None, 1.9])
def test_refuses_a_statistic_that_is_missing_or_too_small(length: float | None) -> None:
    statistics = {} if length is None else {"length_p97_5": length}
    with pytest.raises(
        ValueError, match=rf"^attention\.scale=qknorm: needs .* length_p97_5 .* got {length}$"
    ):
        MultiHeadAttention(
            d_model=D_MODEL, n_heads=1, d_k=D_K, d_v=D_V, scale="qknorm", statistics=statistics
        )
