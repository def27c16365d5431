"""One scale beside another, at each one's best rate: planted sweeps, and what they say."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from attnscale.analysis.rates import Results
from attnscale.claims import scales
from attnscale.claims.judgement import DEPENDS, FAILS, HOLDS, OPEN, Judgement
from attnscale.tracking.runs import Run
from tests.claims.sweeps import ALLOWED, arm, count, judged

Judge = Callable[[Results], Judgement]

WIDE = (0.1, 0.3, 0.2, 0.15, 0.25)
"""Losses of mean 0.2 whose noise is that of no other arm's seeds."""

SQRT = arm("sqrt", 0.2)


@pytest.mark.parametrize(
    ("judge", "scale", "equal", "better", "worse"),
    [
        (scales.folding, "folded", HOLDS, FAILS, FAILS),
        (scales.learned, "learned", HOLDS, FAILS, HOLDS),
        (scales.flatness, "inverse", FAILS, FAILS, HOLDS),
        (scales.length_law, "ssmax", FAILS, HOLDS, FAILS),
        (scales.length_law, "log_n_base", FAILS, HOLDS, FAILS),
    ],
)
def test_what_an_equal_a_better_and_a_worse_mode_mean(
    judge: Judge, scale: str, equal: str, better: str, worse: str
) -> None:
    losses: dict[float, str] = {0.2001: equal, 0.1: better, 0.3: worse}
    for loss, verdict in losses.items():
        assert judged(judge, SQRT, arm(scale, loss)).verdict == verdict
    # A difference that is certain, and too small to matter: 2 % of 0.2 is 0.004.
    assert judged(judge, SQRT, arm(scale, 0.2 - 0.002)).verdict == equal
    assert judged(judge, SQRT, arm(scale, WIDE)).verdict == OPEN
    assert judged(judge, SQRT) == Judgement(OPEN, "missing: arms to compare with sqrt")
    assert judged(judge, arm(scale, 0.2)).verdict == OPEN


def test_a_control_that_differs_says_nothing_of_folding_but_widens_the_margin() -> None:
    noisy = arm("none_equiv", [0.2, 0.22, 0.18, 0.19, 0.21])
    # Within two standard deviations of the control, 0.03; without it 5 % of 0.2 is a difference.
    assert judged(scales.folding, SQRT, arm("folded", 0.21)).verdict == FAILS
    judgement = judged(scales.folding, SQRT, arm("folded", 0.21), noisy)
    assert judgement.verdict == HOLDS
    assert "none_equiv − sqrt" not in judgement.value
    # The control far off, by the same in every seed, is no noise.
    assert judged(scales.folding, SQRT, arm("folded", 0.2), arm("none_equiv", 0.9)).verdict == HOLDS


def test_folding_is_judged_by_optimizer() -> None:
    adam, sgd = ({"optimizer._target_": f"torch.optim.{name}"} for name in ("Adam", "SGD"))
    runs = [
        *arm("sqrt", 0.2, parameters=adam),
        *arm("folded", 0.2, parameters=adam),
        *arm("sqrt", 0.5, parameters=sgd),
        *arm("folded", 0.7, parameters=sgd),
    ]
    judgement = judged(scales.folding, runs)
    assert judgement.verdict == DEPENDS
    assert "model=SGD" in judgement.value


@pytest.mark.parametrize(
    ("verdict", "own", "usual"),
    [
        # The worse arm's best rate is an end: it may be better outside.
        (OPEN, {"best": 1.0}, {}),
        (OPEN, {"best": 0.01}, {}),
        # That of sqrt is: it could only be better still.
        (HOLDS, {}, {"best": 1.0}),
        (HOLDS, {}, {}),
        # One rate is an end of its grid.
        (OPEN, {"rates": [0.1]}, {"rates": [0.1]}),
    ],
)
def test_an_optimum_at_an_end_leaves_open_what_could_change(
    verdict: str, own: dict[str, Any], usual: dict[str, Any]
) -> None:
    judgement = judged(scales.flatness, arm("inverse", 0.3, **own), arm("sqrt", 0.2, **usual))
    assert judgement.verdict == verdict
    ends = {scale for scale in ("inverse", "sqrt") if f"best rate of {scale}" in judgement.value}
    assert ends == {s for s, x in (("inverse", own), ("sqrt", usual)) if x}


def test_an_equivalence_needs_both_optima_inside() -> None:
    assert judged(scales.folding, arm("folded", 0.2), SQRT).verdict == HOLDS
    assert judged(scales.folding, arm("folded", 0.2, best=1.0), SQRT).verdict == OPEN
    assert judged(scales.folding, arm("folded", 0.2), arm("sqrt", 0.2, best=1.0)).verdict == OPEN


def test_lost_runs_are_told_and_favour_nobody() -> None:
    lost = [0.1, 0.1002, None, 0.1001, 0.0999]
    judgement = judged(scales.length_law, arm("ssmax", lost), SQRT)
    assert judgement.verdict == OPEN
    assert "ssmax lost 1 of 5 runs" in judgement.value
    # Worse, and some of the worst not counted: worse all the same.
    assert judged(scales.flatness, arm("inverse", [0.3, 0.31, None]), SQRT).verdict == HOLDS
    # Worse than the better runs of sqrt, which is not known to be worse than all.
    assert (
        judged(scales.flatness, arm("inverse", 0.3), arm("sqrt", [0.2] * 4 + [None])).verdict
        == OPEN
    )
    # All of them, significantly more often than sqrt.
    all_lost = judged(scales.flatness, arm("inverse", [None] * 5), SQRT)
    assert all_lost.verdict == HOLDS
    assert all_lost.value.endswith("inverse − sqrt: every run lost")
    few = judged(scales.flatness, arm("inverse", [None], rates=[0.1]), SQRT[5:6])
    assert few.verdict == OPEN


def test_several_modes_are_one_family() -> None:
    # p = 0.03 alone, 0.06 as the smaller of two.
    shifted = [0.2 * (1 - 0.06 * x) for x in (1.9, 0.5, 1.1, 0.3, 0.8)]
    even = arm("sqrt", [0.2] * 5)
    alone = judged(scales.learned, even, arm("learned", shifted))
    assert alone.verdict == FAILS
    other = arm("learned_shared", [0.2, 0.23, 0.17, 0.19, 0.22])
    assert judged(scales.learned, even, arm("learned", shifted), other).verdict == OPEN


def test_a_mode_that_sharpens_speaks_of_the_law_only_where_the_spread_is_the_same() -> None:
    def of(scale: str, loss: float, std: float) -> list[Run]:
        return arm(scale, loss, curves={"attention/encoder.0.self/logit_std_row": [(0, std)]})

    usual = of("sqrt", 0.2, 0.31)
    assert judged(scales.length_law, usual, of("log_n", 0.1, 0.72)).verdict == OPEN
    assert judged(scales.length_law, usual, of("log_n", 0.1, 0.315)).verdict == HOLDS
    assert judged(scales.length_law, usual, of("ssmax", 0.1, 0.72)).verdict == HOLDS


def test_the_law_of_length_is_judged_where_sentences_are_longer_than_those_of_training() -> None:
    def of(scale: str, short: float, middle: float, long: float) -> list[Run]:
        losses = {"1_9": short, "10_13": middle, "14_up": long}
        runs = []
        for seed in range(5):
            figures = {f"test/loss_length_{k}": x + 0.001 * seed for k, x in losses.items()}
            every = arm(scale, [0.2] * (seed + 1), figures=figures)
            runs += [run for run in every if run.seed == seed]
        return runs

    usual = of("sqrt", 0.2, 0.4, 0.8)
    for verdict, mode in (
        (HOLDS, of("ssmax", 0.3, 0.3, 0.5)),
        (FAILS, of("ssmax", 0.1, 0.4, 0.8)),
        (DEPENDS, of("ssmax", 0.1, 0.4, 0.5)),
    ):
        judgement = judged(scales.length_law, usual, mode)
        assert judgement.verdict == verdict
        assert "loss_length_1_9" not in judgement.value


# --- claim 9 ---


def factor(std: float, losses: Any, *, scale: float | None = None, **more: Any) -> list[Run]:
    """Return an arm of a constant factor with the deviation that was measured at step 0."""
    curves = {
        "attention/a/logit_std_row": [(500, 9.0), (0, std)],
        "attention/a/head0/logit_std_row": [(0, 77.0)],
    }
    return arm(f"{scale or std}", losses, curves=curves, **more)


UNIT = factor(1.1, 0.2)


@pytest.mark.parametrize(
    ("verdict", "others"),
    [
        (HOLDS, [factor(0.3, 0.3), factor(4.0, 0.4)]),
        (FAILS, [factor(0.3, 0.2), factor(4.0, 0.4)]),
        (FAILS, [factor(0.3, 0.3), factor(4.0, 0.1)]),
        # What is near 1 as well says nothing.
        (HOLDS, [factor(0.8, 0.1), factor(4.0, 0.4)]),
        (OPEN, [factor(0.8, 0.1)]),
        # Noise is no evidence, for nobody.
        (OPEN, [factor(0.3, WIDE), factor(4.0, 0.4)]),
        (OPEN, [factor(0.3, [0.2])]),
        # One that diverges is worse.
        (HOLDS, [factor(4.0, [None] * 5)]),
        # It would do better elsewhere, which makes no difference where it is as good.
        (FAILS, [factor(4.0, 0.2, best=1.0)]),
        (OPEN, [factor(4.0, 0.3, best=1.0)]),
    ],
)
def test_unit_variance(verdict: str, others: Sequence[list[Run]]) -> None:
    assert judged(scales.unit_variance, UNIT, *others).verdict == verdict


def test_no_attention_is_no_factor_and_sqrt_by_number_has_its_control() -> None:
    assert judged(scales.unit_variance, UNIT, factor(1e-20, 0.2)).verdict == OPEN
    # What stands for a deviation of 1 might be better at another rate than another is.
    assert (
        judged(scales.unit_variance, factor(1.1, 0.2, best=1.0), factor(4.0, 0.2)).verdict == OPEN
    )
    # 10 % of a loss are a difference, unless rounding makes as much of one.
    sqrt, other = factor(1.1, 0.2, scale=0.125, d_k=64), factor(4.0, 0.22, d_k=64)
    rounded = arm("none_equiv", [0.2, 0.23, 0.17, 0.22, 0.18], d_k=64)
    assert judged(scales.unit_variance, sqrt, other).verdict == HOLDS
    assert judged(scales.unit_variance, sqrt, other, rounded).verdict == FAILS


def test_the_arm_of_deviation_1_is_the_one_that_was_measured() -> None:
    # 1/√d_k by name, 0.3 as measured; the factor of 4/√d_k has 1.2.
    small, large = factor(0.3, 0.3, scale=0.125), factor(1.2, 0.2, scale=0.5)
    judgement = judged(scales.unit_variance, small, large)
    assert judgement.verdict == HOLDS
    assert "deviation 0.3 (0.125) − 1.2 (0.5)" in judgement.value
    missing = judged(scales.unit_variance, small, factor(4.0, 0.1, scale=2.0))
    assert missing.verdict == OPEN
    assert "a factor whose logits have a deviation near 1" in missing.value


# --- claim 15 ---


def size(d_k: int, losses: Any, *, heads: int = 4, **more: Any) -> list[Run]:
    return arm("sqrt", losses, d_k=d_k, parameters={"model.n_heads": str(heads)}, **more)


@pytest.mark.parametrize(
    ("verdict", "sizes"),
    [
        (HOLDS, [size(8, 0.2), size(32, 0.2), size(128, 0.201)]),
        (FAILS, [size(8, 0.2), size(32, 0.3), size(128, 0.3)]),
        (FAILS, [size(8, 0.2), size(32, 0.1)]),
        (DEPENDS, [size(8, 0.2), size(32, 0.2), size(128, 0.3)]),
        (OPEN, [size(8, 0.2), size(32, WIDE)]),
        (OPEN, [size(8, 0.2)]),
    ],
)
def test_width(verdict: str, sizes: Sequence[list[Run]]) -> None:
    assert judged(scales.width, *sizes).verdict == verdict


def test_widths_are_compared_within_a_design() -> None:
    judgement = judged(scales.width, size(8, 0.2, heads=4), size(32, 0.2, heads=1), size(32, 0.3))
    assert judgement.verdict == DEPENDS
    assert "experiment, 4 heads, d_k=32 − d_k=8" in judgement.value
    assert "experiment, heads · d_k = 32, d_k=32 − d_k=8" in judgement.value
    assert judgement.value.count(" − d_k=") == 2


# --- no effect ---


def noise(*names: str) -> Callable[[np.random.Generator], list[Run]]:
    """Return a maker of sweeps whose arms differ by chance alone, by 10 % of a loss."""

    def sweep(generator: np.random.Generator) -> list[Run]:
        return [
            trained
            for name in names
            for trained in arm(name, list(0.2 * np.exp(0.1 * generator.standard_normal(4))))
        ]

    return sweep


@pytest.mark.parametrize(
    ("judge", "names", "verdicts"),
    [
        (scales.folding, ("sqrt", "folded", "none_equiv"), (FAILS, DEPENDS)),
        (scales.learned, ("sqrt", "learned", "learned_shared"), (FAILS, DEPENDS)),
        (scales.flatness, ("sqrt", "inverse"), (HOLDS,)),
        (scales.length_law, ("sqrt", "log_n_base", "ssmax"), (HOLDS, DEPENDS)),
    ],
)
def test_without_an_effect_none_is_found(
    judge: Judge, names: Sequence[str], verdicts: Sequence[str]
) -> None:
    counts = count(judge, noise(*names))
    assert sum(counts.get(verdict, 0) for verdict in verdicts) <= ALLOWED, counts


def test_without_an_effect_no_deviation_is_the_right_one() -> None:
    def sweep(generator: np.random.Generator) -> list[Run]:
        return [
            trained
            for std in (0.3, 1.0, 4.0)
            for trained in factor(std, list(0.2 * np.exp(0.1 * generator.standard_normal(4))))
        ]

    assert count(scales.unit_variance, sweep).get(HOLDS, 0) <= ALLOWED


def test_without_an_effect_no_width_is_better() -> None:
    def sweep(generator: np.random.Generator) -> list[Run]:
        return [
            trained
            for d_k in (8, 32, 128)
            for trained in size(d_k, list(0.2 * np.exp(0.1 * generator.standard_normal(4))))
        ]

    counts = count(scales.width, sweep)
    assert counts.get(FAILS, 0) + counts.get(DEPENDS, 0) <= ALLOWED, counts
