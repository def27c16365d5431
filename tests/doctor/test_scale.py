"""The scale of attentions that are computed in many ways, against the one worked out by hand."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from attnscale.doctor import examine
from tests.doctor.attention import D_K, D_MODEL, N_HEADS, WAYS, Attention, Block, N, batch, model


@pytest.mark.parametrize("way", WAYS)
def test_the_scale_is_found_and_the_output_is_the_same_to_the_bit(way: str) -> None:
    core, scale = WAYS[way]
    attention, x = model(core), batch()
    with torch.no_grad():
        plain = attention(x)
        seen: list[Tensor] = []
        report = examine(attention, forward=lambda m: seen.append(m(x)))
    assert torch.equal(plain, seen[0])
    (record,) = report.attentions
    assert report.not_visible == ()
    assert record.scales == pytest.approx([scale] * len(record.scales), rel=1e-6)
    assert (record.d_k, record.queries, record.keys) == (D_K, N, N)
    assert (record.heads, record.d_model) == (N_HEADS, D_MODEL)


@pytest.mark.parametrize("way", ["eager", "in place", "soft cap", "fused, causal", "both in front"])
def test_gradients_and_the_random_state_are_the_same_to_the_bit(way: str) -> None:
    def gradients(examined: bool) -> list[Tensor]:
        attention = nn.Sequential(model(WAYS[way][0]), nn.Dropout(0.5))
        torch.manual_seed(3)
        losses: list[Tensor] = []

        def forward(m: nn.Module) -> None:
            losses.append(m(batch()).square().sum())

        if examined:
            assert len(examine(attention, forward=forward).attentions) == 1
        else:
            forward(attention)
        torch.autograd.backward(losses)
        grads = [p.grad for p in attention.parameters() if p.grad is not None]
        return [losses[0].detach(), torch.get_rng_state(), *grads]

    for plain, watched in zip(gradients(False), gradients(True), strict=True):
        assert torch.equal(plain, watched)


@pytest.mark.parametrize(
    ("name", "origins"),
    [
        ("eager", ("raw", "raw")),
        ("q in front", ("rescaled", "raw")),
        ("both in front", ("rescaled", "rescaled")),
        ("rotated by more than 1", ("rescaled", "rescaled")),
        ("normalised", ("normalised", "normalised")),
    ],
)
def test_what_q_and_k_are_is_told(name: str, origins: tuple[str, str]) -> None:
    (record,) = examine(model(WAYS[name][0]), batch()).attentions
    assert (record.origin_q, record.origin_k) == origins


def test_what_else_is_in_the_logits_is_told() -> None:
    def of(way: str) -> tuple[object, ...]:
        (one,) = examine(model(WAYS[way][0]), batch()).attentions
        return one.how, one.softcap, one.sinks, one.bias, round(one.masked, 3)

    assert of("eager") == ("eager", None, 0, False, 0)
    assert of("soft cap") == ("eager", pytest.approx(2, rel=1e-6), 0, False, 0)
    assert of("sinks") == ("eager", None, 1, False, 0)
    assert of("a position's bias") == ("eager", None, 0, True, 0)
    assert of("fused, causal") == ("fused", None, 0, False, 0.475)


def test_weights_that_a_sink_takes_are_told() -> None:
    (record,) = examine(model(WAYS["sinks"][0]), batch()).attentions
    assert 0.9 < record.weight_sum < 0.99


def test_a_head_that_is_padded_with_zeros_is_no_wider() -> None:
    (record,) = examine(model(WAYS["fused, padded heads"][0]), batch()).attentions
    assert (record.d_k, record.d_product) == (12, 16)
    assert record.times_sqrt == pytest.approx((12 / 16) ** 0.5, rel=1e-6)


def test_each_head_has_its_own_scale() -> None:
    factors = torch.tensor([0.1, 0.2, 0.3, 0.5, 0.7])[:, None, None]
    attention = model(lambda q, k, v: (q @ k.mT * factors).softmax(-1) @ v)
    (record,) = examine(attention, batch()).attentions
    assert record.scales == pytest.approx(factors.flatten().tolist(), rel=1e-6)


@pytest.mark.parametrize("weights", [True, False])
def test_the_multi_head_attention_of_torch(weights: bool) -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(D_MODEL, N_HEADS, batch_first=True)
    x = batch()
    (record,) = examine(attention, forward=lambda m: m(x, x, x, need_weights=weights)).attentions
    assert record.scale == pytest.approx(D_K**-0.5, rel=1e-6)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_the_encoder_of_torch_in_training_and_by_its_kernel(training: bool, padded: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(48, 4, 64, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).train(training)
    x = torch.randn(2, N, 48)
    mask = torch.zeros(2, N, dtype=torch.bool)
    mask[1, -5:] = padded
    outputs = []
    with torch.no_grad():
        plain = encoder(x, src_key_padding_mask=mask)
        report = examine(encoder, forward=lambda m: outputs.append(m(x, src_key_padding_mask=mask)))
    assert torch.equal(plain, outputs[0])
    assert [one.scale for one in report.attentions] == pytest.approx([12**-0.5] * 2, rel=1e-6)
    assert report.attentions[0].path.startswith("layers.0")
    hows = {one.how for one in report.attentions}
    assert hows == {"native"} if not training else hows <= {"eager", "fused"}


def test_bf16_is_read_to_a_hundredth() -> None:
    for name, (core, scale) in list(WAYS.items())[:3]:
        attention = model(core).bfloat16()
        (record,) = examine(attention, batch().bfloat16()).attentions
        assert record.scale == pytest.approx(scale, rel=1e-2), name
    with torch.autocast("cpu", torch.bfloat16):
        (record,) = examine(model(WAYS["q in front"][0]), batch()).attentions
    assert record.scale == pytest.approx(D_K**-0.5, rel=1e-2)


def test_inference_mode_hides_nothing() -> None:
    with torch.inference_mode():
        names = ("eager", "fused, default", "q in front")
        scales = [examine(model(WAYS[n][0]), batch()).attentions[0].scale for n in names]
    assert scales == pytest.approx([D_K**-0.5] * 3, rel=1e-6)


def test_a_compiled_model_is_watched_and_runs_compiled_again() -> None:
    runs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        def compiled(*args: Tensor) -> object:
            runs.append(1)
            return graph.forward(*args)

        return compiled

    attention = torch.compile(model(WAYS["eager"][0]), backend=backend)
    x = batch()
    with torch.no_grad():
        attention(x)
        n_before = len(runs)
        (record,) = examine(attention, x).attentions  # type: ignore[arg-type]
        assert len(runs) == n_before
        attention(x)
    assert len(runs) > n_before
    assert record.scale == pytest.approx(D_K**-0.5, rel=1e-6)


def test_what_checkpointing_computes_again_is_not_counted_twice() -> None:
    from torch.utils.checkpoint import checkpoint

    block, x = Block(WAYS["eager"][0]), batch().requires_grad_()

    def forward(m: nn.Module) -> None:
        checkpoint(m, x, use_reentrant=False).sum().backward()

    assert [one.path for one in examine(block, forward=forward).attentions] == ["attention"]


def test_a_cache_of_keys_is_followed_over_steps() -> None:
    attention = model(WAYS["eager"][0])
    x = batch()

    def decode(m: Attention) -> None:
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for step in range(4):
            q, k, v = (
                projection(x[:, step : step + 1]).unflatten(-1, (N_HEADS, -1)).transpose(1, 2)
                for projection in (m.q, m.k, m.v)
            )
            keys.append(k * 0.5)
            values.append(v)
            k, v = torch.cat(keys, dim=2), torch.cat(values, dim=2)
            m.o(functional.scaled_dot_product_attention(q, k, v, scale=0.5).flatten(1))

    report = examine(attention, forward=decode)
    # A single key has no slope, and that is said.
    assert [one.call for one in report.attentions] == [0, 1, 2]
    assert [one.keys for one in report.attentions] == [2, 3, 4]
    assert [one.scale for one in report.attentions] == pytest.approx([0.25] * 3, rel=1e-6)
    (hidden,) = report.not_visible
    assert "no row has two keys" in hidden.reason


@pytest.mark.parametrize("name", ["router", "contrast", "linear"])
def test_what_is_no_attention_is_not_counted(name: str) -> None:
    def router(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return v * (q @ k.mT).softmax(dim=-1).amax(dim=-1, keepdim=True)

    def linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.elu(q) @ (functional.elu(k).mT @ v)

    def contrast(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return v + (q @ k.mT).log_softmax(dim=-1).mean()

    core = {"router": router, "linear": linear, "contrast": contrast}[name]
    report = examine(model(core), batch())
    assert report.attentions == ()


def test_logits_that_do_not_follow_the_scores_get_no_number() -> None:
    noise = torch.randn(2, N_HEADS, N, N, generator=torch.Generator().manual_seed(4))
    core = lambda q, k, v: ((q @ k.mT).cos() * 0 + noise * (q @ k.mT).sign()).softmax(-1) @ v  # noqa: E731
    report = examine(model(core), batch())
    assert report.attentions == ()
    assert any("do not follow" in one.reason for one in report.not_visible)


def test_rows_are_sampled_where_there_are_many() -> None:
    attention = model(WAYS["eager"][0])
    x = torch.randn(1, 100, D_MODEL, generator=torch.Generator().manual_seed(5))
    (record,) = examine(attention, x, rows=10).attentions
    assert (record.rows, record.queries) == (10, 100)
    assert record.scale == pytest.approx(D_K**-0.5, rel=1e-6)
