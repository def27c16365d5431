"""What a mode is and how one is chosen: factors, starts, options, refusals."""

import math
import pickle

import pytest
import torch
from torch import Tensor

from attnscale.attention import (
    SCALES,
    MultiHeadAttention,
    Scale,
    ScaleFactory,
    choose_scale,
    name_of,
)
from attnscale.attention.scale import (
    ArgumentError,
    Constant,
    LogNBase,
    QKNorm,
    ScoreBatchNorm,
    SoftCap,
    Sqrt,
    all_options,
    options_of,
)
from tests.support.modes import (
    BATCH,
    BUFFERED,
    D_K,
    D_V,
    KEY,
    LINEAR,
    NO_SOFTMAX,
    QUERY,
    UNFUSIBLE,
    Mode,
    attended_of,
    every_mode,
    factor_of,
    factory_of,
    new_scale,
)

D_MODEL, HEADS = 40, 3
NAMES = ", ".join(SCALES)
FACTORS: tuple[Mode, ...] = (*LINEAR, 3)


def attention_of(mode: Mode, heads: int = HEADS, **options: float) -> MultiHeadAttention:
    scale = factory_of(mode, **options)
    return MultiHeadAttention(d_model=D_MODEL, n_heads=heads, d_k=D_K, d_v=D_V, scale=scale)


def logits_of(attention: MultiHeadAttention, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scores of an attention, from its weights, and the logits that a tap receives."""
    logits: list[Tensor] = []
    attention.tap = lambda attended: logits.append(attended.logits())
    attention(x)
    q, k = (layer(x).unflatten(-1, (-1, D_K)) for layer in (attention.q, attention.k))
    return torch.einsum("bihd,bjhd->bhij", q, k), logits[0]


# --- factors ---


@pytest.mark.parametrize("heads", [1, 4, 8])
@pytest.mark.parametrize("mode", FACTORS)
def test_the_factor_comes_from_the_size_of_a_query(mode: Mode, heads: int) -> None:
    for d_k in (1, 2, 11, 64, 257):
        q = torch.randn(BATCH, heads, QUERY, d_k, dtype=torch.float64)
        k = torch.randn(BATCH, heads, KEY, d_k, dtype=torch.float64)
        logits = attended_of(q, k, new_scale(mode, heads, d_k, d_model=D_MODEL)).logits()
        wanted = torch.einsum("bhid,bhjd->bhij", q, k) * factor_of(mode, d_k, D_MODEL)
        torch.testing.assert_close(logits, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("mode", "heads"),
    [*((m, 4) for m in FACTORS), *((m, h) for m in ("sqrt", "learned") for h in (1, 8))],
)
def test_the_factor_of_a_module_comes_from_its_d_k(mode: Mode, heads: int) -> None:
    assert D_K not in {D_V, D_MODEL // heads, D_MODEL}
    scores, logits = logits_of(attention_of(mode, heads), torch.randn(BATCH, KEY, D_MODEL))
    wanted = scores * factor_of(mode, D_K, D_MODEL)
    torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("heads", [1, 4, 8])
def test_the_cap_of_a_module_is_that_of_its_d_k(heads: int) -> None:
    attention = attention_of("softcap", heads, cap=0.8)
    scores, logits = logits_of(attention, torch.randn(BATCH, KEY, D_MODEL))
    wanted = 0.8 * torch.tanh(scores / math.sqrt(D_K) / 0.8)
    torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("mode", "variance"),
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
def test_the_variance_of_logits(mode: str, variance: float) -> None:
    groups, n, d_k = 16, 64, 512
    q, k = torch.randn(4, 4, n, d_k), torch.randn(4, 4, n, d_k)
    logits = attended_of(q, k, new_scale(mode, 4, d_k, d_model=D_MODEL)).logits()
    ratio = float(logits.square().mean()) / variance
    # r = q·k has variance d; r² has variance 2d² + 6d, and two r² that share a q or a k have
    # covariance 2d. Of each of the groups × n² scores, 2(n − 1) others share one.
    deviation = math.sqrt((2 + 6 / d_k + 2 * (n - 1) * 2 / d_k) / (groups * n**2))
    assert abs(ratio - 1) < 5 * deviation, f"{ratio} times {variance}, allowed 1 ± {5 * deviation}"
    assert abs(float(logits.mean())) < 5 * math.sqrt(variance / (groups * n**2))


# --- what is learned ---


def test_learned_starts_as_sqrt_in_every_head_and_learns() -> None:
    attention = attention_of("learned")
    (log_scale,) = attention.scale.parameters()
    assert log_scale.shape == (HEADS,)
    torch.testing.assert_close(log_scale.exp(), torch.full((HEADS,), 1 / math.sqrt(D_K)))

    x = torch.randn(BATCH, KEY, D_MODEL)
    attention(x).square().sum().backward()
    assert log_scale.grad is not None
    assert bool(log_scale.grad.abs().gt(0).all())
    before = attention(x).detach()
    with torch.no_grad():
        log_scale[1] += 1.0
    assert not torch.allclose(attention(x), before)
    scores, logits = logits_of(attention, x)
    factors = torch.tensor([1.0, math.e, 1.0])[:, None, None] / math.sqrt(D_K)
    torch.testing.assert_close(logits, factors * scores, rtol=1e-4, atol=1e-5)


LEARNED = {
    "learned": {"scale.log_scale": (HEADS,)},
    "learned_shared": {"scale.log_scale": (1,)},
    "cosine": {"scale.log_scale": (HEADS,)},
    "qknorm": {"scale.gain": (1,)},
    "qk_layernorm": {"scale.q_gain": (D_K,), "scale.k_gain": (D_K,)},
    "qk_rmsnorm": {"scale.q_gain": (D_K,), "scale.k_gain": (D_K,)},
    "ngpt": {"scale.scale": (HEADS, D_K)},
    "score_layernorm": {"scale.gain": (HEADS,)},
    "score_batchnorm": {"scale.gain": (HEADS,)},
    "nap": {
        **{"scale.gain": (HEADS,), "scale.bias": (HEADS,)},
        **{f"output_norm.{name}": (HEADS * D_V,) for name in ("weight", "bias")},
    },
    "ssmax": {"scale.gain": (HEADS,)},
}
"""Names in a state dict: what is renamed here no longer loads."""
KEPT = {
    "score_batchnorm": {"scale.running_mean": (HEADS,), "scale.running_variance": (HEADS,)},
}


@every_mode
def test_what_each_mode_learns_and_keeps(mode: Mode) -> None:
    attention = attention_of(mode)
    projections = {"q.weight", "k.weight", "v.weight", "o.weight"}
    parameters = {name: p for name, p in attention.named_parameters() if name not in projections}
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    assert shapes == LEARNED.get(str(mode), {})
    assert all(parameter.requires_grad for parameter in parameters.values())
    buffers = {name: tuple(buffer.shape) for name, buffer in attention.named_buffers()}
    assert buffers == KEPT.get(str(mode), {})
    assert set(attention.state_dict()) == projections | set(shapes) | set(buffers)
    own = {f"scale.{name}": p for name, p in attention.scale.named_parameters()}
    assert own == {name: p for name, p in parameters.items() if not name.startswith("output_norm")}


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


@every_mode
def test_the_learned_scale_of_a_module(mode: Mode) -> None:
    attention = attention_of(mode)
    at_start = attention.learned_scale()
    if mode not in START:
        assert at_start is None
        return
    assert at_start is not None
    assert not at_start.requires_grad
    torch.testing.assert_close(at_start, torch.full((HEADS,), START[str(mode)]))
    # It is what the parameters have become, not what they started as.
    before = at_start.clone()
    with torch.no_grad():
        for parameter in attention.scale.parameters():
            parameter.mul_(1.1)
    moved = attention.learned_scale()
    assert moved is not None
    assert torch.equal(at_start, before)
    assert bool((moved != before).all())


# --- softcap ---


@pytest.mark.parametrize("cap", [0.01, 1.5, 50])
def test_softcap_is_bounded_and_keeps_the_order(cap: float) -> None:
    q, k = torch.randn(BATCH, 3, QUERY, D_K), torch.randn(BATCH, 3, KEY, D_K)
    q, k = q.double() * 5, k.double() * 5
    logits = attended_of(q, k, SoftCap(d_k=D_K, cap=cap)).logits()
    plain = attended_of(q, k, "sqrt").logits()
    assert float(logits.abs().max()) <= cap
    assert float(plain.abs().max()) > cap or cap == 50
    assert torch.equal(logits.sign(), plain.sign())
    assert bool((logits.abs() <= plain.abs() + 1e-12).all())
    torch.testing.assert_close(logits, cap * torch.tanh(plain / cap))


@pytest.mark.parametrize("cap", [1e4, 1e6])
def test_softcap_tends_to_sqrt(cap: float) -> None:
    q, k = torch.randn(BATCH, 3, QUERY, D_K).double(), torch.randn(BATCH, 3, KEY, D_K).double()
    plain = attended_of(q, k, "sqrt").logits()
    logits = attended_of(q, k, SoftCap(d_k=D_K, cap=cap)).logits()
    # tanh x = x − x³/3 + …
    allowed = float(plain.abs().max()) ** 3 / (3 * cap**2)
    torch.testing.assert_close(logits, plain, rtol=1e-12, atol=allowed)


def test_softcap_comes_before_the_mask() -> None:
    q, k = torch.randn(BATCH, 3, QUERY, D_K), torch.randn(BATCH, 3, KEY, D_K)
    keep = torch.rand(BATCH, 3, QUERY, KEY) < 0.5
    keep[..., 0] = True
    weights = attended_of(q, k, SoftCap(d_k=D_K, cap=0.1), keep).weights()
    assert weights[~keep].abs().max() == 0
    assert weights[keep].min() > 0
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(BATCH, 3, QUERY))


# --- how a mode is chosen ---


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
        choose_scale(wrong)
    assert f"Allowed: {NAMES}, or a positive number" in str(caught.value)
    assert f"Did you mean '{near}" in str(caught.value)


@pytest.mark.parametrize("wrong", [True, False, math.nan, math.inf, -math.inf, 0, 0.0, -1, -0.5])
def test_refuses_a_number_that_is_no_scale(wrong: float) -> None:
    with pytest.raises(
        ValueError, match=rf"^attention\.scale={wrong}: .*positive and finite.*{NAMES}"
    ):
        choose_scale(wrong)
    with pytest.raises(ValueError, match="positive and finite"):
        MultiHeadAttention(d_model=D_MODEL, n_heads=1, d_k=D_K, d_v=D_V, scale=wrong)


@pytest.mark.parametrize("name", SCALES)
def test_a_mode_is_found_by_its_name(name: str) -> None:
    factory = choose_scale(name)
    kind = SCALES[name]
    assert (factory.name, factory.kind, factory.options) == (name, kind, {})
    scale = new_scale(name)
    assert type(scale) is kind
    assert name_of(scale) == name
    # Its own words, not those of a mode that it derives from.
    assert kind.__dict__["formula"]
    assert kind.__dict__["source"]
    assert kind.fusible == (name not in UNFUSIBLE)
    assert kind.is_softmax == (name not in NO_SOFTMAX)
    assert kind.over_batch == (name in BUFFERED)
    assert kind.statistics == ({"length": "length_p97_5"} if name == "qknorm" else {})


def test_a_number_is_a_mode_with_its_own_name() -> None:
    factory = choose_scale(0.125)
    assert factory.name == "0.125"
    scale = factory(n_heads=HEADS, d_k=D_K)
    assert type(scale) is Constant
    assert name_of(scale) == "0.125"
    assert scale.fusible
    assert choose_scale(2).name == "2"
    assert Constant.formula
    assert Constant.source


def test_a_factory_makes_another_scale_each_time() -> None:
    factory = choose_scale("learned")
    first, second = (factory(n_heads=HEADS, d_k=D_K) for _ in range(2))
    assert first is not second
    assert {id(p) for p in first.parameters()}.isdisjoint(id(p) for p in second.parameters())


def test_an_attention_takes_a_name_a_number_a_factory_or_a_scale() -> None:
    own = SoftCap(d_k=D_K, cap=3.0)
    factory = ScaleFactory(name="mine", kind=SoftCap, options={"cap": 4.0})
    cases: list[tuple[str | float | ScaleFactory | Scale, type[Scale]]] = [
        ("learned", SCALES["learned"]),
        (0.25, Constant),
        (2, Constant),
        (factory, SoftCap),
        (own, SoftCap),
    ]
    for scale, kind in cases:
        attention = MultiHeadAttention(
            d_model=D_MODEL, n_heads=HEADS, d_k=D_K, d_v=D_V, scale=scale
        )
        assert type(attention.scale) is kind
        assert (attention.scale is scale) == (scale is own)
        if scale is factory:
            assert isinstance(attention.scale, SoftCap)
            assert attention.scale.cap == 4.0


def test_a_scale_says_what_it_needs_to_be_made() -> None:
    with pytest.raises(ValueError, match=r"^attention\.scale=ngpt: needs d_model$"):
        choose_scale("ngpt")(n_heads=HEADS, d_k=D_K)
    with pytest.raises(ValueError, match=r"^attention\.scale=sqrt_d_model: needs d_model$"):
        choose_scale("sqrt_d_model")(n_heads=HEADS, d_k=D_K)


# --- options ---


def test_options_start_as_the_papers_have_them() -> None:
    assert all_options() == {
        "mup": {"base_d_k": 64.0},
        "cosine": {"start": 10.0, "largest": 100.0},
        "cosine_fixed": {"factor": 10.0},
        "qk_layernorm": {"eps": 1e-6, "over_heads": 0, "scalar": 0},
        "qk_rmsnorm": {"eps": 1e-6, "over_heads": 0, "scalar": 0},
        "softcap": {"cap": 50.0, "scalar": 0},
        "score_layernorm": {"eps": 1e-6},
        "score_batchnorm": {"eps": 1e-5, "momentum": 0.1},
        "nap": {"eps": 1e-3, "output_norm": 1},
        "log_n_base": {"base": 14.0},
        "ssmax": {"start": 0.379},
    }
    assert options_of(SCALES["ssmax"])["start"] == pytest.approx(1 / math.log(14), abs=5e-4)


def test_options_that_are_left_out_have_their_defaults() -> None:
    scale = choose_scale("score_batchnorm", {"momentum": 0.3})(n_heads=HEADS, d_k=D_K)
    assert isinstance(scale, ScoreBatchNorm)
    assert (scale.momentum, scale.eps) == (0.3, 1e-5)


def test_a_factory_keeps_its_own_options() -> None:
    options = {"cap": 30.0}
    factory = choose_scale("softcap", options)
    options["cap"] = 20.0
    assert factory.options == {"cap": 30.0}


def test_refuses_an_unknown_option() -> None:
    with pytest.raises(
        ValueError,
        match=r"^attention\.options\.softcap\.cup: unknown option; 'softcap' has: cap, scalar$",
    ):
        choose_scale("softcap", {"cap": 1.0, "cup": 2.0})
    with pytest.raises(
        ValueError, match=r"^attention\.options\.sqrt\.cap: unknown option; 'sqrt' has: none$"
    ):
        choose_scale("sqrt", {"cap": 1.0})
    # What an attention or the data knows is no option.
    with pytest.raises(ValueError, match=r"^attention\.options\.qknorm\.length: unknown option"):
        choose_scale("qknorm", {"length": 26.0})


BOUNDS = {
    ("log_n_base", "base"): "a number above 1",
    ("score_batchnorm", "momentum"): "a number above 0, at most 1",
    ("nap", "output_norm"): "0 or 1",
    ("qk_rmsnorm", "over_heads"): "0 or 1",
    ("softcap", "scalar"): "a positive number, or 0 for d_k",
}
MAY_BE_ZERO = ("output_norm", "over_heads", "scalar")
EVERY_OPTION = [(name, option) for name, options in all_options().items() for option in options]
# Of each kind of bound one option.
OF_EACH_KIND = [("softcap", "cap"), *BOUNDS]
REFUSED = [
    *((name, option, 0.0) for name, option in EVERY_OPTION if option not in MAY_BE_ZERO),
    *(
        (name, option, wrong)
        for name, option in OF_EACH_KIND
        for wrong in (0, -1.0, math.nan, math.inf, True)
        if wrong != 0 or option not in MAY_BE_ZERO
    ),
]


@pytest.mark.parametrize(("name", "option", "wrong"), REFUSED)
def test_refuses_an_option_that_is_not_allowed(name: str, option: str, wrong: float) -> None:
    words = f"{option}={wrong}: allowed is {BOUNDS.get((name, option), 'a positive number')}"
    factory = choose_scale(name, {option: wrong})
    with pytest.raises(ValueError, match=rf"^attention\.options\.{name}\.{words}$") as caught:
        factory(n_heads=HEADS, d_k=D_K, d_model=D_MODEL)
    # What the constructor itself says does not know of a configuration.
    cause = caught.value.__cause__
    assert isinstance(cause, ArgumentError)
    assert (str(cause), cause.argument) == (words, option)


def test_refuses_an_option_beyond_its_bound() -> None:
    with pytest.raises(ArgumentError, match=r"^base=1\.0: allowed is a number above 1$"):
        LogNBase(base=1.0)
    assert LogNBase(base=1.01).base == 1.01
    assert ScoreBatchNorm(n_heads=HEADS, momentum=1.0).momentum == 1.0
    with pytest.raises(ArgumentError, match=r"^momentum=1\.01: allowed is .* at most 1$"):
        ScoreBatchNorm(n_heads=HEADS, momentum=1.01)


# --- what the data must supply ---


def test_refuses_to_make_a_scale_without_the_data_that_it_needs() -> None:
    with pytest.raises(
        ValueError,
        match=r"^attention\.scale=qknorm: needs the statistic length_p97_5 of the data$",
    ):
        MultiHeadAttention(d_model=D_MODEL, n_heads=1, d_k=D_K, d_v=D_V, scale="qknorm")


@pytest.mark.parametrize("length", [1.9, math.nan, math.inf])
def test_refuses_a_statistic_that_is_no_good(length: float) -> None:
    words = f"length={length}: allowed is a number from 2"
    factory = choose_scale("qknorm", statistics={"length_p97_5": length})
    with pytest.raises(
        ValueError,
        match=rf"^attention\.scale=qknorm: the statistic length_p97_5 .* is no good: {words}$",
    ):
        factory(n_heads=1, d_k=D_K)
    with pytest.raises(ArgumentError, match=rf"^{words}$"):
        QKNorm(length=length)


def test_more_statistics_than_a_mode_needs_may_be_supplied() -> None:
    statistics = {"length_p97_5": 26.0, "another": 3.0}
    for name in ("sqrt", "qknorm"):
        assert choose_scale(name, statistics=statistics)(n_heads=1, d_k=D_K).fusible


def test_a_number_has_no_options() -> None:
    with pytest.raises(ValueError, match=r"^attention\.scale=0\.37: a number has no options$"):
        choose_scale(0.37, {"cap": 1.0})


def test_a_refusal_passes_between_processes() -> None:
    with pytest.raises(ArgumentError, match="cap=-1: allowed is a positive number") as caught:
        SoftCap(d_k=D_K, cap=-1)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (str(copied), copied.argument) == (str(caught.value), "cap")


def test_a_scale_may_say_that_it_cannot_be_fused() -> None:
    class Slow(Sqrt):
        fusible = False

    class Slower(Slow):
        pass

    assert Sqrt.fusible
    assert not Slow.fusible
    assert not Slower.fusible
