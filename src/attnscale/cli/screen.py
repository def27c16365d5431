"""What a person sees: each message once, and a table at the end."""

import logging
import shlex
from collections.abc import Sequence

from tabulate import tabulate

from attnscale.bleu import bleu_remark, bleu_remarks
from attnscale.config.build import shown_path
from attnscale.experiment import Result
from attnscale.experiment.surroundings import TOLD_LOGGERS
from attnscale.sweep.overrides import quoted
from attnscale.sweep.state import Job

log = logging.getLogger("attnscale")


class ScreenFilter(logging.Filter):
    """Keeps tracebacks and chatter of libraries off the screen; the log file has them."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Show this project's messages, what was asked of Lightning, and warnings of others."""
        if getattr(record, "file_only", False):
            return False
        told = record.name.startswith(("attnscale", *TOLD_LOGGERS))
        return told or record.levelno >= logging.WARNING


def say(text: str) -> None:
    """Print a line, and keep it in the log file."""
    log.info(text)


def paste(key: str, value: str) -> str:
    """Return ``key=value`` quoted for Hydra and the shell where it must be."""
    plain = all((c.isascii() and c.isalnum()) or c in "/._-:" for c in value)
    text = f"{key}={value}" if plain else f"{key}={quoted(value)}"
    return shlex.quote(text)


def number(value: float | None) -> str:
    """Return a figure with four digits, or a dash."""
    return "–" if value is None else f"{value:.4g}"


def _outcome(result: Result) -> str:
    where = result.diverged
    return "finished" if where is None else f"diverged at step {where['step']} ({where['metric']})"


COLUMNS = {
    "val/best_loss": "best val loss",
    "val/loss": "last val loss",
    "test/loss": "test loss",
    "test/bleu": "test BLEU",
    "test/chrf": "test chrF",
    "train/loss": "last train loss",
    "val/explained_variance": "last explained variance",
    "val/perplexity": "last val perplexity",
    "val/accuracy": "last val accuracy",
}
"""Figures that a table shows where a run has them: those of the test are of the best epoch, those
called last of the end."""


def run_table(result: Result, ui: str) -> str:
    """Return the table at the end of one run."""
    figures = [
        (label, number(result.metrics[k])) for k, label in COLUMNS.items() if k in result.metrics
    ]
    remark = bleu_remark(result.metrics)
    rows: list[tuple[str, str]] = [
        ("run", result.name),
        ("outcome", _outcome(result)),
        *figures,
        *([] if remark is None else [("of test BLEU", remark)]),
        ("optimizer steps", str(result.steps)),
        ("steps per second", number(result.steps_per_second)),
        ("folder", shown_path(result.folder)),
    ]
    if result.peak_memory_mib is not None:
        rows.insert(-1, ("peak memory", f"{result.peak_memory_mib:.0f} MiB"))
    if result.best_checkpoint:
        rows.append(("best checkpoint", shown_path(result.best_checkpoint)))
    if result.last_checkpoint:
        again = paste("checkpoint", shown_path(result.last_checkpoint))
        rows.append(("train on", f"python -m src.train {again} trainer.max_epochs=…"))
    rows.append(("compare", ui))
    return tabulate(rows, tablefmt="plain")


def sweep_table(jobs: Sequence[Job]) -> str:
    """Return the table at the end of a sweep: a row per job, failures with their reason."""
    present = [k for k in COLUMNS if any(job.result and k in job.result.metrics for job in jobs)]
    rows = []
    for job in jobs:
        row: list[str | int] = [job.index, job.name]
        if job.result is None:
            reason = (job.error or "no result").splitlines()[0]
            row += [f"{job.status.lower()}: {reason}", *[""] * (len(present) + 1)]
        else:
            row += [_outcome(job.result), *(number(job.result.metrics.get(k)) for k in present)]
            row.append(number(job.result.steps_per_second))
        rows.append(row)
    headers = ["job", "run", "outcome", *(COLUMNS[k] for k in present), "steps/s"]
    table = tabulate(rows, headers=headers, tablefmt="simple", disable_numparse=True)
    return "\n".join([table, *bleu_remarks(job.result.metrics for job in jobs if job.result)])
