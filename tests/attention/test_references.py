"""Each mode against its formula, written out row by row."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from attnscale.attention import SCALE_MODES, Attended, MultiHeadAttention, attend, padding_keep
from tests.attention.conftest import (
    BATCH,
    D_K,
    D_MODEL,
    HEADS,
    KEY,
    MASKS,
    QUERY,
    Numbers,
    assert_same,
    build,
    draw,
    full_mask,
    mask,
    moved_values,
    options_of,
    parameters_of,
    seen_by_tap,
    values_of,
)


def t(values: Numbers, name: str) -> Tensor:
    value = values[name]
    assert isinstance(value, Tensor)
    return value


def x(values: Numbers, name: str) -> float:
    value = values[name]
    assert isinstance(value, float)
    return value


def dot(q: Tensor, k: Tensor) -> Tensor:
    return torch.einsum("d,jd->j", q, k)


def cosine(q: Tensor, k: Tensor) -> Tensor:
    made: Tensor = dot(q, k) / (torch.linalg.vector_norm(q) * torch.linalg.vector_norm(k, dim=-1))
    return made


def rms(y: Tensor, eps: float) -> Tensor:
    made: Tensor = y / torch.sqrt((y * y).sum(dim=-1, keepdim=True) / y.shape[-1] + eps)
    return made


def layernorm(y: Tensor, eps: float) -> Tensor:
    return rms(y - y.sum(dim=-1, keepdim=True) / y.shape[-1], eps)


def gains(q: Tensor, k: Tensor, v: Numbers) -> tuple[Tensor, Tensor]:
    return q * t(v, "q_gain"), k * t(v, "k_gain")


def deviation(r: Tensor) -> Tensor:
    """Return the root of the mean square; the root's gradient at 0 is left out."""
    square = ((r - r.mean()) ** 2).sum() / len(r)
    return torch.sqrt(square) if square > 0 else torch.zeros(())


def z_score(r: Tensor, eps: float) -> Tensor:
    return (r - r.mean()) / (deviation(r) + eps)


def ngpt(q: Tensor, k: Tensor, h: int, v: Numbers) -> Tensor:
    s = t(v, "scale")[h] * math.sqrt(D_MODEL)
    unit_k = k / torch.linalg.vector_norm(k, dim=-1, keepdim=True)
    return math.sqrt(D_K) * dot(s * q / torch.linalg.vector_norm(q), s * unit_k)


ROOT = math.sqrt(D_K)
ROWS: dict[str, Callable[[Tensor, Tensor, int, Numbers], Tensor]] = {
    "sqrt": lambda q, k, h, v: dot(q, k) / ROOT,
    "none": lambda q, k, h, v: dot(q, k),
    "folded": lambda q, k, h, v: dot(q, k),
    "none_equiv": lambda q, k, h, v: dot(q, k),
    "inverse": lambda q, k, h, v: dot(q, k) / D_K,
    "mup": lambda q, k, h, v: math.sqrt(x(v, "base_d_k")) * dot(q, k) / D_K,
    "sqrt_d_model": lambda q, k, h, v: dot(q, k) / math.sqrt(D_MODEL),
    "learned": lambda q, k, h, v: torch.exp(t(v, "log_scale")[h]) * dot(q, k),
    "learned_shared": lambda q, k, h, v: torch.exp(t(v, "log_scale")[0]) * dot(q, k),
    "cosine": lambda q, k, h, v: (
        torch.exp(torch.clamp(t(v, "log_scale")[h], max=math.log(100))) * cosine(q, k)
    ),
    "qknorm": lambda q, k, h, v: t(v, "gain")[0] * cosine(q, k),
    "cosine_fixed": lambda q, k, h, v: x(v, "factor") * cosine(q, k),
    "qk_layernorm": lambda q, k, h, v: (
        dot(*gains(layernorm(q, x(v, "eps")), layernorm(k, x(v, "eps")), v)) / ROOT
    ),
    "qk_rmsnorm": lambda q, k, h, v: (
        dot(*gains(rms(q, x(v, "eps")), rms(k, x(v, "eps")), v)) / ROOT
    ),
    "ngpt": ngpt,
    "softcap": lambda q, k, h, v: x(v, "cap") * torch.tanh(dot(q, k) / ROOT / x(v, "cap")),
    "score_layernorm": lambda q, k, h, v: t(v, "gain")[h] * z_score(dot(q, k), x(v, "eps")),
    "nap": lambda q, k, h, v: dot(q, k),
    "log_n": lambda q, k, h, v: math.log(len(k)) * dot(q, k) / ROOT,
    "log_n_base": lambda q, k, h, v: math.log(len(k), x(v, "base")) * dot(q, k) / ROOT,
    "ssmax": lambda q, k, h, v: t(v, "gain")[h] * math.log(len(k)) * dot(q, k) / ROOT,
}
"""The logits of the kept keys of one row. n is the number of keys that are left."""


def batchnorm(q: Tensor, k: Tensor, full: Tensor, values: Numbers) -> Tensor:
    """Return the logits of all pairs."""
    scores = torch.einsum("bhid,bhjd->bhij", q, k)
    heads = []
    for h in range(HEADS):
        kept = scores[:, h][full[:, h]]
        mean, variance = t(values, "running_mean")[h], t(values, "running_variance")[h]
        if values["training"]:
            mean = kept.sum() / len(kept)
            variance = ((kept - mean) ** 2).sum() / len(kept)
        z = (scores[:, h] - mean) / torch.sqrt(variance + x(values, "eps"))
        heads.append(t(values, "gain")[h] * z)
    return torch.stack(heads, dim=1)


def weights_of(logits: Tensor, name: str, h: int, values: Numbers) -> Tensor:
    if name == "nap":
        z = z_score(logits, x(values, "eps"))
        return t(values, "gain")[h] * z + t(values, "bias")[h]
    odds = torch.exp(logits - logits.max())
    return odds / odds.sum()


def reference(
    name: str, *, q: Tensor, k: Tensor, v: Tensor, full: Tensor, values: Numbers
) -> Tensor:
    whole = batchnorm(q, k, full, values) if name == "score_batchnorm" else None
    rows = []
    for b in range(BATCH):
        for h in range(HEADS):
            for i in range(QUERY):
                kept = full[b, h, i]
                if not kept.any():
                    rows.append(torch.zeros(v.shape[-1], dtype=v.dtype))
                    continue
                if whole is None:
                    logits = ROWS[name](q[b, h, i], k[b, h][kept], h, values)
                else:
                    logits = whole[b, h, i][kept]
                rows.append(weights_of(logits, name, h, values) @ v[b, h][kept])
    return torch.stack(rows).view(BATCH, HEADS, QUERY, -1)


CASES = [
    (name, training)
    for name, mode in SCALE_MODES.items()
    for training in (True, False)
    if training or mode.buffers is not None
]
# Options that matter at this size: a small cap, a base and an ε that are seen in the result.
CHANGED = {"cap": 1.5, "base": 5.0, "base_d_k": 7.0, "factor": 3.0, "start": 2.0}


def test_every_mode_has_a_reference() -> None:
    assert set(ROWS) | {"score_batchnorm"} == set(SCALE_MODES)


@pytest.mark.parametrize(("name", "training"), CASES)
def test_equals_its_formula(name: str, training: bool) -> None:
    for eps, kinds in ((1e-3, MASKS[:2]), (0.5, MASKS)):
        values = moved_values(name, training=training, eps=eps, **CHANGED)
        learned = parameters_of(name, values)
        for kind in kinds:
            q, k, v = draw()
            keep, causal = mask(kind)
            given = {
                n: y.clone() if isinstance(y, Tensor) and n not in learned else y
                for n, y in values.items()
            }
            # On the explicit path; the fused one is compared with it elsewhere.
            out = attend(
                q, k, v, scale=name, values=given, keep=keep, causal=causal, backend="explicit"
            )
            wanted = reference(name, q=q, k=k, v=v, full=full_mask(keep, causal), values=values)
            leaves = (q, k, v, *learned.values())
            assert_same(out, wanted, leaves)


# --- what the formulas leave open: starts, bounds, counts, running statistics ---


def test_cosine_is_bounded_by_its_largest_factor() -> None:
    q, k, _ = draw()
    values = values_of("cosine", dtype=torch.float64)
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
        values["log_scale"] = torch.full((HEADS,), log_scale, dtype=torch.float64)
        logits = seen_by_tap(q, k, "cosine", values).logits()
        torch.testing.assert_close(logits, factor * directions, rtol=1e-12, atol=1e-12)
    start = values_of("cosine", dtype=torch.float64)["log_scale"]
    torch.testing.assert_close(start, torch.full((HEADS,), math.log(10), dtype=torch.float64))


@pytest.mark.parametrize(("length", "start"), [(26.0, 9.34), (24.0, 9.11), (2.0, 1.0)])
def test_qknorm_starts_at_the_log_of_its_length(length: float, start: float) -> None:
    attention = MultiHeadAttention(
        d_model=D_MODEL,
        n_heads=HEADS,
        d_k=D_K,
        d_v=D_K,
        scale="qknorm",
        statistics={"length_p97_5": length},
    )
    (gain,) = attention.temperatures()
    assert gain.shape == (1,)
    assert gain.item() == pytest.approx(start, abs=0.005)
    assert gain.item() == pytest.approx(math.log2(length**2 - length), rel=1e-6)


def test_ngpt_is_stored_small_and_starts_at_one() -> None:
    attention = build("ngpt")
    (scale,) = attention.temperatures()
    assert scale.shape == (HEADS, D_K)
    assert torch.equal(scale, torch.full((HEADS, D_K), D_MODEL**-0.5))
    q, k, _ = draw(dtype=torch.float32)
    logits = seen_by_tap(q, k, "ngpt", attention.values()).logits()
    cosines = nn.functional.cosine_similarity(q[..., None, :], k[:, :, None], dim=-1)
    torch.testing.assert_close(logits, math.sqrt(D_K) * cosines.detach())


def test_normalised_modes_ignore_the_length_of_q_and_k() -> None:
    q, k, _ = draw()
    for name in ("cosine", "qknorm", "cosine_fixed", "qk_layernorm", "qk_rmsnorm", "ngpt"):
        values = moved_values(name, eps=1e-15)
        logits = seen_by_tap(q, k, name, values).logits()
        longer = seen_by_tap(40 * q, 0.3 * k, name, values).logits()
        torch.testing.assert_close(longer, logits, rtol=1e-9, atol=1e-9)
        heads = slice(0, 2)  # and no head looks at another
        alone = {
            n: y[heads] if isinstance(y, Tensor) and len(y) == HEADS else y
            for n, y in values.items()
        }
        torch.testing.assert_close(
            seen_by_tap(q[:, heads], k[:, heads], name, alone).logits(), logits[:, heads]
        )


@pytest.mark.parametrize("name", ["score_layernorm", "nap"])
def test_a_row_of_two_keys_becomes_plus_and_minus_the_gain(name: str) -> None:
    q, k, _ = draw()
    values = values_of(name, dtype=torch.float64, eps=1e-12)
    values["gain"] = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    keep = torch.zeros(KEY, dtype=torch.bool)
    keep[[1, 5]] = True
    for factor in (1.0, 100.0):
        attended = seen_by_tap(factor * q, k, name, values, keep)
        made = attended.weights() if name == "nap" else attended.logits()
        wanted = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)[:, None, None]
        torch.testing.assert_close(made[..., keep].abs(), wanted.expand(BATCH, HEADS, QUERY, 2))
        torch.testing.assert_close(made[..., 1], -made[..., 5])
        first_is_larger = attended.scores()[..., 1] > attended.scores()[..., 5]
        assert torch.equal(made[..., 1] > 0, first_is_larger)


def test_nap_hides_exactly_and_divides_by_n() -> None:
    q, k, v = draw()
    values = values_of("nap", dtype=torch.float64)
    assert values["eps"] == 1e-3
    values["bias"] = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)
    keep = padding_keep(torch.tensor([KEY, 4]), KEY)
    seen: list[Attended] = []
    attend(q, k, v, scale="nap", values=values, keep=keep, tap=seen.append)
    weights = seen[0].weights()
    assert torch.equal(weights[1, :, :, 4:], torch.zeros(HEADS, QUERY, 3, dtype=torch.float64))
    for b, n in enumerate((KEY, 4)):
        r = torch.einsum("hid,hjd->hij", q[b], k[b, :, :n]).detach()
        z = (r - r.mean(dim=-1, keepdim=True)) / (r.std(dim=-1, correction=0, keepdim=True) + 1e-3)
        torch.testing.assert_close(weights[b, :, :, :n], z + t(values, "bias")[:, None, None])


@pytest.mark.parametrize(("name", "base"), [("log_n", math.e), ("log_n_base", 14.0), ("ssmax", 0)])
def test_n_is_the_number_of_kept_keys(name: str, base: float) -> None:
    q, k, _ = draw(n_queries=KEY)
    values = values_of(name, dtype=torch.float64)
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
        logits = seen_by_tap(q, k, name, values, keep, causal=causal).logits()
        torch.testing.assert_close(logits, factor * n.log() * scores, rtol=1e-6, atol=1e-6)


def torch_batchnorm(eps: float, momentum: float) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(HEADS, eps=eps, momentum=momentum).double()


@pytest.mark.parametrize("momentum", [0.1, 0.37, 1.0])
def test_score_batchnorm_equals_pytorch(momentum: float) -> None:
    values = values_of("score_batchnorm", dtype=torch.float64, eps=0.2, momentum=momentum)
    values["gain"] = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    norm = torch_batchnorm(0.2, momentum)
    with torch.no_grad():
        norm.weight.copy_(t(values, "gain"))
    for step in range(4):
        q, k, v = draw()
        training = step < 3
        values["training"] = float(training)
        norm.train(training)
        scores = torch.einsum("bhid,bhjd->bhij", q, k)
        wanted = norm(scores).softmax(dim=-1) @ v
        out = attend(q, k, v, scale="score_batchnorm", values=values)
        torch.testing.assert_close(out, wanted, rtol=1e-9, atol=1e-11)
        for name, kept in (
            ("running_mean", norm.running_mean),
            ("running_variance", norm.running_var),
        ):
            torch.testing.assert_close(values[name], kept, rtol=1e-12, atol=1e-12)


def test_running_statistics_count_kept_pairs_only() -> None:
    values = values_of("score_batchnorm", dtype=torch.float64, momentum=0.3)
    q, k, v = draw()
    keep = mask("random")[0]
    assert keep is not None
    attend(q, k, v, scale="score_batchnorm", values=values, keep=keep)
    scores = torch.einsum("bhid,bhjd->bhij", q, k).detach()
    for h in range(HEADS):
        kept = scores[:, h][keep[:, h]]
        assert float(t(values, "running_mean")[h]) == pytest.approx(0.3 * float(kept.mean()))
        unbiased = float(((kept - kept.mean()) ** 2).sum()) / (len(kept) - 1)
        wanted = 0.7 * 1.0 + 0.3 * unbiased
        assert float(t(values, "running_variance")[h]) == pytest.approx(wanted)


def test_a_module_keeps_running_statistics_while_it_trains() -> None:
    attention = build("score_batchnorm").double()
    assert set(attention.buffer_names) == {"running_mean", "running_variance"}
    inputs = torch.randn(BATCH, KEY, D_MODEL, dtype=torch.float64)

    def kept() -> list[Tensor]:
        return [attention.get_buffer(name).clone() for name in attention.buffer_names]

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
    assert set(attention.buffer_names) < set(attention.state_dict())
    other = build("score_batchnorm").double().eval()
    other.load_state_dict(attention.state_dict())
    assert torch.equal(other(inputs), evaluated)


def test_options_start_as_the_papers_have_them() -> None:
    assert options_of("cosine") == {"start": 10.0, "largest": 100.0}
    assert options_of("cosine_fixed") == {"factor": 10.0}
    assert options_of("mup") == {"base_d_k": 64.0}
    assert options_of("softcap") == {"cap": 50.0}
    assert options_of("nap") == {"eps": 1e-3}
    assert options_of("score_batchnorm") == {"eps": 1e-5, "momentum": 0.1}
    assert options_of("ssmax")["start"] == pytest.approx(1 / math.log(14), abs=5e-4)
