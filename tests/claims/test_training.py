"""Planted sweeps: what each says of the claim that it was run for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from attnscale.analysis.rates import Results
from attnscale.claims.judgement import DEPENDS, FAILS, HOLDS, OPEN, Judgement, together
from attnscale.claims.list import CLAIMS, judge_all
from attnscale.claims.training import (
    against,
    convergence,
    initialisation,
    speed,
    unit_variance,
    width,
)
from attnscale.tracking.runs import Run
from tests.support.evidence import EVIDENCE
from tests.support.runs import trained_run

NOISE = (0.0, 0.003, -0.002)
"""What a seed adds to a loss."""

Numbers = Sequence[float | None]


def runs(
    scale: str, losses: Numbers | float, *, d_k: int = 128, lr: float = 0.1, **more: Any
) -> list[Run]:
    """Return a run per seed; one number is a mean, to which each seed adds its noise."""
    if isinstance(losses, float):
        losses = [losses + x for x in NOISE]
    given: dict[str, Any] = {"start_loss": 1.0, **more}
    return [
        trained_run(scale=scale, d_k=d_k, lr=lr, seed=seed, loss=loss, **given)
        for seed, loss in enumerate(losses)
    ]


def spread(mean: float) -> list[float]:
    """Return losses whose noise is that of no other setting's seeds."""
    return [mean + 0.1, mean - 0.12, mean + 0.02]


DIVERGED: Numbers = (0.1, None, 0.1)


def judged(judge: Callable[[Results], Judgement], *groups: list[Run]) -> Judgement:
    return judge({"experiment": [run for group in groups for run in group]})


# --- claim 2 ---

SQRT = runs("sqrt", 0.2)


@pytest.mark.parametrize(
    ("verdict", "groups"),
    [
        (FAILS, [runs("none", 0.3)]),
        (HOLDS, [runs("none", 0.9)]),
        (HOLDS, [runs("none", DIVERGED)]),
        (DEPENDS, [runs("none", [0.3, 0.9, 0.3])]),
        # Another rate rescues it; one that diverges does not count against it, nor for it.
        (FAILS, [runs("none", DIVERGED), runs("none", 0.3, lr=0.01)]),
        (HOLDS, [runs("none", DIVERGED), runs("none", 0.9, lr=0.01)]),
        # Sizes that disagree.
        (
            DEPENDS,
            [runs("none", 0.3), runs("none", 0.9, d_k=512), runs("sqrt", 0.2, d_k=512)],
        ),
        # The claim is about d_k above 64 only.
        (FAILS, [runs("none", 0.3), runs("none", 0.9, d_k=64), runs("sqrt", 0.2, d_k=64)]),
        (OPEN, [runs("none", 0.9, d_k=64)]),
    ],
)
def test_convergence(verdict: str, groups: list[list[Run]]) -> None:
    assert judged(convergence, SQRT, *groups).verdict == verdict


def test_convergence_of_none_needs_no_run_of_sqrt() -> None:
    assert judged(convergence, runs("none", 0.3)).verdict == FAILS
    found = judged(convergence, runs("none", 0.3), runs("sqrt", DIVERGED))
    assert found.verdict == FAILS
    assert "sqrt no rate without a diverged run" in found.value
    # And says nothing without a run of its own.
    assert judged(convergence, SQRT) == Judgement(OPEN, "")


def test_convergence_says_how_it_was_found() -> None:
    found = judged(convergence, SQRT, runs("none", DIVERGED), runs("none", 0.3, lr=0.01))
    assert (
        "d_k=128: best loss none 0.3 from 1 at the start, sqrt 0.2, difference +0.1" in found.value
    )
    assert "1 of 6 diverged" in found.value


# --- claim 20 ---


def with_tests(scale: str, test: Numbers, curve: list[tuple[int, float]]) -> list[Run]:
    return [
        trained_run(
            scale=scale, d_k=128, seed=seed, loss=0.2 + x, start_loss=1.0, curve=curve, test_loss=t
        )
        for seed, (x, t) in enumerate(zip(NOISE, test, strict=True))
    ]


SLOW, FAST = [(10, 0.9), (40, 0.2)], [(10, 0.21), (20, 0.2), (40, 0.19)]


@pytest.mark.parametrize(
    ("verdict", "none", "sqrt"),
    [
        (HOLDS, (0.5, 0.51, 0.52), (0.2, 0.21, 0.221)),
        (FAILS, (0.2, 0.21, 0.221), (0.5, 0.51, 0.52)),
        (OPEN, (0.2, 0.3, 0.4), (0.4, 0.2, 0.3)),
    ],
)
def test_speed(verdict: str, none: Numbers, sqrt: Numbers) -> None:
    found = judged(speed, with_tests("none", none, SLOW), with_tests("sqrt", sqrt, FAST))
    assert found.verdict == verdict
    # The worst best loss of all runs, 0.203, is what both reach.
    assert "steps to a common validation loss 40 and 20" in found.value


def test_speed_is_open_without_a_rate_or_a_test() -> None:
    good = with_tests("sqrt", (0.2, 0.21, 0.22), FAST)
    assert judged(speed, good, runs("none", DIVERGED)).verdict == OPEN
    assert judged(speed, good, runs("none", 0.3)).verdict == OPEN
    assert judged(speed, good).verdict == OPEN


def test_a_loss_that_is_never_reached_has_no_steps() -> None:
    found = judged(
        speed,
        with_tests("none", (0.5, 0.51, 0.52), [(10, 0.9)]),
        with_tests("sqrt", (0.2, 0.21, 0.221), FAST),
    )
    assert "common validation loss nan and 20" in found.value


# --- claims 8, 13, 18, 19 ---

WORSE_IS_HOLDS = against("sqrt", FAILS, HOLDS)


@pytest.mark.parametrize(
    ("verdict", "others"),
    [
        (HOLDS, {"learned": [0.3, 0.3, 0.31]}),
        (FAILS, {"learned": [0.1, 0.1, 0.11]}),
        (OPEN, {"learned": spread(0.2)}),
        (OPEN, {}),
        (DEPENDS, {"learned": [0.1, 0.1, 0.11], "learned_shared": [0.3, 0.3, 0.31]}),
        # What is within noise says nothing beside what is not.
        (HOLDS, {"learned": [0.3, 0.3, 0.31], "learned_shared": spread(0.2)}),
    ],
)
def test_against_the_reference(verdict: str, others: Mapping[str, Numbers]) -> None:
    found = judged(WORSE_IS_HOLDS, SQRT, *(runs(s, losses) for s, losses in others.items()))
    assert found.verdict == verdict
    assert all(f"{scale} − sqrt" in found.value for scale in others)


def test_against_compares_each_at_its_best_rate_and_names_what_diverged() -> None:
    better_elsewhere = [
        runs("b", 0.9),
        runs("b", [0.1, 0.1, 0.11], lr=0.01),
        runs("b", DIVERGED, lr=1),
    ]
    found = judged(
        WORSE_IS_HOLDS, SQRT, *better_elsewhere, runs("z", DIVERGED), runs("a", DIVERGED)
    )
    assert found.verdict == FAILS
    assert found.value.endswith("; a: diverged; z: diverged")
    # No reference, nothing to compare with.
    assert judged(WORSE_IS_HOLDS, runs("b", 0.1)).verdict == OPEN
    assert judged(WORSE_IS_HOLDS, runs("sqrt", DIVERGED), runs("b", 0.1)).verdict == OPEN


def test_what_a_better_or_worse_mode_means_for_each_claim() -> None:
    better, worse = runs("other", [0.1, 0.1, 0.11]), runs("other", [0.3, 0.3, 0.31])
    judges = {c.number: c.training for c in CLAIMS if c.training is not None}
    found = {
        number: (
            judged(judges[number], SQRT, better).verdict,
            judged(judges[number], SQRT, worse).verdict,
        )
        for number in (8, 13, 18, 19)
    }
    assert found == {
        8: (FAILS, FAILS),
        13: (HOLDS, FAILS),
        18: (FAILS, HOLDS),
        19: (FAILS, HOLDS),
    }


# --- claim 9 ---


def factor(times: float, losses: Numbers | float) -> list[Run]:
    return runs(f"{times / 8:g}", losses, d_k=64)


UNIT = factor(1, 0.2)


@pytest.mark.parametrize(
    ("verdict", "others"),
    [
        (HOLDS, [factor(4, [0.3, 0.3, 0.31]), factor(0.25, [0.4, 0.4, 0.41])]),
        (FAILS, [factor(4, [0.3, 0.3, 0.31]), factor(0.25, [0.1, 0.1, 0.11])]),
        (FAILS, [factor(4, spread(0.2))]),
        (HOLDS, [factor(4, DIVERGED)]),
        (OPEN, []),
        # A single seed settles nothing.
        (OPEN, [factor(4, [0.3])]),
        (HOLDS, [factor(4, [0.1]), factor(16, [0.3, 0.3, 0.31])]),
    ],
)
def test_unit_variance(verdict: str, others: list[list[Run]]) -> None:
    assert judged(unit_variance, UNIT, *others).verdict == verdict


def test_unit_variance_needs_its_reference_and_says_the_factors() -> None:
    assert judged(unit_variance, factor(4, 0.3), factor(0.25, 0.3)).verdict == OPEN
    assert judged(unit_variance, factor(1, DIVERGED), factor(4, 0.3)).verdict == OPEN
    found = judged(unit_variance, UNIT, factor(16, DIVERGED), factor(4, 0.3), factor(0.25, 0.3))
    parts = [part.partition(" ")[0].rstrip(":") for part in found.value.split("; ")]
    assert parts == ["0.25/√d_k", "4/√d_k", "16/√d_k"]
    assert found.value.endswith("16/√d_k: diverged")


# --- claim 15 ---


@pytest.mark.parametrize(
    ("verdict", "groups"),
    [
        (FAILS, [runs("sqrt", 0.2, d_k=8), runs("sqrt", [0.3, 0.3, 0.31], d_k=32)]),
        (FAILS, [runs("sqrt", [0.3, 0.3, 0.31], d_k=8), runs("sqrt", 0.2, d_k=32)]),
        (OPEN, [runs("sqrt", 0.2, d_k=8), runs("sqrt", spread(0.2), d_k=32)]),
        (OPEN, [runs("sqrt", 0.2, d_k=8)]),
        (OPEN, [runs("sqrt", 0.2, d_k=8), runs("sqrt", DIVERGED, d_k=32)]),
    ],
)
def test_width(verdict: str, groups: list[list[Run]]) -> None:
    assert judged(width, *groups).verdict == verdict


def test_widths_are_compared_with_the_smallest() -> None:
    found = judged(width, *(runs("sqrt", d / 100, d_k=d) for d in (128, 8, 32)))
    assert [part.partition(":")[0] for part in found.value.split("; ")] == [
        "d_k=32 − d_k=8",
        "d_k=128 − d_k=8",
    ]


# --- claim 21 ---


def initialised(gaps: Mapping[str, float]) -> list[list[Run]]:
    """Return runs of none and sqrt with a ratio of losses per variant."""
    return [
        runs(scale, [loss * (1 + x) for x in NOISE], variant=variant)
        for variant, gap in gaps.items()
        for scale, loss in (("none", 0.1 * gap), ("sqrt", 0.1))
    ]


@pytest.mark.parametrize(
    ("verdict", "gaps"),
    [
        (HOLDS, {"torch norm=none": 2.0, "unit norm=none": 9.0, "unit norm=pre": 1.0}),
        (DEPENDS, {"torch norm=none": 9.0, "unit norm=none": 9.0, "unit norm=pre": 1.0}),
        (DEPENDS, {"torch norm=none": 2.0, "unit norm=none": 9.0, "unit norm=pre": 8.0}),
        (FAILS, {"torch norm=none": 2.0, "unit norm=none": 2.0, "unit norm=pre": 2.0}),
        (OPEN, {"torch norm=none": 2.0, "unit norm=none": 9.0}),
        (OPEN, {"unit norm=pre": 9.0}),
    ],
)
def test_initialisation(verdict: str, gaps: Mapping[str, float]) -> None:
    found = judged(initialisation, *initialised(gaps))
    assert found.verdict == verdict
    for variant, gap in gaps.items():
        assert f"{variant}: none ÷ sqrt {gap:g}, " in found.value


def test_a_variant_that_diverged_is_no_evidence() -> None:
    made = initialised({"a norm=none": 9.0, "b norm=none": 2.0, "b norm=pre": 1.0})
    lost = runs("none", DIVERGED, variant="c norm=none")
    found = judged(initialisation, *made, lost, runs("sqrt", 0.1, variant="c norm=none"))
    assert found.verdict == HOLDS
    assert "c norm=none" not in found.value


# --- all together ---


def settled(results: Results, **changed: Any) -> dict[int, Judgement]:
    made = judge_all(replace(EVIDENCE, **changed), results)
    assert [one.claim for one in made] == list(CLAIMS)
    return {one.claim.number: one.judgement for one in made}


def test_what_was_not_run_is_open_and_says_how_to_run_it() -> None:
    found = settled({"claim_width": []})
    for claim in CLAIMS:
        judgement = found[claim.number]
        if claim.theory is None:
            assert judgement.verdict == OPEN
            assert judgement.value.startswith("not run: ")
        for name in claim.experiments:
            assert f"`python -m src.train -m experiment={name}`" in judgement.value
    # Theory holds, training is not run: open. Theory fails or depends: that stands.
    theory = next(c for c in CLAIMS if c.number == 18)
    assert theory.theory is not None
    assert theory.theory(EVIDENCE).verdict == HOLDS
    assert found[18].verdict == OPEN
    assert found[8].verdict == DEPENDS
    assert settled({}, folding=[("Adam", 0.1)])[8].verdict == FAILS
    # Claims that need no training are what theory says.
    assert [found[n].verdict for n in (1, 3, 4, 7, 17)] == [FAILS, FAILS, DEPENDS, FAILS, FAILS]
    assert settled({}, cosine_stds=[(64, EVIDENCE.cosine_stds[0][1])] * 2)[10].verdict == HOLDS


def test_theory_and_trainingtogether() -> None:
    worse, better = runs("inverse", [0.3, 0.3, 0.31]), runs("inverse", [0.1, 0.1, 0.11])
    held = settled({"claim_inverse": [*SQRT, *worse]})[18]
    assert held.verdict == HOLDS
    assert "H/ln n" in held.value
    assert "; trained: best validation loss, inverse − sqrt +" in held.value
    assert settled({"claim_inverse": [*SQRT, *better]})[18].verdict == DEPENDS
    # Runs that cannot tell leave it open.
    noise = runs("inverse", spread(0.2))
    assert settled({"claim_inverse": [*SQRT, *noise]})[18].verdict == OPEN


def test_each_claim_reads_its_own_experiments_only() -> None:
    sweep = [*SQRT, *runs("none", 0.9), *runs("learned", [0.1, 0.1, 0.11])]
    before = settled({})
    for claim in CLAIMS:
        for name in claim.experiments:
            if claim.number in (9, 21):
                continue  # Their sweeps have other scales.
            found = settled({name: sweep})
            changed = {number for number in found if found[number] != before[number]}
            assert changed == {c.number for c in CLAIMS if name in c.experiments}
            assert "not run" not in found[claim.number].value
    assert settled({"claim_of_another": sweep}) == before


def test_two_experiments_of_a_claim_may_disagree() -> None:
    first, second = next(c for c in CLAIMS if c.number == 2).experiments
    converged, not_converged = [*SQRT, *runs("none", 0.3)], [*SQRT, *runs("none", 0.9)]
    assert settled({first: converged, second: converged})[2].verdict == FAILS
    assert settled({first: converged, second: not_converged})[2].verdict == DEPENDS
    assert settled({second: not_converged})[2].verdict == HOLDS


def test_every_claim_that_only_training_can_tell_has_a_judge_or_is_open() -> None:
    assert all(claim.experiments for claim in CLAIMS if claim.training is not None)
    unjudged = [c.number for c in CLAIMS if c.experiments and c.training is None]
    for number in unjudged:
        (name, *_) = next(c for c in CLAIMS if c.number == number).experiments
        found = settled({name: SQRT})[number]
        assert found.verdict == OPEN
        assert f"recorded, not judged yet: {name}" in found.value


def test_one_verdict_for_several() -> None:
    assert together([]) == OPEN
    assert together([OPEN, OPEN]) == OPEN
    assert together([HOLDS, OPEN]) == HOLDS
    assert together([FAILS, FAILS]) == FAILS
    assert together([HOLDS, FAILS]) == DEPENDS
    assert together([HOLDS, DEPENDS]) == DEPENDS
    assert together([DEPENDS, OPEN]) == DEPENDS
