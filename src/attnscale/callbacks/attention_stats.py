"""What scores and weights do in each attention while it trains: sampled from taps.

    attention/<path>/<statistic>             mean over heads; of logit_max, logit_gap the largest
    attention/<path>/head<i>/<statistic>     one head
    attention/<path>/logit_std_predicted     what theory says of logit_std_row, for the same batch

Statistics are those of :mod:`attnscale.attention.stats`, over the rows that train at that step:
there is no second forward pass, and training is bit-identical with and without. Those of the
batches that a step accumulates, and of the processes, are joined by their rows. The spectral norm
of W_qᵀ W_k is taken at validation only.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import pytorch_lightning as pl
import torch
from torch import Tensor

from attnscale.attention import Attended, attentions
from attnscale.attention.stats import (
    OF_WEIGHTS,
    STATISTICS,
    measure,
    predicted_stds,
    sample_of,
    spectral_norm,
)
from attnscale.checks import check_min
from attnscale.task.callback import StepCallback
from attnscale.task.loop import Receiver

MIN_SAMPLES = 15
MAX_STRIDE = 100
"""Left to itself, a run has at least this many samples, and one per so many steps."""

AT_VALIDATION = "spectral_qk"
PREDICTED = "logit_std_predicted"
MAX_OVER_HEADS = ("logit_max", "logit_gap")
"""Statistics of which a layer's figure is that of its largest head."""

READ_BACK_STEPS = 16

MAX_ENTRIES = 2**22
"""Entries of the score matrices of attentions that are measured together."""

Listener = Callable[[int, str, dict[str, list[float]]], None]
"""(step, attention's path, statistic -> value of each head)."""


def stride(every: int | None, total: int | None) -> int:
    """Return the steps between samples: ``every``, or what the run's length suggests."""
    if every is not None:
        return every
    return MAX_STRIDE if total is None else max(1, min(MAX_STRIDE, total // MIN_SAMPLES))


class Observation(NamedTuple):
    """One attention at one step: what its tap received, and which queries are real."""

    step: int
    path: str
    attended: Attended
    real: Tensor | None


class Reading(NamedTuple):
    """Figures of one attention that were not read back yet: (name, head), and rows per head."""

    step: int
    path: str
    names: tuple[str, ...]
    table: Tensor
    rows: Tensor


def joined(names: Sequence[str], tables: Tensor, rows: Tensor) -> Tensor:
    """Join the tables of a step's parts: means by their rows, or the largest.

    Args:
        names: Of the statistics.
        tables: (part, statistic, head).
        rows: How many each part has, (part, head).
    """
    weights = rows / rows.sum(dim=0).clamp_min(1)
    table = (tables * weights[:, None]).sum(dim=0)
    largest = [i for i, name in enumerate(names) if name in MAX_OVER_HEADS]
    # A part without any row has no largest value.
    maxima = tables[:, largest].masked_fill(rows[:, None] == 0, -torch.inf).amax(dim=0)
    table[largest] = maxima.masked_fill(maxima == -torch.inf, 0.0)
    return table


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one is other or (one.shape == other.shape and torch.equal(one, other))


def alike(observations: Sequence[Observation]) -> list[list[Observation]]:
    """Group attentions of one step that can be measured together, as if they were one.

    They have the same shapes, mode, mask (without an axis of heads) and real queries. Where the
    score matrices are large, so that starting an operation is not what it costs, each stays alone:
    a group's are in memory at once.
    """
    groups: list[list[Observation]] = []
    for one in observations:
        a = one.attended
        size = a.q[..., 0].numel() * a.k.shape[2]
        for group in groups:
            b = group[0].attended
            if (
                (len(group) + 1) * size <= MAX_ENTRIES
                and type(a.scale) is type(b.scale)
                and (a.q.shape, a.k.shape, a.q.dtype) == (b.q.shape, b.k.shape, b.q.dtype)
                and (None if a.x is None else a.x.shape) == (None if b.x is None else b.x.shape)
                and (a.keep is None or a.keep.ndim < 3 or a.keep.shape[-3] == 1)
                and _same(a.keep, b.keep)
                and _same(one.real, group[0].real)
            ):
                group.append(one)
                break
        else:
            groups.append([one])
    return groups


def head_figures(
    path: str, values: Mapping[str, list[float]], *, per_head: bool
) -> dict[str, float]:
    """Return the points of an attention, and of each of its heads where there are several."""
    figures: dict[str, float] = {}
    for name, heads in values.items():
        joined = max(heads) if name in MAX_OVER_HEADS else sum(heads) / len(heads)
        figures[f"attention/{path}/{name}"] = joined
        if per_head and len(heads) > 1:
            figures |= {f"attention/{path}/head{i}/{name}": head for i, head in enumerate(heads)}
    return figures


class AttentionStats(StepCallback):
    """Records statistics of every attention every so many steps."""

    def __init__(
        self, *, every: int | None, heads_every: int | None, statistics: Sequence[str] | None
    ) -> None:
        """Choose how much is recorded.

        Args:
            every: Optimizer steps between samples; None for one per 100 steps, and at least 15.
            heads_every: The same for the figures of each head; 0 for none of them.
            statistics: Names in ``STATISTICS``; None for all.

        Raises:
            ValueError: For an unknown statistic or a number that is not allowed.
        """
        names = list(STATISTICS) if statistics is None else list(statistics)
        unknown = [name for name in names if name not in STATISTICS]
        if unknown:
            raise ValueError(
                f"callbacks.attention_stats.statistics: {', '.join(unknown)} unknown; "
                f"allowed are {', '.join(STATISTICS)}"
            )
        check_min("callbacks.attention_stats.every", every, or_else=", or null")
        check_min("callbacks.attention_stats.heads_every", heads_every, 0, or_else=", or null")
        self.every, self.heads_every, self.names = every, heads_every, names
        self.steps_between = self.steps_between_heads = 1
        self.observations: list[Observation] = []
        self.parts: list[Reading] = []
        self.readings: list[Reading] = []
        self.listeners: list[Listener] = []

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Find out how long the run is."""
        total = self.module.total_steps
        self.steps_between = stride(self.every, total)
        self.steps_between_heads = stride(self.heads_every, total)

    # --- one step ---

    def receiver(self, batch: Any) -> Receiver | None:
        """Look at the batches of a sampled step."""
        step = self.module.loop.steps_done
        if step % self.steps_between:
            return None
        self.measure()

        def receive(path: str, attended: Attended) -> None:
            real = self.module.real_queries(attended.queries, batch)
            self.observations.append(Observation(step, path, attended, real))

        return receive

    def measure(self) -> None:
        """Measure what the taps received of one batch, so that it need not be kept for the next."""
        observations, self.observations = self.observations, []
        readings = [reading for group in alike(observations) for reading in self.sample(group)]
        order = {one.path: place for place, one in enumerate(observations)}
        self.parts += sorted(readings, key=lambda reading: order[reading.path])

    def before_step(self) -> None:
        """Measure the last batch, before the weights change, and join those of the step."""
        self.measure()
        parts, self.parts = self.parts, []
        for path in dict.fromkeys(part.path for part in parts):
            reading, *others = of_path = [part for part in parts if part.path == path]
            if others:
                tables = torch.stack([part.table for part in of_path])
                rows = torch.stack([part.rows for part in of_path])
                table = joined(reading.names, tables, rows)
                reading = reading._replace(table=table, rows=rows.sum(dim=0))
            self.readings.append(reading)

    def after_step(self) -> None:
        """Read back: at once where samples are rare, else in blocks."""
        if not self.readings:
            return
        steps = len({reading.step for reading in self.readings})
        if steps and (self.steps_between >= READ_BACK_STEPS or steps >= READ_BACK_STEPS):
            self.read_back()

    @torch.no_grad()
    def sample(self, group: Sequence[Observation]) -> list[Reading]:
        """Measure attentions that are alike; the figures stay tensors until they are read back."""
        attended, real = [one.attended for one in group], group[0].real
        softmax = attended[0].scale.is_softmax
        names = tuple(
            name
            for name in self.names
            if name != AT_VALIDATION and (softmax or name not in OF_WEIGHTS)
        )
        labels = (*names, PREDICTED)
        if len(attended[0].q) == 0:
            # A process may have no example of a batch; it takes part in the reading back.
            table = attended[0].q.new_zeros(len(labels), attended[0].q.shape[1]).float()
            return [Reading(one.step, one.path, labels, table, table[0]) for one in group]
        sample = sample_of(attended, real)
        statistics = measure(sample, names)
        count = sample.rows.count.float()
        columns = (*statistics.values(), predicted_stds(sample, attended), count)
        together = torch.stack(columns).float().chunk(len(group), dim=1)
        return [
            Reading(one.step, one.path, labels, table[:-1], table[-1])
            for one, table in zip(group, together, strict=True)
        ]

    # --- reading back ---

    def read_back(self, *, together: bool = True) -> None:
        """Turn the readings into points, and hand them to the listeners.

        Args:
            together: Whether all processes read back now.
        """
        readings, self.readings = self.readings, []
        if not readings:
            return
        module = self.module
        for step, path, names, own, count in readings:
            table = own
            if together and module.trainer.world_size > 1:
                tables, counts = (cast(Tensor, module.all_gather(x)) for x in (own, count))
                table = joined(names, tables, counts)
            values = dict(zip(names, table.tolist(), strict=True))
            for listener in self.listeners:
                listener(step, path, values)
            module.write(self.figures(path, values, step), step)

    def figures(self, path: str, values: Mapping[str, list[float]], step: int) -> dict[str, float]:
        """Return the points of one attention at one step."""
        per_head = self.heads_every != 0 and step % self.steps_between_heads == 0
        return head_figures(path, values, per_head=per_head)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Read back, and take the spectral norms."""
        if trainer.state.fn != "fit":
            return
        self.read_back()
        if AT_VALIDATION not in self.names:
            return
        for path, attention in attentions(self.module.model).items():
            with torch.no_grad():
                norms = spectral_norm(
                    attention.q.weight.float(), attention.k.weight.float(), attention.n_heads
                )
            figures = self.figures(path, {AT_VALIDATION: norms.tolist()}, step=0)
            self.module.write(figures, trainer.global_step)

    def on_train_epoch_end(self, *_: Any) -> None:
        """Read back what is left, before the checkpoint is saved."""
        self.read_back()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Keep what was measured, without waiting for other processes."""
        self.read_back(together=False)
