"""Bugs that people had, as tiny models: each is named by its verdict."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention as fused

from attnscale.doctor import compare, examine
from tests.doctor.attention import D_K, D_MODEL, N_HEADS, WAYS, Core, N, batch, model, turned

ROOT = D_K**-0.5


def eager(factor: float) -> Core:
    return lambda q, k, v: (q @ k.mT * factor).softmax(-1) @ v


def padded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (functional.pad(t, (0, 4)) for t in (q, k, v))
    return fused(q, k, v)[..., :D_K]


YARN = (0.1 * math.log(40) + 1) ** 2
ALIBI = 1 + torch.arange(N) / N

BUGS: dict[str, tuple[Core, str | float, str]] = {
    "q scaled, then the kernel's default": (
        lambda q, k, v: fused(q * ROOT, k, v),
        "sqrt",
        "1/d_k: scaled twice",
    ),
    "a configured 1 that the kernel does not get": (fused, "none", "1/√d_k; expected 1"),
    "root of the model's width": (
        eager(D_MODEL**-0.5),
        "sqrt",
        "1/√d_model: by model width",
    ),
    "divided by d^-½": (eager(D_K**0.5), "sqrt", "√d_k: on the wrong side"),
    "root of the number of heads": (eager(N_HEADS**-0.5), "sqrt", "1.549/√d_k; expected 0.2887"),
    "no factor": (eager(1.0), "sqrt", "none (1): not scaled"),
    "scaled after the softmax": (
        lambda q, k, v: (q @ k.mT).softmax(-1) * ROOT @ v,
        "sqrt",
        "none (1): not scaled",
    ),
    "padded heads": (padded, "sqrt", "0.866/√d_k: 1/√16, of padded heads"),
    "the square of YaRN's factor is missing": (fused, ROOT * YARN, "1/√d_k; expected 0.5409"),
    "a factor divided by d and not by its root": (
        lambda q, k, v: fused(q * (10 / D_K), k, v),
        10.0,
        "0.8333/√d_k; expected 10",
    ),
    # The further ones.
    "on both sides, whole": (
        lambda q, k, v: ((q * ROOT) @ (k * ROOT).mT).softmax(-1) @ v,
        "sqrt",
        "1/d_k: scaled twice",
    ),
    "rotated by a factor that is not unwound": (
        lambda q, k, v: fused(turned(q, 1.5), turned(k, 1.5), v),
        "sqrt",
        "2.25/√d_k",
    ),
    "on one side of two": (
        lambda q, k, v: ((q * D_K**-0.25) @ k.mT).softmax(-1) @ v,
        "sqrt",
        "d_k^-¼: on one side only",
    ),
    "a slope of the position multiplies the scores": (
        lambda q, k, v: (q @ k.mT * ROOT * ALIBI).softmax(-1) @ v,
        "sqrt",
        "not linear in q · k",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_is_named(bug: str) -> None:
    core, expect, words = BUGS[bug]
    report = examine(model(core), batch(), expect=expect)
    assert len(report.attentions) == 1
    text = "\n".join(str(finding) for finding in report.findings)
    assert words in text
    assert "FAIL" in text
    with pytest.raises(AssertionError, match="FAIL"):
        report.assert_healthy()


def test_the_right_way_is_healthy() -> None:
    report = examine(model(eager(ROOT)), batch(), expect="sqrt")
    assert report.findings == ()
    report.assert_healthy()


def test_a_soft_cap_that_a_kernel_drops_is_a_difference() -> None:
    capped = model(lambda q, k, v: (2 * torch.tanh(4 * q @ k.mT * ROOT / 2)).softmax(-1) @ v)
    dropped = model(lambda q, k, v: fused(4 * q, k, v))
    result = compare(capped, dropped, batch(), names=("eager", "fused"))
    (difference,) = result.differences
    assert "softcap 2.0" in difference.words
    assert not result.equal


def test_a_scale_that_only_decoding_sees_is_a_difference() -> None:
    attention = model(eager(ROOT))

    def core(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return fused(q, k, v) if attention.training else (q @ k.mT).softmax(-1) @ v

    attention.core = core
    result = compare(
        attention,
        attention,
        forward=(lambda m: m.train()(batch()), lambda m: m.eval()(batch())),
        names=("train", "eval"),
    )
    (difference,) = result.differences
    assert "scale 0.2887 in train, 1 in eval" in difference.words


def test_a_kernel_that_ignores_its_scale_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnscale.doctor.kernels import Fused

    plain = Fused.of

    def ignoring(bound: dict[str, object], output: Tensor) -> Fused:
        # As if the kernel had computed with another scale than it was given.
        return plain({**bound, "scale": 0.9}, output)

    monkeypatch.setattr(Fused, "of", ignoring)
    report = examine(model(fused), batch())
    assert "output is not that of its arguments" in str(report)


def test_saturated_rows_fail_whatever_the_scale() -> None:
    report = examine(model(lambda q, k, v: fused(9 * q, 9 * k, v)), batch())
    text = str(report)
    assert "FAIL (model): saturated:" in text
    assert "collapsed to one key" in text


def test_uniform_is_judged_against_what_untrained_weights_show() -> None:
    torch.manual_seed(0)
    untrained = model(eager(ROOT))
    for parameter in untrained.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    assert "uniform" not in str(examine(untrained, batch()))
    # Keys that are alike but for what q does not look at.
    collapsed = model(eager(ROOT))
    with torch.no_grad():
        basis = torch.linalg.qr(torch.randn(D_K, D_K))[0]
        for projection, part in ((collapsed.q, basis[:6]), (collapsed.k, basis[6:])):
            weight = projection.weight.view(N_HEADS, D_K, D_MODEL)
            projection.weight.copy_((part.mT @ part @ weight).flatten(0, 1))
            projection.bias.zero_()
    assert "collapsed to uniform" in str(examine(collapsed, batch()))


def test_a_sink_head_is_told() -> None:
    bias = torch.zeros(N)
    bias[0] = 6.0
    attention = model(lambda q, k, v: (q @ k.mT * ROOT + bias).softmax(-1) @ v)
    assert "sink on the first key: heads 0, 1, 2, 3, 4" in str(examine(attention, batch()))


def test_no_factor_and_small_weights_are_a_design() -> None:
    class T5Attention(type(model(eager(1.0)))):  # type: ignore[misc]
        """A name that says whose design it is."""

    attention = T5Attention(eager(1.0))
    (finding,) = examine(attention, batch()).findings
    assert finding.level == "NOTE"
    assert "no factor, and weights so small" in finding.words
    assert "as this model's design is" in finding.words


def test_normalised_q_and_k_are_never_called_not_scaled() -> None:
    core = WAYS["normalised"][0]
    text = str(examine(model(core), batch()))
    assert "normalised q, k × 9" in text
    assert "not scaled" not in text
