"""A small sweep as a store has it, without training."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from attnscale.analysis.settings import Asked, find_runs
from attnscale.tracking.history import History
from attnscale.tracking.record import FAILED, FINISHED, Record
from attnscale.tracking.runs import Run
from attnscale.tracking.store import find_store

SWEEP, EXPERIMENT = "2026-01-01_00-00-00_a1b2", "attnscale"
HOSTILE = "<script>window.hit = 1</script>"
STEPS, PER_EPOCH, EVERY = 120, 20, 5
PATH = "encoder.0.self"
FIRST = 1_760_000_000_000


def _figures(scale: str, d_k: int, seed: int, step: int) -> dict[str, float]:
    rate = (0.020 if scale == "sqrt" else 0.014) * (1 + d_k / 200)
    loss = 0.02 + (1 + 0.05 * seed) * math.exp(-rate * step)
    spread = math.sqrt(d_k) ** (0 if scale == "sqrt" else 1) * (1 + step / STEPS)
    made = {"train/loss": loss, "train/lr": 1e-3 * min(1.0, (step + 1) / 30)}
    made |= {f"grad_norm/{name}": loss * (1 + i / 4) for i, name in enumerate(("q", "k", "v"))}
    made["grad_norm/total"] = 2 * loss
    if step % PER_EPOCH == 0:
        made |= {"val/loss": 1.1 * loss, "val/explained_variance": 1 - loss}
        made |= {
            f"attention/{PATH}/entropy_norm": 1 / (1 + spread / 10),
            f"attention/{PATH}/live_rows": 1 - spread / 100,
            f"attention/{PATH}/logit_std_row": spread,
            f"attention/{PATH}/logit_std_predicted": spread,
            f"attention/{PATH}/score_std_row": d_k ** (0.5 + 0.4 * step / STEPS) * (1 + seed / 50),
        }
    return made


def _arrays(folder: Path, step: int) -> Path:
    generator = np.random.default_rng(step)
    weights = generator.dirichlet(np.ones(5), size=(1, 2, 4)).astype(np.float16)
    counts, edges = np.histogram(generator.normal(0, 1.5, 2000), 41, range=(-6, 6))
    path = folder / f"step_{step:07d}.npz"
    arrays: dict[str, Any] = {
        f"weights/{PATH}": weights,
        f"counts/{PATH}": counts,
        f"edges/{PATH}": edges.astype(np.float32),
        f"predicted/{PATH}": np.float32(1.5),
        f"queries/{PATH}": np.array(json.dumps([["ein", "Hund", HOSTILE, "."]])),
        f"keys/{PATH}": np.array(json.dumps([["a", "dog", "&amp;", "runs", HOSTILE]])),
    }
    np.savez_compressed(path, **arrays)
    return path


def _run(record: Record, scale: str, d_k: int, seed: int, folder: Path) -> None:
    record.parameters(
        {
            "attention": {"scale": scale},
            "model": {"d_k": d_k, "d_v": None, "d_model": 64},
            "data": {"source": HOSTILE},
            "seed": seed,
        }
    )
    diverges, fails = (scale, d_k, seed) == ("none", 64, 2), (scale, d_k, seed) == ("none", 16, 2)
    last = 45 if diverges else 70 if fails else STEPS
    record.points({"data/steps_per_epoch": PER_EPOCH, "data/tokens_per_step": 512}, 0, FIRST)
    for step in range(0, last + 1, EVERY):
        record.points(_figures(scale, d_k, seed, step), step, FIRST + 40 * step)
    if fails:
        record.tags({"error": f"ValueError: no such file: {HOSTILE}"})
        record.end(FAILED)
        return
    if diverges:
        record.points({"train/loss": math.nan, "val/best_loss": math.inf}, last + 1)
        where = {"diverged.metric": "train/loss", "diverged.step": str(last + 1)}
        record.tags({"diverged": "true", **where})
    else:
        best = _figures(scale, d_k, seed, STEPS)["val/loss"]
        ended = {"val/best_loss": best, "test/loss": best, "time/steps_per_second": 25 + seed}
        record.points(ended, STEPS, FIRST + 40 * STEPS)
        record.tags({"diverged": "false"})
    if seed == 0:
        for step in (0, STEPS):
            record.file(_arrays(folder, step), "attention")
    record.end(FINISHED)


def recorded_sweep(folder: Path) -> tuple[list[Run], History]:
    """Record 2 scales, 2 sizes and 3 seeds; one run diverges, one fails."""
    store = find_store(f"sqlite:///{folder}/mlflow.db", folder)
    grid = [(s, d, n) for s in ("sqrt", "none") for d in (16, 64) for n in range(3)]
    for job, (scale, d_k, seed) in enumerate(grid):
        name = f"scale={scale} d_k={d_k} seed={seed} {HOSTILE}"
        tags = {"kind": "run", "sweep": SWEEP, "job": str(job), "command": f"train {HOSTILE}"}
        tags |= {"git.commit": "0123456789abcdef", "git.dirty": "false", "device": "cpu"}
        record = Record.start(store, experiment=EXPERIMENT, name=name, tags=tags)
        _run(record, scale, d_k, seed, folder)
    asked = Asked(SWEEP, (), None, EXPERIMENT)
    return find_runs(store, asked), History(store, EXPERIMENT)
