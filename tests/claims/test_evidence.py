"""The identities behind the claims, and what the computed evidence should be."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from attnscale.claims import evidence as module
from attnscale.claims.evidence import (
    OPTIMIZERS,
    Evidence,
    collect,
    loss_curve,
    overflow,
    reformer_ratios,
    small_model,
)
from attnscale.claims.judgement import DEPENDS, FAILS, HOLDS
from attnscale.claims.list import CLAIMS
from attnscale.claims.theory import reformer
from attnscale.theory.closed_form_softmax import saturated
from attnscale.theory.tables import SHIFTED, largest_of
from tests.support.evidence import EVIDENCE, near

# Not a power of two, whose root would make every product exact.
D_K = 11


@pytest.fixture(scope="module")
def collected() -> Evidence:
    return collect(initial=[("unit", near(1.0))], seed=3)


def test_the_factor_is_a_reparametrisation() -> None:
    assert module._reparametrised(D_K, 0) < 1e-12
    # The two are different models before W_q is changed.
    plain, unscaled = (small_model(scale, d_k=D_K, seed=0) for scale in ("sqrt", "none"))
    unscaled.load_state_dict(plain.state_dict())
    x = torch.randn(3, 5, 32, dtype=torch.float64)
    with torch.no_grad():
        assert float((plain(x) - unscaled(x)).abs().max()) > 1e-2


@pytest.mark.parametrize(
    ("rule", "least", "most"),
    [("Adam", 1e-3, 1.0), ("SGD", 1e-3, 1.0), ("Adafactor", 0.0, 1e-6)],
)
def test_folding_is_the_same_where_steps_go_with_the_weights(
    rule: str, least: float, most: float
) -> None:
    folded, plain = (
        loss_curve(scale, OPTIMIZERS[rule], d_k=D_K, seed=0, steps=20)
        for scale in ("folded", "sqrt")
    )
    # The functions are equal before the first step, whatever the optimizer; W_q is drawn in fp32.
    torch.testing.assert_close(folded[0], plain[0], rtol=1e-7, atol=0.0)
    assert least <= module._difference(folded, plain) < most
    assert plain[-5:].mean() < plain[:5].mean(), "nothing was learned"


def test_a_curve_is_drawn_from_its_seed_and_disturbs_no_other_draw() -> None:
    state = torch.random.get_rng_state()
    curves = [
        loss_curve("sqrt", OPTIMIZERS["Adam"], d_k=D_K, seed=seed, steps=3) for seed in (1, 1, 2)
    ]
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(curves[0], curves[1])
    assert not torch.equal(curves[0], curves[2])
    assert curves[0].shape == (3,)
    assert curves[0].dtype == torch.float64


def test_softmax_sees_differences_only() -> None:
    wanted = 1 / (1 + math.exp(-0.5) + math.exp(-1.5))
    assert [largest_of(vector) for vector in SHIFTED] == pytest.approx([wanted] * 3, rel=1e-12)
    assert module._subtracting(5) < 1e-12


def test_what_is_collected(collected: Evidence) -> None:
    e = collected
    low, high, tenfold = e.largest_of_shifted
    wanted = 1 / (1 + math.exp(-0.5) + math.exp(-1.5))
    assert (low, high) == pytest.approx((wanted, wanted))
    assert tenfold == pytest.approx(1 / (1 + math.exp(-5) + math.exp(-15)))
    assert e.initial_stds == [("unit", near(1.0))]
    # The keys lose their lengths, which are not 1; the division by √d_k stays.
    assert all(0.8 < x.value < 0.9 for _, x in e.reformer)
    assert e.reparametrised < 1e-12
    folding = dict(e.folding)
    assert list(folding) == list(OPTIMIZERS)
    assert folding["Adafactor"] < 1e-6
    assert min(folding["Adam"], folding["SGD"]) > 1e-3
    assert e.adam_difference > 1e-3
    assert [d_k for d_k, _ in e.cosine_stds] == [64, 512]
    for d_k, found in e.cosine_stds:
        # The mean of deviations of 14 is smaller than their root mean square, by a quarter of 2/13.
        assert found.value == pytest.approx(10 / d_k**0.5, rel=0.05)
    normed, one_length, untrained = e.row_spread
    assert normed.high < 1e-3
    # The deviation of 14 independent normal numbers has itself one of 1/√(2 · 13), about.
    assert one_length.value == pytest.approx(26**-0.5, rel=0.15)
    # Logits of deviation 1/3 under this initialisation.
    assert 0.01 < untrained.value < one_length.value
    assert e.subtracting < 1e-12
    flat, usual = e.inverse_entropy
    assert flat.value == pytest.approx(0.997, abs=1e-3)
    assert usual.value == pytest.approx(0.846, abs=4e-3)


def test_gradients_grow_without_the_factor_while_fewer_rows_are_live(collected: Evidence) -> None:
    # At β = 1 the gain of 14 keys is 0.318; for large β there is a closed form.
    assert [d_k for d_k, _, _ in collected.gradient_ratios] == [16, 64, 512]
    for d_k, ratio, _ in collected.gradient_ratios[1:]:
        expected = saturated(14, d_k**0.5)["gain"] / 0.318
        assert abs(ratio.value - expected) <= 4 * ratio.error + 0.03 * expected, (ratio, expected)
    for _, ratio, _ in collected.gradient_ratios:
        assert ratio.low == pytest.approx(ratio.value - 1.96 * ratio.error)
        assert ratio.high == pytest.approx(ratio.value + 1.96 * ratio.error)
        assert 0 < ratio.error < 0.1 * ratio.value
    live = [found.value for _, _, found in collected.gradient_ratios]
    assert live[0] > live[1] > live[2] > 0


def test_a_typical_row_loses_its_gradient_where_few_rows_carry_the_norm(
    collected: Evidence,
) -> None:
    medians = {d_k: median for d_k, median, _ in collected.row_gradients}
    assert medians[16].low > 1
    assert medians[512].high < 0.1
    for _, median, smaller in collected.row_gradients:
        assert median.low <= median.value <= median.high
        # The median is below 1 where more than half of the rows are.
        assert (median.value < 1) == (smaller.value > 0.5)


def test_three_naive_implementations_and_this_one_where_scores_are_large() -> None:
    # Scores of deviation 50² · √1024 = 80,000: fp16 ends at 65,504 = 0.82 of it, which 41 % exceed,
    # so that no row of 14 is likely to be free of infinities; exp of fp32 ends at 88.
    shares = dict(overflow(std=50.0, d_k=1024, seed=0))
    plain, bfloat16, exponentials, attend = shares.values()
    assert plain < 0.2
    assert exponentials < 0.6
    assert (bfloat16, attend) == (1.0, 1.0)
    # Where scores have deviation 32, three of them are finite, and exp is not.
    assert [share == 1.0 for _, share in overflow(std=1.0, d_k=1024, seed=0)] == [
        *(True, True, False, True)
    ]


def test_every_claim_with_a_judge_is_judged(collected: Evidence) -> None:
    parts = [pair for claim in CLAIMS for pair in claim.labelled.items()]
    found = {label: part.theory(collected).verdict for label, part in parts if part.theory}
    assert set(found.values()) <= {HOLDS, FAILS, DEPENDS}
    # What these computations must show, whatever the seed.
    fails = dict.fromkeys(("1", "3a", "6", "7", "10", "11", "14", "16"), FAILS)
    assert found == fails | {
        **dict.fromkeys(("3b", "8", "17"), DEPENDS),
        **dict.fromkeys(("4", "18a"), HOLDS),
    }


def unit_keys(k: torch.Tensor) -> torch.Tensor:
    return k / k.square().mean(dim=-1, keepdim=True).sqrt()


RULES: dict[str, tuple[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "raw keys": (FAILS, lambda q, k: (q[:, None] * k).sum(-1) / q.shape[-1] ** 0.5),
    "no factor": (HOLDS, lambda q, k: (q[:, None] * unit_keys(k)).sum(-1)),
    "the factor twice": (HOLDS, lambda q, k: (q[:, None] * unit_keys(k)).sum(-1) / q.shape[-1]),
    # What "a learnable temperature in its place" would be, with 10 learned.
    "cosine": (HOLDS, lambda q, k: 10 * torch.cosine_similarity(q[:, None], k, dim=-1)),
}


@pytest.mark.parametrize("name", RULES)
def test_reformer_would_be_judged_otherwise_by_another_rule(name: str) -> None:
    verdict, rule = RULES[name]
    ratios = reformer_ratios(7, rule)
    assert reformer(replace(EVIDENCE, reformer=ratios)).verdict == verdict
    if name == "raw keys":
        assert [x.value for _, x in ratios] == pytest.approx([1.0] * 3, rel=1e-5)
