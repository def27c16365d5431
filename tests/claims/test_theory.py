"""Verdicts follow from the evidence: each is turned both ways by changing it."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from attnscale.claims.judgement import DEPENDS, FAILS, HOLDS, OPEN, Judgement
from attnscale.claims.list import CLAIMS, Claim
from tests.support.evidence import EVIDENCE, near

EXPERIMENTS = Path(__file__).parents[2] / "conf" / "experiment"
JUDGED = {claim.number: claim for claim in CLAIMS if claim.theory is not None}

Change = dict[str, Any]

TURNED: dict[int, list[tuple[str, Change]]] = {
    1: [
        (FAILS, {"largest_of_shifted": (0.5, 0.5 + 1e-12, 0.99)}),
        (HOLDS, {"largest_of_shifted": (0.5, 0.51, 0.99)}),
    ],
    3: [
        (FAILS, {"gradient_ratios": [(16, near(4.0), near(0.9)), (64, near(1.0), near(0.1))]}),
        (HOLDS, {"gradient_ratios": [(16, near(0.5), near(0.9)), (64, near(0.1), near(0.1))]}),
        (DEPENDS, {"gradient_ratios": [(16, near(0.5), near(0.9)), (64, near(2.0), near(0.1))]}),
        # Below 1, but not beyond its interval.
        (FAILS, {"gradient_ratios": [(16, near(0.99), near(0.9))]}),
    ],
    4: [
        (FAILS, {"initial_stds": [("torch", near(0.33)), ("kaiming", near(2.0))]}),
        (HOLDS, {"initial_stds": [("torch", near(0.96)), ("unit", near(1.04))]}),
        (DEPENDS, {"initial_stds": [("torch", near(0.33)), ("unit", near(1.0))]}),
    ],
    5: [
        (HOLDS, {"growth_at_start": near(0.51)}),
        (FAILS, {"growth_at_start": near(0.55)}),
        (FAILS, {"growth_at_start": near(0.45)}),
    ],
    6: [
        (FAILS, {"reformer": [(16, near(0.7)), (64, near(0.69)), (256, near(0.71))]}),
        # The factor is gone, or there twice.
        (HOLDS, {"reformer": [(16, near(2.8)), (64, near(5.6)), (256, near(11.2))]}),
        (HOLDS, {"reformer": [(16, near(0.2)), (64, near(0.1)), (256, near(0.05))]}),
    ],
    7: [(FAILS, {"reparametrised": 1e-14}), (HOLDS, {"reparametrised": 1e-3})],
    8: [
        (HOLDS, {"folding": [("Adam", 1e-9), ("SGD", 1e-9)]}),
        (FAILS, {"folding": [("Adam", 0.1), ("SGD", 0.2)]}),
        (DEPENDS, {"folding": [("Adam", 0.1), ("Adafactor", 1e-9)]}),
    ],
    10: [
        (FAILS, {"cosine_stds": [(64, near(1.25)), (512, near(0.44))]}),
        (FAILS, {"cosine_stds": [(64, near(0.44)), (512, near(1.25))]}),
        (HOLDS, {"cosine_stds": [(64, near(1.25)), (512, near(1.26))]}),
    ],
    11: [
        (FAILS, {"row_spread": (near(0.0), near(1.0))}),
        (HOLDS, {"row_spread": (near(1.0), near(1.0))}),
    ],
    14: [(FAILS, {"subtracting": 1e-16}), (HOLDS, {"subtracting": 1e-3})],
    16: [(FAILS, {"adam_difference": 0.4}), (HOLDS, {"adam_difference": 1e-12})],
    17: [
        (FAILS, {"finite": [("float32", 1.0), ("float16", 1.0)]}),
        (HOLDS, {"finite": [("float32", 0.9), ("float16", 0.1)]}),
        (DEPENDS, {"finite": [("float32", 1.0), ("float16", 0.999)]}),
    ],
    18: [
        (HOLDS, {"inverse_entropy": (near(0.997), near(0.846))}),
        (FAILS, {"inverse_entropy": (near(0.846), near(0.846))}),
        (FAILS, {"inverse_entropy": (near(0.5), near(0.846))}),
    ],
}
"""Number of a claim -> verdicts, each with the evidence that gives it."""

CASES = [(number, *case) for number, cases in TURNED.items() for case in cases]


def judge(claim: Claim, change: Change) -> Judgement:
    assert claim.theory is not None
    return claim.theory(replace(EVIDENCE, **change))


@pytest.mark.parametrize(("number", "verdict", "change"), CASES)
def test_the_evidence_decides(number: int, verdict: str, change: Change) -> None:
    found = judge(JUDGED[number], change)
    assert found.verdict == verdict, found.value


def test_every_judge_is_turned_both_ways_by_its_own_evidence() -> None:
    assert TURNED.keys() == JUDGED.keys()
    for number, cases in TURNED.items():
        assert {HOLDS, FAILS} <= {verdict for verdict, _ in cases}, number
        assert len({key for _, change in cases for key in change}) == 1, number
    used = {key for cases in TURNED.values() for _, change in cases for key in change}
    assert used == {field.name for field in fields(EVIDENCE)}, "evidence that no claim reads"


@pytest.mark.parametrize("number", JUDGED)
def test_a_judge_reads_nothing_but_its_own_evidence(number: int) -> None:
    claim = JUDGED[number]
    before = judge(claim, {})
    for other, cases in TURNED.items():
        if other != number:
            for _, change in cases:
                assert judge(claim, change) == before


@pytest.mark.parametrize("number", JUDGED)
def test_the_value_is_that_of_the_evidence(number: int) -> None:
    claim = JUDGED[number]
    values = [judge(claim, change).value for _, change in TURNED[number]]
    assert len(set(values)) == len(values)
    assert all("nan" not in value and value == value.strip() != "" for value in values)


def test_the_list_of_claims() -> None:
    assert [claim.number for claim in CLAIMS] == list(range(1, 22))
    assert len({claim.text for claim in CLAIMS}) == 21
    for claim in CLAIMS:
        assert claim.statistic
        assert claim.theory is not None or claim.experiments, claim.text
        for name in claim.experiments:
            assert (EXPERIMENTS / f"{name}.yaml").is_file(), name
    named = {name for claim in CLAIMS for name in claim.experiments}
    assert named == {path.stem for path in EXPERIMENTS.glob("claim_*.yaml")}


def test_the_words_of_verdicts() -> None:
    assert (HOLDS, FAILS, DEPENDS, OPEN) == ("holds", "fails", "depends", "open")
