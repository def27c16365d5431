"""What the app theory does: simulate, judge, write a page, record it."""

import math
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from tabulate import tabulate

from attnscale.checks import check_writable
from attnscale.cli.job import job_tags, run_job, writing
from attnscale.cli.screen import say
from attnscale.config.app_schema import TheoryConfig
from attnscale.config.build import project_root, shortened, shown_path, to_object
from attnscale.config.limits import check_limits
from attnscale.config.section import plain
from attnscale.experiment import Result
from attnscale.experiment.surroundings import surroundings
from attnscale.files import write_text
from attnscale.sweep.state import Launch
from attnscale.tracking.record import Record
from attnscale.tracking.store import find_store

COUNTS = ("n", "draws", "pairs", "replicates", "models")
MAX_VALUE = 96


def _theory(composed: DictConfig, sweep: Launch | None, name: str) -> Result:
    config = to_object(composed, TheoryConfig)
    check_limits(plain(config), TheoryConfig, {})
    for key in ("folder", "docs"):
        if (path := getattr(config, key)) is not None:
            check_writable(key, Path(path))
    store = find_store(config.tracking.uri, project_root())
    record = Record.start(
        store,
        experiment=config.tracking.experiment,
        name=config.tracking.run_name or ("theory" if sweep is None else name),
        parent=None if sweep is None else sweep.parent,
        tags={**job_tags(sweep), "folder": config.folder},
    )
    with surroundings(config.threads), record.ending():
        record.parameters(plain(config))
        return _make(config, record)


def _make(config: TheoryConfig, record: Record) -> Result:
    from attnscale.claims.document import judge_all
    from attnscale.claims.sweeps import recorded_sweeps
    from attnscale.figures.page import write_page
    from attnscale.report.theory import claims_section, make_theory

    options = config.attention.options
    counts: dict[str, int] = {key: getattr(config, key) for key in COUNTS}
    theory = make_theory(options, **counts, seed=config.seed)
    sweeps = recorded_sweeps(record.store, config.results)
    settled = judge_all(theory.evidence, sweeps)
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
    rows = [
        [label, text, verdict, shortened(value, MAX_VALUE)]
        for one in settled
        for label, text, verdict, _, value in one.rows
    ]
    headers = ["", "claim", "verdict", "value"]
    say(tabulate(rows, headers, tablefmt="simple", maxcolwidths=[None, 52, None, 60]))
    say(f"\nPage: {shown_path(page)}")
    if config.docs is not None:
        _document(Path(config.docs), config, record, sweeps, settled)
    exponent = theory.figures["theory/exponent_row"]
    return Result(
        objective=exponent if math.isfinite(exponent) else 0.0,
        metrics=theory.figures,
        folder=str(folder),
        run_id=record.run_id,
        name="theory",
    )


def _document(
    folder: Path, config: TheoryConfig, record: Record, sweeps: Any, settled: Any
) -> None:
    from attnscale.claims.document import claims_document
    from attnscale.claims.sweeps import recorded_sweep
    from attnscale.report.modes import mode_figures, modes_document
    from attnscale.tracking.history import History

    options = config.attention.options
    figures = mode_figures(record.store, options)
    runs = recorded_sweep(History(record.store, config.results), "scale_modes").runs
    for name, text in (
        ("modes.md", modes_document(options, figures, runs)),
        ("claims.md", claims_document(settled, sweeps)),
    ):
        with writing("docs", folder):
            write_text(folder / name, text)
        say(f"Written: {shown_path(folder / name)}")


def _show(result: Result, ui: str) -> None:
    say(f"Recorded: {ui}  (experiment: theory)")


def run_theory(config: DictConfig) -> float:
    """Run one job of the theory app and return the exponent of independent q and k."""
    return run_job(config, work=_theory, show=_show)
