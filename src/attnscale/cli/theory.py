"""What the app theory does: simulate, judge, write a page, record it."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from tabulate import tabulate

from attnscale.cli.job import run_job
from attnscale.cli.screen import say
from attnscale.config.build import plain, project_root, shown_path
from attnscale.experiment import Result
from attnscale.sweep.state import Launch
from attnscale.tracking.record import Record
from attnscale.tracking.store import find_store

SMALLEST = {"n": 2, "draws": 2, "pairs": 2, "replicates": 2, "models": 2}
LONGEST_VALUE = 96


def _check(config: Mapping[str, Any]) -> None:
    for key, least in SMALLEST.items():
        if config[key] < least:
            raise ValueError(f"{key}={config[key]}: must be at least {least}")


def _shorter(text: str) -> str:
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"


def _theory(config: DictConfig, sweep: Launch | None, name: str) -> Result:
    made = plain(config)
    _check(made)
    store = find_store(made["tracking"]["uri"], project_root())
    overrides = list(HydraConfig.get().overrides.task)
    tags = {"overrides": " ".join(overrides), "kind": "run", "folder": made["folder"]}
    if sweep is not None:
        tags |= {"sweep": sweep.name, "job": str(HydraConfig.get().job.num)}
    record = Record.start(
        store,
        experiment=made["tracking"]["experiment"],
        name=made["tracking"]["run_name"] or ("theory" if sweep is None else name),
        parent=None if sweep is None else sweep.parent,
        tags=tags,
    )
    with record.ending():
        record.parameters(made)
        return _make(made, record)


def _make(made: dict[str, Any], record: Record) -> Result:
    from attnscale.figures.page import Section, Table, write_page
    from attnscale.report.claims import judge_all
    from attnscale.report.recorded import claim_results
    from attnscale.theory.sections import Effort, make

    if made["threads"] is not None:
        torch.set_num_threads(made["threads"])
    options = made["attention"]["options"]
    effort = Effort(**{key: made[key] for key in ("draws", "pairs", "replicates", "models")})
    theory = make(effort, options, n=made["n"], seed=made["seed"])
    results = claim_results(record.store, made["results"])
    settled = judge_all(theory.evidence, results)
    rows = [
        [s.claim.number, s.claim.text, s.judgement.verdict, s.claim.statistic, s.judgement.value]
        for s in settled
    ]
    claims = Section(
        title="6. Claims",
        text=(
            "Each verdict is computed from the statistic beside it. Open: the runs cannot tell, or "
            "were not made.",
        ),
        tables=(
            Table(
                name="claims",
                columns=("", "claim", "verdict", "statistic", "value"),
                rows=rows,
                caption="Popular claims about the scale of attention",
            ),
        ),
    )
    folder = Path(made["folder"])
    page = write_page(
        folder / "theory",
        title="Why attention is divided by √d_k",
        lead=(
            "What theory predicts, simulated with the functions that the models use. Derivations "
            "are in docs/theory.md.",
        ),
        sections=[*theory.sections, claims],
    )
    for path in sorted(page.parent.iterdir()):
        record.file(path, "theory")
    record.points(theory.figures, 0)
    say(
        tabulate(
            [
                [s.claim.number, s.claim.text, s.judgement.verdict, _shorter(s.judgement.value)]
                for s in settled
            ],
            headers=["", "claim", "verdict", "value"],
            tablefmt="simple",
            maxcolwidths=[None, 52, None, 60],
        )
    )
    say(f"\nPage: {shown_path(page)}")
    if made["docs"] is not None:
        _document(Path(made["docs"]), options, record, results, settled)
    exponent = theory.figures["theory/exponent_row"]
    return Result(
        objective=exponent if math.isfinite(exponent) else 0.0,
        metrics=theory.figures,
        folder=str(folder),
        run_id=record.run_id,
        name="theory",
    )


def _document(
    folder: Path, options: Mapping[str, Any], record: Record, results: Any, settled: Any
) -> None:
    from attnscale.report.documents import claims_document, modes_document
    from attnscale.report.recorded import mode_figures, sweep_of

    folder.mkdir(parents=True, exist_ok=True)
    store = record.store
    figures = mode_figures(store, options)
    runs = sweep_of(store, "attnscale", "scale_modes")
    for name, text in (
        ("modes.md", modes_document(options, figures, runs)),
        ("claims.md", claims_document(settled, results)),
    ):
        (folder / name).write_text(text, encoding="utf-8")
        say(f"Written: {shown_path(folder / name)}")


def _show(result: Result, ui: str) -> None:
    say(f"Recorded: {ui}  (experiment: theory)")


def run_theory(config: DictConfig) -> float:
    """Run one job of the theory app and return the exponent of independent q and k."""
    return run_job(config, work=_theory, show=_show)
