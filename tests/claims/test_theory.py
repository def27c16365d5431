"""Verdicts follow from the evidence: each is turned both ways by changing it."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from attnscale.claims.judgement import DEPENDS, FAILS, HOLDS, OPEN, Judgement
from attnscale.claims.list import CLAIMS
from tests.support.evidence import EVIDENCE, near

EXPERIMENTS = Path(__file__).parents[2] / "conf" / "experiment"
PARTS = {label: part for claim in CLAIMS for label, part in claim.labelled.items()}
JUDGED = {label: part.theory for label, part in PARTS.items() if part.theory is not None}

Change = dict[str, Any]

TURNED: dict[str, list[tuple[str, Change]]] = {
    "1": [
        (FAILS, {"largest_of_shifted": (0.5, 0.5 + 1e-12, 0.99)}),
        (HOLDS, {"largest_of_shifted": (0.5, 0.51, 0.99)}),
    ],
    "3a": [
        (FAILS, {"gradient_ratios": [(16, near(4.0), near(0.9)), (64, near(1.0), near(0.1))]}),
        (HOLDS, {"gradient_ratios": [(16, near(0.5), near(0.9)), (64, near(0.1), near(0.1))]}),
        (DEPENDS, {"gradient_ratios": [(16, near(0.5), near(0.9)), (64, near(2.0), near(0.1))]}),
        # Below 1, but not beyond its interval.
        (FAILS, {"gradient_ratios": [(16, near(0.99), near(0.9))]}),
    ],
    "3b": [
        (HOLDS, {"row_gradients": [(64, near(0.5), near(0.6)), (512, near(0.02), near(0.7))]}),
        (FAILS, {"row_gradients": [(64, near(1.6), near(0.4)), (512, near(1.0), near(0.5))]}),
        (DEPENDS, {"row_gradients": [(64, near(1.6), near(0.4)), (512, near(0.02), near(0.7))]}),
    ],
    "4": [
        (FAILS, {"initial_stds": [("torch", near(0.33)), ("kaiming", near(2.0))]}),
        (HOLDS, {"initial_stds": [("torch", near(0.99)), ("unit", near(1.01))]}),
        # Within 5 %, but 1 is not in the interval; 1 in it, but the mean is not near.
        (FAILS, {"initial_stds": [("torch", near(0.96)), ("unit", near(1.04))]}),
        (OPEN, {"initial_stds": [("torch", near(0.9, 0.1))]}),
        (DEPENDS, {"initial_stds": [("torch", near(0.33)), ("unit", near(1.0))]}),
    ],
    "6": [
        (FAILS, {"reformer": [(16, near(0.7)), (64, near(0.69)), (256, near(0.71))]}),
        # The factor is gone, or there twice.
        (HOLDS, {"reformer": [(16, near(2.8)), (64, near(5.6)), (256, near(11.2))]}),
        (HOLDS, {"reformer": [(16, near(0.2)), (64, near(0.1)), (256, near(0.05))]}),
    ],
    "7": [(FAILS, {"reparametrised": 1e-14}), (HOLDS, {"reparametrised": 1e-3})],
    "8": [
        (HOLDS, {"folding": [("Adam", 1e-9), ("SGD", 1e-9)]}),
        (FAILS, {"folding": [("Adam", 0.1), ("SGD", 0.2)]}),
        (DEPENDS, {"folding": [("Adam", 0.1), ("Adafactor", 1e-9)]}),
    ],
    "10": [
        (FAILS, {"cosine_stds": [(64, near(1.25)), (512, near(0.44))]}),
        (FAILS, {"cosine_stds": [(64, near(0.44)), (512, near(1.25))]}),
        (HOLDS, {"cosine_stds": [(64, near(1.25)), (512, near(1.26))]}),
    ],
    "11": [
        (FAILS, {"row_spread": (near(0.0), near(1.0), near(0.9))}),
        (HOLDS, {"row_spread": (near(1.0), near(1.0), near(1.0))}),
        (DEPENDS, {"row_spread": (near(0.0), near(0.0), near(1.0))}),
    ],
    "14": [(FAILS, {"subtracting": 1e-16}), (HOLDS, {"subtracting": 1e-3})],
    "16": [(FAILS, {"adam_difference": 0.4}), (HOLDS, {"adam_difference": 1e-12})],
    "17": [
        (FAILS, {"overflow": [("plain", 1.0), ("attend", 1.0)]}),
        (HOLDS, {"overflow": [("plain", 0.9), ("attend", 0.1)]}),
        (DEPENDS, {"overflow": [("plain", 0.999), ("attend", 1.0)]}),
    ],
    "18a": [
        (HOLDS, {"inverse_entropy": (near(0.997), near(0.846))}),
        (FAILS, {"inverse_entropy": (near(0.846), near(0.846))}),
        (FAILS, {"inverse_entropy": (near(0.5), near(0.846))}),
    ],
}
"""Label of a part -> verdicts, each with the evidence that gives it."""

CASES = [(number, *case) for number, cases in TURNED.items() for case in cases]


def judge(label: str, change: Change) -> Judgement:
    return JUDGED[label](replace(EVIDENCE, **change))


@pytest.mark.parametrize(("label", "verdict", "change"), CASES)
def test_the_evidence_decides(label: str, verdict: str, change: Change) -> None:
    judged = judge(label, change)
    assert judged.verdict == verdict, judged.value


def test_every_judge_is_turned_both_ways_by_its_own_evidence() -> None:
    assert TURNED.keys() == JUDGED.keys()
    for number, cases in TURNED.items():
        assert {HOLDS, FAILS} <= {verdict for verdict, _ in cases}, number
        assert len({key for _, change in cases for key in change}) == 1, number
    used = {key for cases in TURNED.values() for _, change in cases for key in change}
    assert used == {field.name for field in fields(EVIDENCE)}, "evidence that no claim reads"


@pytest.mark.parametrize("label", JUDGED)
def test_a_judge_reads_nothing_but_its_own_evidence(label: str) -> None:
    before = judge(label, {})
    for other, cases in TURNED.items():
        if other != label:
            for _, change in cases:
                assert judge(label, change) == before


@pytest.mark.parametrize("label", JUDGED)
def test_the_value_is_that_of_the_evidence(label: str) -> None:
    values = [judge(label, change).value for _, change in TURNED[label]]
    assert len(set(values)) == len(values)
    assert all("nan" not in value and value == value.strip() != "" for value in values)


def test_the_list_of_claims() -> None:
    assert [claim.number for claim in CLAIMS] == list(range(1, 22))
    assert len({claim.text for claim in CLAIMS}) == 21
    for label, part in PARTS.items():
        assert part.statistic
        assert bool(part.text) == (not label.isdigit())
        assert part.theory is not None or part.training is not None, label
        assert bool(part.experiments) == (part.training is not None)
        for name in part.experiments:
            assert (EXPERIMENTS / f"{name}.yaml").is_file(), name
    named = {name for claim in CLAIMS for name in claim.experiments}
    assert named == {path.stem for path in EXPERIMENTS.glob("claim_*.yaml")}


def test_the_words_of_verdicts() -> None:
    assert (HOLDS, FAILS, DEPENDS, OPEN) == ("holds", "fails", "depends", "open")


def test_what_could_not_have_come_out_otherwise_says_so() -> None:
    labels = {
        label for label, part in PARTS.items() if part.statistic.startswith("by construction")
    }
    assert labels == {"1", "6", "7", "10", "11", "14", "16"}


def test_the_deviations_of_all_attentions_are_told_by_model() -> None:
    stds = [("A", near(1.0)), ("B", near(2.0)), ("B", near(0.5)), ("B", near(1.0))]
    value = judge("4", {"initial_stds": stds}).value
    assert value.startswith("1 in 2 of 4 attentions; ")
    assert value.endswith(
        "A: 1 (0.98 to 1.02); B: 0.5 (0.48 to 0.52) to 2 (1.98 to 2.02), 3 attentions"
    )
