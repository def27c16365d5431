"""Translations of two settings compared sentence by sentence: paired bootstrap of BLEU."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnscale.figures.page import Section, Table
from attnscale.report.answer import Comparison
from attnscale.report.bleu import paired_bootstrap_bleu
from attnscale.report.runs import Run
from attnscale.report.statistics import verdict
from attnscale.tracking.history import History

FILE = "translations.jsonl"
MOST_COMPARISONS = 8
EXAMPLES = 6


def read(history: History, run: Run, folder: Path) -> list[dict[str, str]]:
    """Return a run's test translations: source, reference, translation; none if it has none."""
    file = history.artifact(run.run_id, FILE, folder)
    if file is None:
        return []
    lines = file.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line]


def _shared(comparison: Comparison) -> tuple[Run, Run] | None:
    """Return a run of each setting with the lowest seed that both have."""
    mine, theirs = (
        {run.seed: run for run in setting.runs if run.state == "finished"}
        for setting in (comparison.setting, comparison.reference)
    )
    seeds = sorted(set(mine) & set(theirs))
    return (mine[seeds[0]], theirs[seeds[0]]) if seeds else None


def section(comparisons: Sequence[Comparison], history: History, folder: Path) -> Section | None:
    """Compare the translations of settings with those of their references; None without any."""
    rows: list[list[Any]] = []
    examples: list[list[Any]] = []
    for comparison in comparisons[:MOST_COMPARISONS]:
        runs = _shared(comparison)
        if runs is None:
            continue
        ours, theirs = (read(history, run, folder) for run in runs)
        if not ours or [line["source"] for line in ours] != [line["source"] for line in theirs]:
            continue
        found = paired_bootstrap_bleu(
            [line["translation"] for line in ours],
            [line["translation"] for line in theirs],
            [line["reference"] for line in ours],
            lowercase=runs[0].parameters.get("data.lowercase") == "true",
        )
        interval = found.interval
        rows.append(
            [
                comparison.setting.label,
                comparison.reference.label,
                runs[0].seed,
                found.value,
                None if interval is None else interval.low,
                None if interval is None else interval.high,
                found.p_value,
                verdict(found),
            ]
        )
        differing = [
            [comparison.setting.label, a["source"], a["reference"], a["translation"], b]
            for a, b in zip(ours, (line["translation"] for line in theirs), strict=True)
            if a["translation"] != b
        ]
        examples += differing[:EXAMPLES]
    if not rows:
        return None
    tables = [
        Table(
            name="translations",
            columns=("setting", "reference", "seed", "BLEU −", "low", "high", "p", "verdict"),
            rows=rows,
            caption="Paired bootstrap over test sentences, 95 %; it says nothing about seeds",
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
