"""Every claim judged, and the document of them: complete, and that of the repository up to date."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from attnscale.claims.document import claims_document, judge_all
from attnscale.claims.judgement import DEPENDS, FAILS, HOLDS, OPEN, Judgement, together
from attnscale.claims.list import CLAIMS
from attnscale.claims.sweeps import Recorded
from tests.claims.sweeps import arm
from tests.support.documents import ROOT, table_after
from tests.support.evidence import EVIDENCE

WORSE = Recorded([*arm("sqrt", 0.2), *arm("inverse", 0.3)])
LABELS = [label for claim in CLAIMS for label in claim.labelled]


def settled(sweeps: Mapping[str, Recorded], **changed: Any) -> dict[str, Judgement]:
    every = judge_all(replace(EVIDENCE, **changed), sweeps)
    assert [one.claim for one in every] == list(CLAIMS)
    return {label: j for one in every for label, j in one.judgements.items()}


def test_the_document_has_every_claim_and_every_part() -> None:
    sweeps = {"claim_width": Recorded(), "claim_inverse": replace(WORSE, runs=WORSE.runs)}
    every = judge_all(EVIDENCE, sweeps)
    document = claims_document(every, sweeps)
    rows = table_after(document, "# Claims")
    several = [claim for claim in CLAIMS if len(claim.parts) > 1]
    assert len(rows) == len(LABELS) + len(several)
    assert {row[""] for row in rows} == {*LABELS, *(str(claim.number) for claim in CLAIMS)}
    by_label = {row[""]: row for row in rows}
    for one in every:
        head = by_label[str(one.claim.number)]
        assert (head["claim"], head["verdict"]) == (one.claim.text, f"**{one.verdict}**")
        for label, judgement in one.judgements.items():
            part = one.claim.labelled[label]
            assert by_label[label]["statistic"] == part.statistic
            assert by_label[label]["value"] == judgement.value
            assert by_label[label]["claim"] == (part.text or one.claim.text)
    assert by_label["18"]["value"] == "18a holds; 18b holds"
    assert "`experiment=claim_width`" not in document
    assert " 30 runs: `python -m src.train -m experiment=claim_inverse`." in document
    table = table_after(document, "## `experiment=claim_inverse`")
    assert [row["scale"] for row in table] == ["inverse", "sqrt"]
    assert [(row["lr 0.01"], row["lr 0.1"], row["best rate"]) for row in table] == [
        ("0.6", "0.3", "0.1"),
        ("0.4", "0.2", "0.1"),
    ]
    assert document.endswith("|\n")


def test_what_was_not_run_is_open_and_says_how_to_run_it_and_why_a_sweep_was_not_taken() -> None:
    refused = "a sweep with seed=0 is another experiment"
    judgements = settled({"claim_width": Recorded(refused=refused)})
    for claim in CLAIMS:
        for label, part in claim.labelled.items():
            if part.theory is None:
                assert judgements[label].verdict == OPEN
                assert judgements[label].value.startswith("not run: ")
            for name in part.experiments:
                assert f"`python -m src.train -m experiment={name}`" in judgements[label].value
    assert judgements["15"].value.endswith(f"experiment=claim_width` ({refused})")
    # Theory fails or depends: that stands. It holds, and training is not run: open.
    assert judgements["8"].verdict == DEPENDS
    assert settled({}, folding=[("Adam", 0.1)])["8"].verdict == FAILS
    assert settled({}, folding=[("Adam", 0.0)])["8"].verdict == OPEN


def test_budget_and_failed_jobs_are_told_with_the_verdict() -> None:
    runs = [replace(run, parameters={**run.parameters, "budget": "laptop"}) for run in WORSE.runs]
    runs[-1] = replace(runs[-1], status="FAILED")
    sweeps = {"claim_inverse": Recorded(runs)}
    value = settled(sweeps)["18b"].value
    assert value.startswith("trained (laptop budget, 1 of 30 jobs failed): best validation loss, ")
    document = claims_document(judge_all(EVIDENCE, sweeps), sweeps)
    assert "experiment=claim_inverse` (laptop budget, 1 of 30 jobs failed)." in document


@pytest.mark.parametrize("name", sorted({name for claim in CLAIMS for name in claim.experiments}))
def test_an_experiment_changes_the_claims_that_name_it_and_no_others(name: str) -> None:
    before = settled({})
    after = settled({name: WORSE})
    changed = {label for label in after if after[label] != before[label]}
    named = {
        label
        for claim in CLAIMS
        for label, part in claim.labelled.items()
        if name in part.experiments
    }
    assert changed == named
    assert settled({"claim_of_another": WORSE}) == before


@pytest.mark.parametrize(
    ("verdicts", "verdict"),
    [
        ([], OPEN),
        ([OPEN, OPEN], OPEN),
        ([HOLDS, HOLDS], HOLDS),
        # To hold, all must.
        ([HOLDS, OPEN], OPEN),
        ([FAILS, OPEN], FAILS),
        ([DEPENDS, OPEN], DEPENDS),
        ([HOLDS, FAILS], DEPENDS),
        ([HOLDS, FAILS, OPEN], DEPENDS),
        ([HOLDS, DEPENDS], DEPENDS),
    ],
)
def test_one_verdict_for_several(verdicts: list[str], verdict: str) -> None:
    assert together(verdicts) == verdict


def test_the_claims_of_the_repository_are_up_to_date() -> None:
    text = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    hint = "run `python -m src.theory docs=docs`"
    rows = table_after(text, "# Claims")
    own = [(one.labelled[label].text or one.text) for one in CLAIMS for label in one.labelled]
    heads = {claim.text for claim in CLAIMS}
    assert {row["claim"] for row in rows} == heads | set(own), hint
    statistics = {part.statistic for claim in CLAIMS for part in claim.parts}
    assert statistics <= {row["statistic"] for row in rows}, hint
    verdicts = {row["verdict"].strip("*") for row in rows}
    assert verdicts <= {HOLDS, FAILS, DEPENDS, OPEN}
    assert all(row["value"] for row in rows)
