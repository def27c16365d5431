"""Compare what two checkouts record: every scale mode, both models, twenty steps.

    git worktree add /tmp/old COMMIT
    python -m benchmarks.same_numbers /tmp/old

Each checkout runs in a process of its own, on this machine, one thread. Every metric of every run
is compared, by name and step; times and memory are left out. A figure is named unless it is
bit-equal, and the command fails where it differs by more than 10⁻⁶ of its size at the first steps,
or 10⁻³ later. Means of cosines are sums of terms of both signs of size 1, and near 0 themselves:
they are compared with 1, not with their own size. ``update_ratio`` under QK-Clip may differ: in
version 0.1.0 it held the clip too.
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MODELS = {
    "autoencoder": (
        "model.d_model=24",
        "model.d_k=11",
        "model.n_heads=2",
        "model.n_layers=2",
        "model.residual=true",
        "model.norm=pre",
        "model.dropout=0.1",
    ),
    "transformer": (
        "model=transformer",
        "model.d_model=24",
        "model.d_k=11",
        "model.d_v=7",
        "model.n_heads=2",
        "model.n_layers=1",
        "model.feed_forward=32",
        "data.n_train=300",
        "data.n_val=20",
        "data.n_test=20",
        "data.batch_tokens=200",
    ),
}
COMMON = (
    "trainer.max_steps=20",
    "trainer.max_epochs=20",
    "trainer.enable_progress_bar=false",
    "trainer.check_val_every_n_epoch=1",
    "callbacks.attention_stats.every=1",
    "callbacks.attention_stats.heads_every=1",
    "callbacks.gradient_stats.every=1",
    "callbacks.pictures=null",
    "threads=1",
)
EXTRA = {
    "accumulated and clipped": (
        "trainer.accumulate_grad_batches=3",
        "trainer.gradient_clip_val=0.1",
    ),
    "clipped by value": ("trainer.gradient_clip_val=0.01", "trainer.gradient_clip_algorithm=value"),
    "qk_clip": ("attention.scale=none", "attention.qk_clip=0.5"),
    "sigma_reparam": ("attention.sigma_reparam=all",),
    "none_equiv under AdamW": ("attention.scale=none_equiv", "optimizer=adamw"),
    "one batch a block": ("task.block=1", "optimizer.schedule=cosine"),
}
LEFT_OUT = re.compile(r"time/|memory/|data/|progress/|model/")
COSINES = ("x_cos", "align_cos")
EARLY_STEPS = 1
EARLY, LATE = 1e-6, 1e-3
"""Allowed relative differences, at most: at the first steps, and after them."""

Series = dict[str, dict[int, float]]
"""Metric -> step -> value."""


def cases(modes: list[str]) -> dict[str, list[str]]:
    """Return the overrides of each run, by its name."""
    changes = {f"scale={mode}": (f"attention.scale={mode}",) for mode in modes} | EXTRA
    return {
        f"{model}, {name}": [*sizes, *COMMON, *change]
        for model, sizes in MODELS.items()
        for name, change in changes.items()
    }


def measure(runs: Mapping[str, list[str]], file: Path) -> None:
    """Train each run with the package that is imported, and write its metrics."""
    from mlflow import MlflowClient

    from attnscale.config.build import compose
    from attnscale.experiment import run

    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/mlflow.db"
        metrics: dict[str, Series] = {}
        for number, (name, overrides) in enumerate(runs.items()):
            config = compose(
                [*overrides, f"tracking.uri={store}"], folder=Path(folder, f"{number}")
            )
            run_id = run(config).run_id
            assert run_id is not None
            client = MlflowClient(store)
            keys = client.get_run(run_id).data.metrics
            metrics[name] = {
                key: {point.step: point.value for point in client.get_metric_history(run_id, key)}
                for key in keys
                if not LEFT_OUT.match(key)
            }
            print(f"{number + 1}/{len(runs)} {name}", file=sys.stderr, flush=True)
    file.write_text(json.dumps(metrics))


def measured_by(checkout: Path, runs: Mapping[str, list[str]]) -> dict[str, Series]:
    """Return the metrics of the runs as a checkout trains them."""
    with tempfile.TemporaryDirectory() as folder:
        script = str(Path(__file__).resolve())
        overrides, answer = Path(folder, "runs.json"), Path(folder, "metrics.json")
        overrides.write_text(json.dumps(runs))
        subprocess.run(
            [sys.executable, script, "--measure", str(overrides), str(answer)],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"},
            check=True,
        )
        metrics: dict[str, Series] = json.loads(answer.read_text(), object_hook=as_steps)
    return metrics


def difference(a: float, b: float, size: float | None = None) -> float:
    """Return |a − b| ÷ |a|, or ÷ ``size``; 0 for equal figures, NaN with NaN too."""
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    size = abs(a) if size is None else size
    return abs(a - b) / size if size else math.inf


def compare(old: Mapping[str, Series], new: Mapping[str, Series]) -> dict[str, Any]:
    """Return what is not bit-equal: differences by metric and time, and names on one side only."""
    largest: dict[tuple[str, str], list[float]] = {}
    alone: set[str] = set()
    equal = points = 0
    for name, series in old.items():
        before, after = set(series), set(new[name])
        alone |= {f"{name}: only old: {key}" for key in before - after}
        alone |= {f"{name}: only new: {key}" for key in after - before}
        for key in before & after:
            if set(series[key]) != set(new[name][key]):
                alone.add(f"{name}: other steps: {key}")
            for step in set(series[key]) & set(new[name][key]):
                size = 1.0 if key.rpartition("/")[2] in COSINES else None
                apart = difference(series[key][step], new[name][key][step], size)
                points += 1
                equal += apart == 0
                if apart:
                    short = re.sub(r"/.*/", "/…/", key)
                    worst = largest.setdefault((name, short), [0.0, 0.0])
                    late = step > EARLY_STEPS
                    worst[late] = max(worst[late], apart)
    return {"points": points, "equal": equal, "largest": largest, "alone": sorted(alone)}


def main() -> None:
    """Run both checkouts and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path, help="the other checkout")
    parser.add_argument("--modes", nargs="+", help="scale modes; by default all, and a number")
    parser.add_argument("--keep", type=Path, help="folder for the old figures, read again")
    options = parser.parse_args()
    from attnscale.attention import SCALES
    from attnscale.renames import METRICS, renamed

    runs = cases(options.modes or [*SCALES, "0.37"])
    cache = options.keep and options.keep / "old.json"
    if cache and cache.is_file():
        old = json.loads(cache.read_text(), object_hook=as_steps)
    else:
        old = measured_by(options.old.resolve(), runs)
        if cache:
            cache.parent.mkdir(parents=True, exist_ok=True)
            cache.write_text(json.dumps(old))
    new = measured_by(Path(__file__).resolve().parents[1], runs)
    today = {
        name: {renamed(key, METRICS): points for key, points in old[name].items()} for name in runs
    }
    gaps = compare(today, new)
    print(f"{gaps['equal']} of {gaps['points']} points are bit-equal, in {len(runs)} runs")
    bad = list(gaps["alone"])
    for (name, metric), (early, late) in sorted(gaps["largest"].items()):
        expected = "qk_clip" in name and metric.startswith("update_ratio/")
        line = f"{name}: {metric}: {early:.1e} at step {EARLY_STEPS} or before, {late:.1e} later"
        print(line)
        if not expected and (early > EARLY or late > LATE):
            bad.append(line)
    print("\n".join(["", "Not as it was:", *bad]) if bad else "Within the bounds everywhere.")
    sys.exit(bool(bad))


def as_steps(entries: dict[str, Any]) -> dict[Any, Any]:
    """Return JSON's text keys as steps where they are numbers."""
    return {int(key) if key.isdigit() else key: value for key, value in entries.items()}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3]))
    else:
        main()
