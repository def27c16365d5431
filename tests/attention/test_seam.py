"""A scale of this project in somebody's own model, and somebody's own scale in this one."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from attnscale.attention import (
    SCALES,
    Attended,
    Moments,
    MultiHeadAttention,
    Scale,
    ScaleFactory,
    attend,
    name_of,
    scores_of,
)
from attnscale.attention.scale import NAP, Learned, QKNorm, ScoreBatchNorm, Sqrt
from attnscale.attention.stats import logit_std, measure, predicted_std, sample_of
from tests.support.modes import (
    BACKENDS,
    BATCH,
    D_K,
    D_MODEL,
    D_V,
    FUSIBLE,
    HEADS,
    KEY,
    MASKS,
    NO_SOFTMAX,
    QUERY,
    Mode,
    after_heads,
    assert_same,
    attended_of,
    buffers_put_back,
    build,
    draw,
    every_mode,
    every_state,
    full_mask,
    mask,
    moved_scale,
    new_scale,
    representative,
)

# --- in somebody's own model ---


def test_qknorm_by_hand() -> None:
    q, k, _ = draw(dtype=torch.float32)
    scale = QKNorm(length=40)
    weights = scale(q, k).softmax(-1)
    cosines = nn.functional.cosine_similarity(q[..., None, :], k[:, :, None], dim=-1)
    torch.testing.assert_close(weights, (math.log2(40**2 - 40) * cosines).softmax(-1))
    (gradient,) = torch.autograd.grad(weights.square().sum(), scale.gain)
    assert bool(gradient.abs().gt(0).all())


class Textbook(nn.Module):
    """Somebody's own attention of one head, which knows of ``attend`` nothing."""

    def __init__(self, scale: nn.Module) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D_MODEL, D_K, bias=False) for _ in range(3))
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.q(x)[:, None], self.k(x)[:, None]
        logits: Tensor = self.scale(q, k)
        weighted: Tensor = logits.softmax(-1)[:, 0] @ self.v(x)
        return weighted


@every_mode
def test_every_mode_trains_in_somebodys_own_model(mode: Mode) -> None:
    scale = new_scale(mode, n_heads=1)
    model = Textbook(scale)
    x = torch.randn(BATCH, KEY, D_MODEL)
    # What ``nap`` learns is in its weights, and this model makes its own.
    learned = [] if mode in NO_SOFTMAX else list(scale.parameters())
    model(x).square().sum().backward()
    for parameter in (*model.q.parameters(), *model.k.parameters(), *learned):
        assert parameter.grad is not None
        assert bool(parameter.grad.abs().gt(0).all())
    assert {f"scale.{name}" for name in scale.state_dict()} <= set(model.state_dict())


@every_state
def test_forward_is_its_parts_and_what_a_tap_receives(mode: Mode, training: bool) -> None:
    scale = moved_scale(mode, training=training)
    for kind in MASKS:
        q, k, _ = draw()
        keep, causal = mask(kind)
        with buffers_put_back(scale):
            attended = attended_of(q, k, scale, keep, causal=causal, backend="explicit")
        keep = attended.keep
        q_scaled, k_scaled = scale.qk(q, k, keep)
        with buffers_put_back(scale):
            logits = scale.logits(scores_of(q_scaled, k_scaled), keep)
        with buffers_put_back(scale):
            forward = scale(q, k, keep)
        assert torch.equal(forward, logits)
        assert torch.equal(attended.logits(), logits)
        assert torch.equal(attended.q, q_scaled)
        assert torch.equal(attended.k, k_scaled)
        assert torch.equal(attended.scores(), scores_of(q, k))
        assert torch.equal(attended.weights(), scale.weights(logits, keep))
        if mode in FUSIBLE:
            fused = attended_of(q, k, scale, keep, backend="fused")
            assert torch.equal(fused.logits(), logits)
            assert torch.equal(fused.weights(), scale.weights(logits, keep))


# --- somebody's own scale ---


class Rotated(Scale):
    """Learns one angle by which the first two components of q are turned."""

    formula = "(R r_q) · k / √d_k"
    source = "this test"

    def __init__(self) -> None:
        super().__init__()
        self.angle = nn.Parameter(torch.tensor(0.7))

    def qk(self, q: Tensor, k: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        first, second, rest = q[..., :1], q[..., 1:2], q[..., 2:]
        cos, sin = self.angle.cos(), self.angle.sin()
        turned = torch.cat([cos * first - sin * second, sin * first + cos * second, rest], dim=-1)
        return turned * q.shape[-1] ** -0.5, k

    def predicted_std(self, moments: Moments) -> float:
        return float(moments.d_k**-0.5 * moments.score_std)


class Squashed(Scale):
    """Squashes the scores about the logarithm of the number of kept keys, with a learned gain."""

    formula = "g · asinh(r − ln n)"
    source = "this test"

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(0.4))

    def logits(self, scores: Tensor, keep: Tensor | None = None) -> Tensor:
        kept = torch.ones_like(scores) if keep is None else keep.expand_as(scores)
        n = kept.sum(dim=-1, keepdim=True).clamp_min(1).to(scores.dtype)
        return self.gain * (scores - n.log()).asinh()

    def predicted_std(self, moments: Moments) -> float:
        return float(self.gain.detach()) * moments.score_std


class Sigmoid(Scale):
    """Weights without a softmax, each key by itself."""

    formula = "r / √d_k; weights sigmoid(s + b) instead of a softmax"
    source = "this test"

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor(-1.5))

    def qk(self, q: Tensor, k: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return q * q.shape[-1] ** -0.5, k

    def weights(self, logits: Tensor, keep: Tensor | None = None) -> Tensor:
        weights = (logits + self.bias).sigmoid()
        return weights if keep is None else weights.masked_fill(~keep, 0.0)


class Louder(NAP):
    """A mode of this project with a number changed."""

    formula = "2 r"
    source = "this test"

    def logits(self, scores: Tensor, keep: Tensor | None = None) -> Tensor:
        return 2 * scores


def expected_logits(scale: Scale, q: Tensor, k: Tensor, full: Tensor) -> Tensor:
    """Return the logits of the strangers above, written out again."""
    scores = torch.einsum("bhid,bhjd->bhij", q, k)
    if isinstance(scale, Rotated):
        c, s = scale.angle.cos(), scale.angle.sin()
        turn = torch.eye(q.shape[-1], dtype=q.dtype)
        turned = torch.zeros_like(turn)
        turned[0, 0], turned[1, 1], turned[0, 1], turned[1, 0] = c - 1, c - 1, -s, s
        rotation = turn + turned
        return torch.einsum("bhid,ed,bhje->bhij", q, rotation, k) / math.sqrt(q.shape[-1])
    if isinstance(scale, Squashed):
        n = full.sum(dim=-1, keepdim=True).clamp(min=1)
        return scale.gain * torch.asinh(scores - torch.log(n.double()))
    return scores / math.sqrt(q.shape[-1]) if isinstance(scale, Sigmoid) else 2 * scores


def expected_weights(scale: Scale, logits: Tensor, full: Tensor) -> Tensor:
    if isinstance(scale, Sigmoid):
        return torch.where(full, 1 / (1 + torch.exp(-logits - scale.bias)), 0.0)
    if isinstance(scale, Louder):
        n = full.sum(dim=-1, keepdim=True).clamp(min=1)
        kept = torch.where(full, logits, 0.0)
        centred = torch.where(full, logits - kept.sum(dim=-1, keepdim=True) / n, 0.0)
        variance = centred.square().sum(dim=-1, keepdim=True) / n
        std = torch.where(variance > 0, torch.where(variance > 0, variance, 1.0).sqrt(), 0.0)
        normed = centred / (std + 1e-3) * scale.gain[:, None, None] + scale.bias[:, None, None]
        return torch.where(full, normed, 0.0)
    odds = torch.where(full, logits.exp(), 0.0)
    total = odds.sum(dim=-1, keepdim=True)
    return odds / torch.where(total > 0, total, 1.0)


STRANGERS: dict[str, ScaleFactory] = {
    "Rotated": ScaleFactory(name="rotated", kind=Rotated),
    "Squashed": ScaleFactory(name="squashed", kind=Squashed),
    "Sigmoid": ScaleFactory(name="sigmoid", kind=Sigmoid),
    "Louder": ScaleFactory(name="louder", kind=Louder),
}
every_stranger = pytest.mark.parametrize("name", STRANGERS)


def attention_with(scale: Scale | ScaleFactory) -> MultiHeadAttention:
    return MultiHeadAttention(d_model=D_MODEL, n_heads=HEADS, d_k=D_K, d_v=D_V, scale=scale)


def stranger(name: str) -> Scale:
    return STRANGERS[name](n_heads=HEADS, d_k=D_K).double()


@pytest.mark.parametrize(
    ("name", "backend"), [*((name, "explicit") for name in STRANGERS), ("Rotated", "fused")]
)
def test_attend_takes_somebodys_own_scale(name: str, backend: str) -> None:
    scale = stranger(name)
    for kind in MASKS:
        q, k, v = draw()
        keep, causal = mask(kind)
        full = full_mask(keep, causal)
        logits = expected_logits(scale, q, k, full)
        weights = expected_weights(scale, logits, full)
        received: list[Attended] = []
        out = attend(
            q,
            k,
            v,
            scale=scale,
            keep=keep,
            causal=causal,
            backend=backend,
            tap=received.append,
        )
        assert received[0].scale is scale
        torch.testing.assert_close(received[0].logits(), logits.detach(), rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(received[0].weights(), weights.detach(), rtol=1e-9, atol=1e-11)
        assert_same(out, weights @ v, (q, k, v, *scale.parameters()))


@every_stranger
def test_an_attention_takes_somebodys_own_scale(name: str) -> None:
    scale = stranger(name)
    attention = attention_with(scale).double()
    assert attention.scale is scale
    assert {f"scale.{path}" for path in scale.state_dict()} <= set(attention.state_dict())
    x = torch.randn(BATCH, KEY, D_MODEL, dtype=torch.float64)
    q, k, v = (
        layer(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for layer in (attention.q, attention.k, attention.v)
    )
    full = torch.ones(BATCH, HEADS, KEY, KEY, dtype=torch.bool).tril()
    weights = expected_weights(scale, expected_logits(scale, q, k, full), full)
    wanted = after_heads(attention, (weights @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x, causal=True), wanted, rtol=1e-9, atol=1e-11)
    attention(x, causal=True).square().sum().backward()
    assert all(p.grad is not None for p in attention.scale.parameters())
    assert type(attention_with(STRANGERS[name]).scale) is type(scale)


@pytest.mark.parametrize(
    ("name", "fusible", "is_softmax"),
    [
        ("Rotated", True, True),
        ("Squashed", False, True),
        ("Sigmoid", False, False),
        ("Louder", False, False),
    ],
)
def test_what_a_scale_overrides_says_where_it_may_run(
    name: str, fusible: bool, is_softmax: bool
) -> None:
    scale = stranger(name)
    assert (scale.fusible, scale.is_softmax) == (fusible, is_softmax)
    assert not scale.adjusts_optimizer
    assert name_of(scale) == name
    q, k, v = draw()
    if not fusible:
        with pytest.raises(ValueError, match=rf"^attention\.backend=fused: scale mode '{name}'"):
            attend(q, k, v, scale=scale, backend="fused")
        with pytest.raises(ValueError, match=rf"^attention\.backend=fused: scale mode '{name}'"):
            MultiHeadAttention(
                d_model=3, n_heads=HEADS, d_k=D_K, d_v=2, scale=scale, backend="fused"
            )


def test_a_mode_that_derives_from_another_keeps_what_that_overrides() -> None:
    class Softer(Sqrt):
        def factor(self, d_k: int) -> float:
            return 0.5 * super().factor(d_k)

    assert Softer.fusible
    assert Softer.is_softmax
    q, k, v = draw()
    for backend in BACKENDS:
        torch.testing.assert_close(
            attend(q, k, v, scale=Softer(), backend=backend),
            attend(q, k, v, scale=0.5 * D_K**-0.5, backend=backend),
        )


def test_statistics_are_measured_of_somebodys_own_scale() -> None:
    attention = MultiHeadAttention(
        d_model=128, n_heads=HEADS, d_k=67, d_v=D_V, scale=STRANGERS["Rotated"]
    )
    received: list[Attended] = []
    attention.tap = received.append
    attention(torch.randn(40, KEY, 128))
    (attended,) = received
    assert predicted_std(attended) == pytest.approx(logit_std(attended), rel=0.1)
    assert bool(measure(sample_of(received), ["entropy"])["entropy"].gt(0).all())
    # A scale that predicts nothing says so.
    with pytest.raises(NotImplementedError):
        stranger("Sigmoid").predicted_std(Moments(d_k=D_K))


def test_without_a_softmax_no_weights_are_measured() -> None:
    attended = attended_of(*draw()[:2], stranger("Sigmoid"))
    assert sample_of([attended]).weights is None


# --- copies, and scales that are shared ---


@every_state
def test_a_copy_of_a_scale_is_the_same_and_its_own(mode: Mode, training: bool) -> None:
    q, k, v = draw()
    scale = moved_scale(mode, training=training)
    other = copy.deepcopy(scale)
    assert torch.equal(attend(q, k, v, scale=scale), attend(q, k, v, scale=other))
    state, copied = scale.state_dict(keep_vars=True), other.state_dict(keep_vars=True)
    assert list(state) == list(copied)
    for name, tensor in state.items():
        assert torch.equal(tensor, copied[name])
        assert tensor.data_ptr() != copied[name].data_ptr()
    before = [tensor.clone() for tensor in scale.state_dict().values()]
    with torch.no_grad():
        for tensor in (*other.parameters(), *other.buffers()):
            tensor.add_(1.0)
    assert all(torch.equal(a, b) for a, b in zip(scale.state_dict().values(), before, strict=True))


@representative
def test_a_copy_of_an_attention_is_the_same_and_its_own(mode: Mode) -> None:
    attention = build(mode)
    other = copy.deepcopy(attention)
    x = torch.randn(BATCH, KEY, D_MODEL)
    assert torch.equal(attention(x), other(x))
    assert other.scale is not attention.scale
    storages = {p.data_ptr() for p in attention.parameters()}
    assert storages.isdisjoint(p.data_ptr() for p in other.parameters())
    assert [n for n, _ in attention.named_parameters()] == [n for n, _ in other.named_parameters()]
    out = attention.eval()(x)
    other.train()
    for _ in range(2):  # a step, and statistics that move
        other(x).square().sum().backward()
    with torch.no_grad():
        for parameter in other.parameters():
            assert parameter.grad is not None
            parameter.sub_(0.1 * parameter.grad)
    assert torch.equal(attention(x), out)
    assert all(p.grad is None for p in attention.parameters())


class Two(nn.Module):
    """Two attentions that share what their scale learns and keeps."""

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.first, self.second = attention_with(scale), attention_with(scale)

    def forward(self, x: Tensor) -> Tensor:
        second: Tensor = self.second(self.first(x))
        return second


def test_attentions_may_share_a_scale() -> None:
    scale = Learned(n_heads=HEADS, d_k=D_K)
    model = Two(scale)
    assert model.first.scale is model.second.scale is scale
    assert [p is scale.log_scale for p in model.parameters()].count(True) == 1
    assert len(list(model.parameters())) == 4 + 1 + 4
    x = torch.randn(BATCH, KEY, D_MODEL)
    (of_both,) = torch.autograd.grad(model(x).square().sum(), scale.log_scale)
    # The gradient is the sum of what each attention sends back.
    parts: list[Tensor] = []
    for attention in (model.first, model.second):
        apart = copy.deepcopy(scale)
        attention.scale = apart
        parts.extend(torch.autograd.grad(model(x).square().sum(), apart.log_scale))
        attention.scale = scale
    torch.testing.assert_close(of_both, parts[0] + parts[1], rtol=1e-4, atol=1e-6)
    shared = copy.deepcopy(model)
    assert shared.first.scale is shared.second.scale


def test_statistics_of_a_shared_scale_are_updated_by_each_attention() -> None:
    scale = ScoreBatchNorm(n_heads=HEADS, momentum=0.5)
    model = Two(scale)
    means: list[Tensor] = []

    def receive(attended: Attended) -> None:
        means.append(attended.scores().mean(dim=(0, 2, 3)))

    model.first.tap = model.second.tap = receive
    model(torch.randn(BATCH, KEY, D_MODEL))
    assert len(means) == 2
    torch.testing.assert_close(scale.running_mean, 0.25 * means[0] + 0.5 * means[1])
    assert len(list(model.buffers())) == 2


def test_sharing_folds_into_each_attention_once() -> None:
    scale = SCALES["folded"]()
    torch.manual_seed(1)
    folded = Two(scale)
    torch.manual_seed(1)
    plain = Two(SCALES["none"]())
    for path in ("first", "second"):
        weight = folded.get_parameter(f"{path}.q.weight")
        assert torch.equal(weight, plain.get_parameter(f"{path}.q.weight") * D_K**-0.5)


@every_mode
def test_a_scale_follows_the_type_of_its_model(mode: Mode) -> None:
    attention = build(mode).double()
    x = torch.randn(BATCH, QUERY, D_MODEL, dtype=torch.float64)
    assert attention(x).dtype == torch.float64
    assert {tensor.dtype for tensor in attention.state_dict().values()} == {torch.float64}
    half = attention.bfloat16()
    out = half(x.bfloat16())
    assert out.dtype == torch.bfloat16
    assert bool(out.isfinite().all())
