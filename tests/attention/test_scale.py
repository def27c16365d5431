import math
from collections.abc import Mapping

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

BATCH, QUERY, KEY, D_K, D_V, D_MODEL = 2, 5, 7, 11, 13, 40
NAMES = "sqrt, none, inverse, learned, softcap"
LINEAR: tuple[str | float, ...] = ("sqrt", "none", "inverse", "learned", 0.37, 3)


def factor_of(scale: str | float, d_k: int) -> float:
    if not isinstance(scale, str):
        return scale
    return {
        "sqrt": 1 / math.sqrt(d_k),
        "none": 1.0,
        "inverse": 1 / d_k,
        "learned": 1 / math.sqrt(d_k),
    }[scale]


def values_of(scale: str | float, heads: int, d_k: int) -> Mapping[str, Tensor | float]:
    mode = resolve_scale(scale)
    return {} if mode.parameters is None else mode.parameters(heads, d_k)


def logits(
    q: Tensor, k: Tensor, scale: str | float, values: Mapping[str, Tensor | float]
) -> Tensor:
    """Return the logits as a tap sees them."""
    seen: list[Attended] = []
    attend(q, k, torch.zeros(*k.shape[:3], D_V).to(k), scale=scale, values=values, tap=seen.append)
    return seen[0].logits()


@pytest.mark.parametrize("d_k", [1, 2, 11, 64, 257])
@pytest.mark.parametrize("heads", [1, 4, 8])
@pytest.mark.parametrize("scale", LINEAR)
def test_the_factor_comes_from_the_size_of_a_query(
    scale: str | float, heads: int, d_k: int
) -> None:
    q = torch.randn(BATCH, heads, QUERY, d_k, dtype=torch.float64)
    k = torch.randn(BATCH, heads, KEY, d_k, dtype=torch.float64)
    made = logits(q, k, scale, values_of(scale, heads, d_k))
    wanted = torch.einsum("bhid,bhjd->bhij", q, k) * factor_of(scale, q.shape[-1])
    torch.testing.assert_close(made, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("heads", [1, 4, 8])
@pytest.mark.parametrize("scale", [*LINEAR, "softcap"])
def test_the_factor_of_a_module_comes_from_its_d_k(scale: str | float, heads: int) -> None:
    assert D_K not in {D_V, D_MODEL // heads, D_MODEL}
    attention = MultiHeadAttention(
        d_model=D_MODEL,
        n_heads=heads,
        d_k=D_K,
        d_v=D_V,
        scale=scale,
        options={"cap": 0.8} if scale == "softcap" else None,
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
        wanted = scores * factor_of(scale, D_K)
    torch.testing.assert_close(seen[0].logits(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("scale", "variance"), [("none", 512.0), ("sqrt", 1.0), ("learned", 1.0), ("inverse", 1 / 512)]
)
def test_the_variance_of_logits(scale: str, variance: float) -> None:
    groups, n, d_k = 16, 64, 512
    q, k = torch.randn(4, 4, n, d_k), torch.randn(4, 4, n, d_k)
    made = logits(q, k, scale, values_of(scale, 4, d_k))
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


@pytest.mark.parametrize("scale", ["sqrt", "none", "inverse", "softcap", 0.5])
def test_only_learned_has_temperatures(scale: str | float) -> None:
    options = {"cap": 1.0} if scale == "softcap" else None
    attention = MultiHeadAttention(
        d_model=D_MODEL, n_heads=3, d_k=D_K, d_v=D_V, scale=scale, options=options
    )
    assert attention.temperatures() == []


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
    assert mode.fusible == (mode.score is None)


def test_a_number_is_a_mode_with_its_own_name() -> None:
    mode = resolve_scale(0.125)
    assert mode.name == "0.125"
    assert mode.formula == "0.125 · r"
    assert mode.fusible
    assert resolve_scale(2).name == "2"


def test_a_record_has_one_kind_of_function() -> None:
    sqrt, softcap = SCALE_MODES["sqrt"], SCALE_MODES["softcap"]
    with pytest.raises(ValueError, match="'neither' needs either a q/k or a score function"):
        ScaleMode(name="neither", formula="", source="")
    with pytest.raises(ValueError, match="'both' needs either a q/k or a score function"):
        ScaleMode(name="both", formula="", source="", qk=sqrt.qk, score=softcap.score)


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


@pytest.mark.parametrize("wrong", [0, 0.0, -1.0, math.nan, math.inf, True])
def test_refuses_an_option_that_is_not_positive(wrong: float) -> None:
    with pytest.raises(
        ValueError,
        match=rf"^attention\.options\.softcap\.cap={wrong}: allowed is a positive number$",
    ):
        check_options(SCALE_MODES["softcap"], {"cap": wrong})
