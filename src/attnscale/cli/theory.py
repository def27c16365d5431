"""What the app theory does: simulate, judge, write a page, record it."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from tabulate import tabulate

from attnscale.cli.job import run_job
from attnscale.cli.screen import say
from attnscale.config.app_schema import TheoryConfig
from attnscale.config.build import project_root, shown_path, to_object
from attnscale.config.section import plain
from attnscale.experiment import Result
from attnscale.experiment.surroundings import surroundings
from attnscale.sweep.state import Launch
from attnscale.tracking.record import Record
from attnscale.tracking.store import find_store

MIN_COUNT = 2
MAX_VALUE = 96


def _counts(config: TheoryConfig) -> dict[str, int]:
    """Return how much is drawn, or refuse too little."""
    counts = {
        "n": config.n,
        "draws": config.draws,
        "pairs": config.pairs,
        "replicates": config.replicates,
        "models": config.models,
    }
    for key, count in counts.items():
        if count < MIN_COUNT:
            raise ValueError(f"{key}={count}: must be at least {MIN_COUNT}")
    return counts


def _shorter(text: str) -> str:
    return text if len(text) <= MAX_VALUE else text[: MAX_VALUE - 1] + "…"


def _theory(composed: DictConfig, sweep: Launch | None, name: str) -> Result:
    config = to_object(composed, TheoryConfig)
    _counts(config)
    store = find_store(config.tracking.uri, project_root())
    overrides = list(HydraConfig.get().overrides.task)
    tags = {"overrides": " ".join(overrides), "kind": "run", "folder": config.folder}
    if sweep is not None:
        tags |= {"sweep": sweep.name, "job": str(HydraConfig.get().job.num)}
    record = Record.start(
        store,
        experiment=config.tracking.experiment,
        name=config.tracking.run_name or ("theory" if sweep is None else name),
        parent=None if sweep is None else sweep.parent,
        tags=tags,
    )
    with surroundings(config.threads), record.ending():
        record.parameters(plain(config))
        return _make(config, record)


def _make(config: TheoryConfig, record: Record) -> Result:
    from attnscale.claims.list import claim_results, judge_all
    from attnscale.figures.page import write_page
    from attnscale.report.theory import claims_section, make_theory

    options = config.attention.options
    theory = make_theory(options, **_counts(config), seed=config.seed)
    results = claim_results(record.store, config.results)
    settled = judge_all(theory.evidence, results)
    folder = Path(config.folder)
    page = write_page(
        folder / "theory",
        title="Why attention is divided by √d_k",
        lead=(
            "What theory predicts, simulated with the functions that the models use. Derivations "
            "are in docs/theory.md.",
        ),
        sections=[*theory.sections, claims_section(settled)],
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
    if config.docs is not None:
        _document(Path(config.docs), options, record, results, settled)
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
    from attnscale.claims.list import claims_document, sweep_of
    from attnscale.report.modes import mode_figures, modes_document

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
