"""Where the runs come from; warnings and confounds, by name."""

from collections.abc import Iterable, Mapping
from typing import Any

from attnscale.analysis.settings import D_K, Grid, short

TAGS = (
    "git.commit",
    "git.dirty",
    "version.attnscale",
    "version.torch",
    "version.mlflow",
    "version.python",
    "device",
    "host",
    "torch.threads",
    "command",
)
DATA = (
    "data._target_",
    "data.dir",
    "data.source",
    "data.target",
    "data.corpus_seed",
    "data.n_train",
)


def _different(facts: Iterable[Mapping[str, str]], name: str) -> list[str]:
    return sorted({fact[name] for fact in facts if name in fact})


def warnings(grid: Grid) -> list[str]:
    """Return what makes the comparison doubtful, each in a sentence."""
    runs = grid.runs
    sentences = []
    commits = _different((run.tags for run in runs), "git.commit")
    if len(commits) > 1:
        sentences.append(
            f"Runs of {len(commits)} commits: {', '.join(c[:10] for c in commits[:6])}."
        )
    dirty = [run for run in runs if run.tags.get("git.dirty") == "true"]
    if dirty:
        sentences.append(f"{len(dirty)} of {len(runs)} runs were made with uncommitted changes.")
    for name, what in (("version.torch", "torch"), ("device", "device"), ("host", "machine")):
        values = _different((run.tags for run in runs), name)
        if len(values) > 1:
            sentences.append(f"Runs differ in their {what}: {', '.join(values[:6])}.")
    for key in DATA:
        values = _different((run.parameters for run in runs), key)
        if len(values) > 1 and key not in grid.keys:
            sentences.append(f"Runs differ in their data, {key}: {', '.join(values[:6])}.")
    lengths = {run.metrics.get("progress/steps") for run in runs if run.outcome == "finished"}
    known = sorted(steps for steps in lengths if steps is not None)
    if len(known) > 1:
        sentences.append(
            f"Runs differ in their optimizer steps: {known[0]:.0f} to {known[-1]:.0f}."
        )
    resumed = [run for run in runs if "resumed_from" in run.tags]
    if resumed:
        sentences.append(f"{len(resumed)} runs were resumed from a checkpoint.")
    return sentences


def confounds(grid: Grid) -> list[str]:
    """Return what changes together with what was varied, each in a sentence."""
    sentences = []
    for key, others in grid.together.items():
        sentences.append(f"{short(key)} changes together with {', '.join(others)}.")
    runs = grid.runs
    if D_K in grid.keys:
        derived = [run for run in runs if run.parameters.get("model.d_v") in (None, "null", "None")]
        if derived:
            sentences.append(
                "d_k varies and d_v follows it (model.d_v is null): values get wider too."
            )
    sizes = {run.metrics.get("model/parameters") for run in runs}
    counts = sorted(float(n) for n in sizes if n is not None)
    if len(counts) > 1:
        sentences.append(
            f"The number of parameters differs: {counts[0]:,.0f} to {counts[-1]:,.0f}."
        )
    widths = _different((run.parameters for run in runs), "model.d_model")
    if len(widths) > 1:
        sentences.append(f"The width d_model differs: {', '.join(widths)}.")
    return sentences


def table(grid: Grid) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows: a fact, and its value in all runs or the first few."""
    runs = grid.runs
    rows = []
    for name in TAGS:
        values = _different((run.tags for run in runs), name)
        if values:
            more = f" (and {len(values) - 4} more)" if len(values) > 4 else ""
            rows.append([name, "\n".join(values[:4]) + more])
    for key in DATA:
        values = _different((run.parameters for run in runs), key)
        if values:
            rows.append([key, ", ".join(values[:6])])
    sweeps = sorted({run.sweep for run in runs if run.sweep})
    rows.append(["sweep", ", ".join(sweeps) or "none"])
    rows.append(["runs", str(len(runs))])
    return ["fact", "value"], rows
