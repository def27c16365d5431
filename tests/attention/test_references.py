"""Each mode against its formula, written out row by row."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from attnscale.attention import Scale, attend, choose_scale, padding_keep
from attnscale.attention.scale import QKNorm, ScoreBatchNorm
from tests.support.modes import (
    BATCH,
    D_K,
    D_MODEL,
    HEADS,
    KEY,
    MASKS,
    MODES,
    QUERY,
    Mode,
    assert_same,
    attended_of,
    buffers_put_back,
    build,
    draw,
    every_state,
    full_mask,
    mask,
    moved_scale,
    new_scale,
    options_with,
)

# Options that matter at this size: a small cap, a base and an ε that are seen in the result.
CHANGED = {"cap": 1.5, "base": 5.0, "base_d_k": 7.0, "factor": 3.0, "start": 2.0}


@dataclass(frozen=True)
class Numbers:
    """What a formula reads: what the scale has learned and keeps, its options, its state."""

    learned: dict[str, Tensor]
    kept: dict[str, Tensor]
    options: dict[str, float]
    training: bool

    def t(self, name: str) -> Tensor:
        return self.learned[name] if name in self.learned else self.kept[name]

    def x(self, name: str) -> float:
        return self.options[name]


def dot(q: Tensor, k: Tensor) -> Tensor:
    return torch.einsum("d,jd->j", q, k)


def cosine(q: Tensor, k: Tensor) -> Tensor:
    lengths = torch.linalg.vector_norm(q) * torch.linalg.vector_norm(k, dim=-1)
    cosines: Tensor = dot(q, k) / lengths
    return cosines


def rms(y: Tensor, eps: float) -> Tensor:
    normed: Tensor = y / torch.sqrt((y * y).sum(dim=-1, keepdim=True) / y.shape[-1] + eps)
    return normed


def layernorm(y: Tensor, eps: float) -> Tensor:
    return rms(y - y.sum(dim=-1, keepdim=True) / y.shape[-1], eps)


def gains(q: Tensor, k: Tensor, v: Numbers) -> tuple[Tensor, Tensor]:
    return q * v.t("q_gain"), k * v.t("k_gain")


def deviation(r: Tensor) -> Tensor:
    """Return the root of the mean square; the root's gradient at 0 is left out."""
    square = ((r - r.mean()) ** 2).sum() / len(r)
    return torch.sqrt(square) if square > 0 else torch.zeros(())


def z_score(r: Tensor, eps: float) -> Tensor:
    return (r - r.mean()) / (deviation(r) + eps)


def ngpt(q: Tensor, k: Tensor, h: int, v: Numbers) -> Tensor:
    s = v.t("scale")[h] * math.sqrt(D_MODEL)
    unit_k = k / torch.linalg.vector_norm(k, dim=-1, keepdim=True)
    return math.sqrt(D_K) * dot(s * q / torch.linalg.vector_norm(q), s * unit_k)


ROOT = math.sqrt(D_K)
ROWS: dict[str, Callable[[Tensor, Tensor, int, Numbers], Tensor]] = {
    "0.37": lambda q, k, h, v: 0.37 * dot(q, k),
    "sqrt": lambda q, k, h, v: dot(q, k) / ROOT,
    "none": lambda q, k, h, v: dot(q, k),
    "folded": lambda q, k, h, v: dot(q, k),
    "none_equiv": lambda q, k, h, v: dot(q, k),
    "inverse": lambda q, k, h, v: dot(q, k) / D_K,
    "mup": lambda q, k, h, v: math.sqrt(v.x("base_d_k")) * dot(q, k) / D_K,
    "sqrt_d_model": lambda q, k, h, v: dot(q, k) / math.sqrt(D_MODEL),
    "learned": lambda q, k, h, v: torch.exp(v.t("log_scale")[h]) * dot(q, k),
    "learned_shared": lambda q, k, h, v: torch.exp(v.t("log_scale")[0]) * dot(q, k),
    "cosine": lambda q, k, h, v: (
        torch.exp(torch.clamp(v.t("log_scale")[h], max=math.log(100))) * cosine(q, k)
    ),
    "qknorm": lambda q, k, h, v: v.t("gain")[0] * cosine(q, k),
    "cosine_fixed": lambda q, k, h, v: v.x("factor") * cosine(q, k),
    "qk_layernorm": lambda q, k, h, v: (
        dot(*gains(layernorm(q, v.x("eps")), layernorm(k, v.x("eps")), v)) / ROOT
    ),
    "qk_rmsnorm": lambda q, k, h, v: dot(*gains(rms(q, v.x("eps")), rms(k, v.x("eps")), v)) / ROOT,
    "ngpt": ngpt,
    "softcap": lambda q, k, h, v: v.x("cap") * torch.tanh(dot(q, k) / ROOT / v.x("cap")),
    "score_layernorm": lambda q, k, h, v: v.t("gain")[h] * z_score(dot(q, k), v.x("eps")),
    "nap": lambda q, k, h, v: dot(q, k),
    "log_n": lambda q, k, h, v: math.log(len(k)) * dot(q, k) / ROOT,
    "log_n_base": lambda q, k, h, v: math.log(len(k), v.x("base")) * dot(q, k) / ROOT,
    "ssmax": lambda q, k, h, v: v.t("gain")[h] * math.log(len(k)) * dot(q, k) / ROOT,
}
"""The logits of the kept keys of one row. n is the number of keys that are left."""


def batchnorm(q: Tensor, k: Tensor, full: Tensor, numbers: Numbers) -> Tensor:
    """Return the logits of all pairs."""
    scores = torch.einsum("bhid,bhjd->bhij", q, k)
    heads = []
    for h in range(HEADS):
        kept = scores[:, h][full[:, h]]
        mean, variance = numbers.t("running_mean")[h], numbers.t("running_variance")[h]
        if numbers.training:
            mean = kept.sum() / len(kept)
            variance = ((kept - mean) ** 2).sum() / len(kept)
        z = (scores[:, h] - mean) / torch.sqrt(variance + numbers.x("eps"))
        heads.append(numbers.t("gain")[h] * z)
    return torch.stack(heads, dim=1)


def weights_of(logits: Tensor, name: str, h: int, numbers: Numbers) -> Tensor:
    if name == "nap":
        z = z_score(logits, numbers.x("eps"))
        return numbers.t("gain")[h] * z + numbers.t("bias")[h]
    odds = torch.exp(logits - logits.max())
    return odds / odds.sum()


def reference(
    name: str, *, q: Tensor, k: Tensor, v: Tensor, full: Tensor, numbers: Numbers
) -> Tensor:
    whole = batchnorm(q, k, full, numbers) if name == "score_batchnorm" else None
    rows = []
    for b in range(BATCH):
        for h in range(HEADS):
            for i in range(QUERY):
                kept = full[b, h, i]
                if not kept.any():
                    rows.append(torch.zeros(v.shape[-1], dtype=v.dtype))
                    continue
                if whole is None:
                    logits = ROWS[name](q[b, h, i], k[b, h][kept], h, numbers)
                else:
                    logits = whole[b, h, i][kept]
                rows.append(weights_of(logits, name, h, numbers) @ v[b, h][kept])
    return torch.stack(rows).view(BATCH, HEADS, QUERY, -1)


def test_every_mode_has_a_reference() -> None:
    assert set(ROWS) | {"score_batchnorm"} == {str(mode) for mode in MODES}


@every_state
def test_equals_its_formula(mode: Mode, training: bool) -> None:
    for eps, kinds in ((1e-3, MASKS[:2]), (0.5, MASKS)):
        changed = {**CHANGED, "eps": eps}
        scale = moved_scale(mode, training=training, **changed)
        numbers = Numbers(
            learned=dict(scale.named_parameters()),
            kept={name: buffer.clone() for name, buffer in scale.named_buffers()},
            options=options_with(mode, **changed),
            training=training,
        )
        for kind in kinds:
            q, k, v = draw()
            keep, causal = mask(kind)
            # On the explicit path; the fused one is compared with it elsewhere.
            with buffers_put_back(scale):
                out = attend(q, k, v, scale=scale, keep=keep, causal=causal, backend="explicit")
            full = full_mask(keep, causal)
            wanted = reference(str(mode), q=q, k=k, v=v, full=full, numbers=numbers)
            assert_same(out, wanted, (q, k, v, *scale.parameters()))


# --- published variants that an option makes ---


def heads_of(joined: Tensor) -> Tensor:
    """Cut (batch, position, head * d_k) into heads, (batch, head, position, d_k)."""
    return joined.view(*joined.shape[:2], HEADS, -1).transpose(1, 2)


def olmo_2(q: Tensor, k: Tensor, v: Numbers) -> Tensor:
    """RMS norm of all heads of a position together, then 1/√d_k."""
    scores = heads_of(rms(q, 1e-6) * v.t("q_gain")) @ heads_of(rms(k, 1e-6) * v.t("k_gain")).mT
    return scores / math.sqrt(D_K)


def mpt(q: Tensor, k: Tensor, v: Numbers) -> Tensor:
    """LayerNorm of all heads of a position together (there with a bias), then 1/√d_k."""
    q, k = layernorm(q, 1e-6) * v.t("q_gain"), layernorm(k, 1e-6) * v.t("k_gain")
    scores = heads_of(q) @ heads_of(k).mT
    return scores / math.sqrt(D_K)


def gemma_2_27b(q: Tensor, k: Tensor, v: Numbers) -> Tensor:
    """Scores × query_pre_attn_scalar^−½, capped."""
    scores = heads_of(q) @ heads_of(k).mT / math.sqrt(144)
    return torch.tanh(scores / 50.0) * 50.0


def gemma_3_27b(q: Tensor, k: Tensor, v: Numbers) -> Tensor:
    """RMS norm of each head, then query_pre_attn_scalar^−½."""
    q, k = rms(heads_of(q), 1e-6) * v.t("q_gain"), rms(heads_of(k), 1e-6) * v.t("k_gain")
    return q @ k.mT / math.sqrt(168)


@pytest.mark.parametrize(
    ("published", "mode", "options"),
    [
        (olmo_2, "qk_rmsnorm", {"over_heads": 1}),
        (mpt, "qk_layernorm", {"over_heads": 1}),
        (gemma_2_27b, "softcap", {"scalar": 144}),
        (gemma_3_27b, "qk_rmsnorm", {"scalar": 168}),
    ],
)
def test_a_published_model_is_an_option_of_a_mode(
    published: Callable[[Tensor, Tensor, Numbers], Tensor], mode: str, options: dict[str, float]
) -> None:
    scale = moved_scale(mode, training=True, **options)
    numbers = Numbers(dict(scale.named_parameters()), {}, options, training=True)
    q, k = (20 * torch.randn(BATCH, n, HEADS * D_K, dtype=torch.float64) for n in (QUERY, KEY))
    q, k = q.requires_grad_(), k.requires_grad_()
    logits = scale(heads_of(q), heads_of(k))
    assert_same(logits, published(q, k, numbers), (q, k, *scale.parameters()))


@pytest.mark.parametrize("mode", ["qk_rmsnorm", "qk_layernorm"])
def test_gains_of_all_heads_are_learned_scales_of_each(mode: str) -> None:
    scale = new_scale(mode, over_heads=1, scalar=7)
    gains = torch.arange(1.0, HEADS + 1)
    scale.get_parameter("q_gain").data = gains.repeat_interleave(D_K)
    torch.testing.assert_close(scale.learned_scale(), gains)


# --- what the formulas leave open: starts, bounds, counts, running statistics ---


def set_to(scale: Scale, name: str, values: list[float]) -> None:
    """Set what a scale has learned."""
    with torch.no_grad():
        scale.get_parameter(name).copy_(torch.tensor(values))


def test_cosine_is_bounded_by_its_largest_factor() -> None:
    q, k, _ = draw()
    scale = new_scale("cosine", dtype=torch.float64)
    start = scale.get_parameter("log_scale").detach()
    torch.testing.assert_close(start, torch.full((HEADS,), math.log(10), dtype=torch.float64))
    directions = torch.einsum(
        "bhid,bhjd->bhij",
        q / q.square().sum(dim=-1, keepdim=True).sqrt(),
        k / k.square().sum(dim=-1, keepdim=True).sqrt(),
    ).detach()
    for log_scale, factor in (
        (math.log(10), 10.0),
        (math.log(99.0), 99.0),
        (math.log(100) + 1e-3, 100.0),
        (7.0, 100.0),
    ):
        with torch.no_grad():
            scale.get_parameter("log_scale").fill_(log_scale)
        logits = attended_of(q, k, scale).logits()
        torch.testing.assert_close(logits, factor * directions, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("length", "start"), [(26.0, 9.34), (24.0, 9.11), (2.0, 1.0)])
def test_qknorm_starts_at_the_log_of_its_length(length: float, start: float) -> None:
    factory = choose_scale("qknorm", statistics={"length_p97_5": length})
    for scale in (QKNorm(length=length), factory(n_heads=HEADS, d_k=D_K)):
        (gain,) = scale.parameters()
        assert gain.shape == (1,)
        assert gain.item() == pytest.approx(start, abs=0.005)
        assert gain.item() == pytest.approx(math.log2(length**2 - length), rel=1e-6)


def test_ngpt_is_stored_small_and_starts_at_one() -> None:
    scale = new_scale("ngpt")
    (stored,) = scale.parameters()
    assert stored.shape == (HEADS, D_K)
    assert torch.equal(stored, torch.full((HEADS, D_K), D_MODEL**-0.5))
    q, k, _ = draw(dtype=torch.float32)
    logits = attended_of(q, k, scale).logits()
    cosines = nn.functional.cosine_similarity(q[..., None, :], k[:, :, None], dim=-1)
    torch.testing.assert_close(logits, math.sqrt(D_K) * cosines.detach())


def test_normalised_modes_ignore_the_length_of_q_and_k() -> None:
    q, k, _ = draw()
    for name in ("cosine", "qknorm", "cosine_fixed", "qk_layernorm", "qk_rmsnorm", "ngpt"):
        scale = moved_scale(name, eps=1e-15)
        logits = attended_of(q, k, scale).logits()
        longer = attended_of(40 * q, 0.3 * k, scale).logits()
        torch.testing.assert_close(longer, logits, rtol=1e-9, atol=1e-9)
        heads = slice(0, 2)  # and no head looks at another
        for parameter in scale.parameters():
            parameter.data = parameter.data[heads] if len(parameter) == HEADS else parameter.data
        torch.testing.assert_close(
            attended_of(q[:, heads], k[:, heads], scale).logits(), logits[:, heads]
        )


@pytest.mark.parametrize("name", ["score_layernorm", "nap"])
def test_a_row_of_two_keys_becomes_plus_and_minus_the_gain(name: str) -> None:
    q, k, _ = draw()
    scale = new_scale(name, dtype=torch.float64, eps=1e-12)
    set_to(scale, "gain", [0.5, 1.0, 2.0])
    keep = torch.zeros(KEY, dtype=torch.bool)
    keep[[1, 5]] = True
    for factor in (1.0, 100.0):
        attended = attended_of(factor * q, k, scale, keep)
        normed = attended.weights() if name == "nap" else attended.logits()
        wanted = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)[:, None, None]
        torch.testing.assert_close(normed[..., keep].abs(), wanted.expand(BATCH, HEADS, QUERY, 2))
        torch.testing.assert_close(normed[..., 1], -normed[..., 5])
        first_is_larger = attended.scores()[..., 1] > attended.scores()[..., 5]
        assert torch.equal(normed[..., 1] > 0, first_is_larger)


def test_nap_hides_exactly_and_divides_by_n() -> None:
    q, k, _ = draw()
    scale = new_scale("nap", dtype=torch.float64)
    set_to(scale, "bias", [0.3, -0.2, 0.1])
    keep = padding_keep(torch.tensor([KEY, 4]), KEY)
    weights = attended_of(q, k, scale, keep).weights()
    assert torch.equal(weights[1, :, :, 4:], torch.zeros(HEADS, QUERY, 3, dtype=torch.float64))
    bias = scale.get_parameter("bias").detach()[:, None, None]
    for b, n in enumerate((KEY, 4)):
        r = torch.einsum("hid,hjd->hij", q[b], k[b, :, :n]).detach()
        z = (r - r.mean(dim=-1, keepdim=True)) / (r.std(dim=-1, correction=0, keepdim=True) + 1e-3)
        torch.testing.assert_close(weights[b, :, :, :n], z + bias)


@pytest.mark.parametrize(("name", "base"), [("log_n", math.e), ("log_n_base", 14.0), ("ssmax", 0)])
def test_n_is_the_number_of_kept_keys(name: str, base: float) -> None:
    q, k, _ = draw(n_queries=KEY)
    scale = new_scale(name, dtype=torch.float64)
    scores = torch.einsum("bhid,bhjd->bhij", q, k).detach() / math.sqrt(D_K)
    factor = 1 / math.log(base) if base else 0.379
    for keep, causal, counts in (
        (None, False, torch.full((BATCH, KEY), KEY)),
        (padding_keep(torch.tensor([KEY, 4]), KEY), False, torch.tensor([[KEY], [4]])),
        (None, True, torch.arange(1, KEY + 1)[None]),
        (
            padding_keep(torch.tensor([KEY, 4]), KEY),
            True,
            torch.tensor([[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 4, 4, 4]]),
        ),
        (torch.ones(1, dtype=torch.bool), False, torch.full((BATCH, KEY), KEY)),
    ):
        n = counts.expand(BATCH, KEY)[:, None, :, None]
        logits = attended_of(q, k, scale, keep, causal=causal).logits()
        torch.testing.assert_close(logits, factor * n.log() * scores, rtol=1e-6, atol=1e-6)


# --- running statistics ---


@pytest.mark.parametrize("momentum", [0.1, 0.37, 1.0])
def test_score_batchnorm_equals_pytorch(momentum: float) -> None:
    scale = ScoreBatchNorm(n_heads=HEADS, eps=0.2, momentum=momentum).double()
    set_to(scale, "gain", [0.5, 1.0, 2.0])
    norm = nn.BatchNorm2d(HEADS, eps=0.2, momentum=momentum).double()
    with torch.no_grad():
        norm.weight.copy_(scale.gain)
    for step in range(4):
        q, k, v = draw()
        scale.train(step < 3)
        norm.train(step < 3)
        scores = torch.einsum("bhid,bhjd->bhij", q, k)
        wanted = norm(scores).softmax(dim=-1) @ v
        out = attend(q, k, v, scale=scale)
        torch.testing.assert_close(out, wanted, rtol=1e-9, atol=1e-11)
        for kept, of_pytorch in (
            (scale.running_mean, norm.running_mean),
            (scale.running_variance, norm.running_var),
        ):
            torch.testing.assert_close(kept, of_pytorch, rtol=1e-12, atol=1e-12)


def test_running_statistics_count_kept_pairs_only() -> None:
    scale = ScoreBatchNorm(n_heads=HEADS, momentum=0.3).double()
    q, k, v = draw()
    keep = mask("random")[0]
    assert keep is not None
    attend(q, k, v, scale=scale, keep=keep)
    scores = torch.einsum("bhid,bhjd->bhij", q, k).detach()
    for h in range(HEADS):
        kept = scores[:, h][keep[:, h]]
        assert float(scale.running_mean[h]) == pytest.approx(0.3 * float(kept.mean()))
        unbiased = float(((kept - kept.mean()) ** 2).sum()) / (len(kept) - 1)
        wanted = 0.7 * 1.0 + 0.3 * unbiased
        assert float(scale.running_variance[h]) == pytest.approx(wanted)


def test_an_empty_batch_leaves_running_statistics_and_gradients_alone() -> None:
    scale = ScoreBatchNorm(n_heads=HEADS)
    q, k, v = draw(batch=0)
    (gradient,) = torch.autograd.grad(attend(q, k, v, scale=scale).sum(), scale.gain)
    assert gradient.tolist() == scale.running_mean.tolist() == [0.0] * HEADS
    assert scale.running_variance.tolist() == [1.0] * HEADS


@pytest.mark.parametrize("n_kept", [0, 1])
def test_a_batch_of_one_pair_leaves_the_running_statistics_alone(n_kept: int) -> None:
    scale = ScoreBatchNorm(n_heads=HEADS, momentum=0.3).double()
    q, k, v = draw()
    keep = torch.zeros(BATCH, HEADS, QUERY, KEY, dtype=torch.bool)
    keep[0, :2, 3, 4] = bool(n_kept)
    keep[:, 2] = True
    attend(q, k, v, scale=scale, keep=keep)
    assert scale.running_mean[:2].tolist() == [0.0, 0.0]
    assert scale.running_variance[:2].tolist() == [1.0, 1.0]
    of_the_last = torch.einsum("bid,bjd->bij", q[:, 2], k[:, 2]).detach()
    torch.testing.assert_close(scale.running_mean[2], 0.3 * of_the_last.mean())


def test_a_module_keeps_running_statistics_while_it_trains() -> None:
    attention = build("score_batchnorm").double()
    inputs = torch.randn(BATCH, KEY, D_MODEL, dtype=torch.float64)
    paths = {"scale.running_mean", "scale.running_variance"}
    assert {name for name, _ in attention.named_buffers()} == paths
    assert paths < set(attention.state_dict())

    def kept() -> list[Tensor]:
        return [buffer.clone() for buffer in attention.buffers()]

    fresh = kept()
    assert torch.equal(fresh[0], torch.zeros(HEADS, dtype=torch.float64))
    assert torch.equal(fresh[1], torch.ones(HEADS, dtype=torch.float64))
    attention.eval()
    first = attention(inputs)
    assert all(torch.equal(a, b) for a, b in zip(fresh, kept(), strict=True))
    attention.train()
    for _ in range(200):
        trained = attention(inputs)
    after = kept()
    assert not any(torch.equal(a, b) for a, b in zip(fresh, after, strict=True))
    attention.eval()
    evaluated = attention(inputs)
    assert not torch.allclose(evaluated, first)
    # Of one batch over and over, all that is left is n / (n − 1) in the variance.
    torch.testing.assert_close(evaluated, trained, rtol=0, atol=0.01)
    assert all(torch.equal(a, b) for a, b in zip(after, kept(), strict=True))
    other = build("score_batchnorm").double().eval()
    other.load_state_dict(attention.state_dict())
    assert torch.equal(other(inputs), evaluated)
