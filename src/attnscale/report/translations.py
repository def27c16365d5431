"""Translations of two settings compared sentence by sentence: paired bootstrap of BLEU."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnscale.analysis.bleu import paired_bootstrap_bleu
from attnscale.analysis.comparison import Difference, as_family, verdict
from attnscale.figures.page import Section, Table
from attnscale.report.comparisons import Comparison
from attnscale.tracking.history import History
from attnscale.tracking.runs import Run

FILE, SIGNATURES = "translations.jsonl", "signatures.json"
MAX_COMPARISONS = 8
EXAMPLES = 6


def read(history: History, run: Run, folder: Path) -> list[dict[str, str]]:
    """Return a run's test translations: source, reference, translation; none if it has none."""
    file = history.artifact(run.run_id, FILE, folder)
    if file is None:
        return []
    lines = file.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line]


def _options(history: History, run: Run, folder: Path) -> dict[str, Any]:
    """Return how a run's BLEU was computed: sacreBLEU's tokeniser, and whether case is ignored."""
    from sacrebleu.metrics.bleu import BLEU

    file = history.artifact(run.run_id, SIGNATURES, folder)
    signature = json.loads(file.read_text(encoding="utf-8"))["bleu"] if file else "case:mixed"
    facts = dict(part.split(":", 1) for part in signature.split("|"))
    known = (name for name in BLEU.TOKENIZERS if facts.get("tok", "").startswith(name))
    return {"lowercase": facts["case"] == "lc", "tokenize": next(known, BLEU.TOKENIZER_DEFAULT)}


def _shared(comparison: Comparison) -> tuple[Run, Run] | None:
    """Return a run of each setting with the lowest seeds that both have."""
    own, others = (
        {run.replicate: run for run in setting.runs if run.outcome == "finished"}
        for setting in (comparison.setting, comparison.reference)
    )
    lowest = min(own.keys() & others.keys(), default=None)
    return None if lowest is None else (own[lowest], others[lowest])


def section(comparisons: Sequence[Comparison], history: History, folder: Path) -> Section | None:
    """Compare the translations of settings with those of their references; None without any."""
    pairs: list[tuple[Comparison, int]] = []
    differences: list[Difference] = []
    examples: list[list[Any]] = []
    for comparison in comparisons[:MAX_COMPARISONS]:
        runs = _shared(comparison)
        if runs is None:
            continue
        lines, reference_lines = (read(history, run, folder) for run in runs)
        if not lines or [line["source"] for line in lines] != [
            line["source"] for line in reference_lines
        ]:
            continue
        options, other = (_options(history, run, folder) for run in runs)
        if options != other:
            continue
        pairs.append((comparison, runs[0].seed))
        differences.append(
            paired_bootstrap_bleu(
                [line["translation"] for line in lines],
                [line["translation"] for line in reference_lines],
                [line["reference"] for line in lines],
                **options,
            )
        )
        differing = [
            [comparison.setting.label, a["source"], a["reference"], a["translation"], b]
            for a, b in zip(lines, (line["translation"] for line in reference_lines), strict=True)
            if a["translation"] != b
        ]
        examples += differing[:EXAMPLES]
    rows = [
        [
            comparison.setting.label,
            comparison.reference.label,
            seed,
            difference.value,
            None if difference.interval is None else difference.interval.low,
            None if difference.interval is None else difference.interval.high,
            difference.p_adjusted,
            verdict(difference),
        ]
        for (comparison, seed), difference in zip(pairs, as_family(differences), strict=True)
    ]
    if not rows:
        return None
    tables = [
        Table(
            name="translations",
            columns=("setting", "reference", "seed", "BLEU −", "low", "high", "Holm p", "verdict"),
            rows=rows,
            caption="Paired bootstrap over test sentences, of the weights of one seed: 95 % "
            "interval of each, Holm's p of all. It says nothing about other seeds",
        )
    ]
    if examples:
        tables.append(
            Table(
                name="translation_examples",
                columns=("setting", "source", "reference", "translation", "of its reference"),
                rows=examples,
                caption="Sentences that the two settings translate differently",
            )
        )
    return Section(title="Translations", tables=tables)
