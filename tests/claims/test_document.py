"""The document of the claims: complete, and that of the repository up to date."""

from attnscale.claims.document import claims_document, judge_all
from attnscale.claims.judgement import DEPENDS, FAILS, HOLDS, OPEN
from attnscale.claims.list import CLAIMS
from tests.support.documents import ROOT, table_after
from tests.support.evidence import EVIDENCE
from tests.support.runs import trained_run


def test_claims_document() -> None:
    runs = [
        trained_run(scale=scale, d_k=64, lr=lr, seed=seed, loss=loss, start_loss=1.0)
        for scale in ("sqrt", "inverse")
        for lr, loss in ((0.01, 0.5), (0.1, None))
        for seed in (0, 1)
    ]
    results = {"claim_width": [], "claim_inverse": runs}
    settled = judge_all(EVIDENCE, results)
    document = claims_document(settled, results)
    rows = table_after(document, "# Claims")
    assert len(rows) == len(CLAIMS)
    for row, one in zip(rows, settled, strict=True):
        assert list(row.values()) == [
            str(one.claim.number),
            one.claim.text,
            f"**{one.judgement.verdict}**",
            one.claim.statistic,
            one.judgement.value,
        ]
    assert "`experiment=claim_width`" not in document
    assert " 8 runs: `python -m src.train -m experiment=claim_inverse`." in document
    table = table_after(document, "## `experiment=claim_inverse`")
    assert [row["scale"] for row in table] == ["sqrt", "inverse"]
    assert [(row["lr 0.01"], row["lr 0.1"], row["best rate"]) for row in table] == [
        ("0.5", "–", "0.01")
    ] * 2
    assert table[0]["diverged"] == "2 of 4"
    assert document.endswith("|\n")


def test_the_claims_of_the_repository_are_up_to_date() -> None:
    text = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    hint = "run `python -m src.theory docs=docs`"
    rows = table_after(text, "# Claims")
    assert [(row[""], row["claim"], row["statistic"]) for row in rows] == [
        (str(claim.number), claim.text, claim.statistic) for claim in CLAIMS
    ], hint
    verdicts = {row["verdict"].strip("*") for row in rows}
    assert verdicts <= {HOLDS, FAILS, DEPENDS, OPEN}
    assert all(row["value"] for row in rows)
