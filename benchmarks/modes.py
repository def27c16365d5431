"""What each scale mode costs: time of a training step of the default Transformer, against sqrt.

All modes take turns in one process, a few steps at a time on the same batches, many rounds; a
mode's figure is the median over rounds of its time divided by that of sqrt in the same round. The
figures are recorded (MLflow experiment "benchmarks"), from where docs/modes.md quotes them.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tabulate import tabulate

from attnscale.attention import SCALES
from attnscale.config.build import compose, project_root
from attnscale.data.translation import TranslationBatch
from attnscale.data.vocabulary import PADDING
from attnscale.experiment.assemble import make_data, make_model, measured_scale
from attnscale.experiment.surroundings import allocator
from attnscale.model.cross_entropy import linear_cross_entropy
from attnscale.model.transformer import Transformer
from attnscale.task.groups import adjust, parameter_groups
from attnscale.tracking.record import FINISHED, Record
from attnscale.tracking.store import find_store


def stepper(scale: str, batches: list[TranslationBatch]) -> Callable[[int], None]:
    """Return a function that takes one training step on the i-th batch."""
    config = compose(
        ["model=transformer", f"attention.scale={scale}"], folder=Path(tempfile.mkdtemp())
    )
    torch.manual_seed(0)
    data = make_data(config)
    sizes = data.model_arguments()
    model = make_model(config, measured_scale(config, data), sizes)
    assert isinstance(model, Transformer)
    optimizer = torch.optim.Adam(parameter_groups(model), lr=1e-3, fused=True)
    adjust(optimizer)

    def step(number: int) -> None:
        batch = batches[number % len(batches)]
        hidden = model(batch.source, batch.target[:, :-1], PADDING)
        target = batch.target[:, 1:]
        real = (target != PADDING).flatten().nonzero().flatten()
        loss = linear_cross_entropy(
            hidden.flatten(0, 1).index_select(0, real),
            model.output.weight,
            model.output.bias,
            target.flatten().index_select(0, real),
            smoothing=0.0,
        ) / len(real)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def main() -> None:
    """Time all modes and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--modes", nargs="+", default=list(SCALES), help="with sqrt")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--uri", default=None, help="where to record; the project's store if unset")
    options = parser.parse_args()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    config = compose(["model=transformer"], folder=Path(tempfile.mkdtemp()))
    data = make_data(config)
    data.setup("fit")
    data.block = 1
    batches = [block[0] for block in data.train_dataloader()][: options.steps]
    steps = {scale: stepper(scale, batches) for scale in dict.fromkeys(("sqrt", *options.modes))}
    for step in steps.values():
        for number in range(3):
            step(number)
    times: dict[str, list[float]] = {scale: [] for scale in steps}
    for turn in range(options.rounds):
        order = list(steps) if turn % 2 == 0 else list(reversed(steps))
        for scale in order:
            start = time.perf_counter()
            for number in range(options.steps):
                steps[scale](number)
            times[scale].append((time.perf_counter() - start) / options.steps)
    store = find_store(options.uri, project_root())
    rows: list[tuple[str, float, float, float, float]] = []
    for scale, turns in times.items():
        ratios = [a / b for a, b in zip(turns, times["sqrt"], strict=True)]
        ratio = statistics.median(ratios)
        milliseconds = 1000 * statistics.median(turns)
        rows.append((scale, milliseconds, ratio, min(ratios), max(ratios)))
        record = Record.start(
            store, experiment="benchmarks", name=scale, tags={"kind": "mode_cost"}
        )
        record.points({"bench/step_ratio": ratio, "bench/step_ms": milliseconds}, 0)
        record.end(FINISHED)
    print(tabulate(rows, headers=["mode", "ms/step", "÷ sqrt", "min", "max"], floatfmt=".2f"))


if __name__ == "__main__":
    with allocator("keep"):
        main()
