"""Examines the attentions of anybody's LightningModule while it trains.

    trainer = Trainer(callbacks=[attnscale.callbacks.Doctor(every=500, expect="sqrt")])

Every so many steps one forward pass is watched, the one that trains anyway: from the start of the
batch until the optimizer's gradients are cleared, before backward; and the first batch of each
validation. Training is bit-identical with and without.

    attention/<path>/<statistic>            as docs/metrics.md has them, mean over heads
    attention/<path>/head<i>/<statistic>    one head
    attention/<path>/scale                  effective factor on q · k
    attention/<path>/logit_std_predicted    spread of the logits if q and k were unrelated
"""

import logging
from contextlib import ExitStack
from typing import Any

import pytorch_lightning as pl

from attnscale.callbacks.attention_stats import head_figures
from attnscale.checks import check_min
from attnscale.doctor.record import Attention
from attnscale.doctor.report import Report
from attnscale.doctor.verdict import FAIL, Expected
from attnscale.doctor.watch import Watch, watching

log = logging.getLogger(__name__)


def figures_of(attention: Attention) -> dict[str, float]:
    """Return the points of an attention by metric name."""
    values = {name: list(heads) for name, heads in attention.figures.items()}
    values |= {
        "scale": list(attention.scales),
        "logit_std_predicted": list(attention.predicted),
    }
    return head_figures(attention.name, values, per_head=True)


class Doctor(pl.Callback):
    """Records the scale and health of every attention; names each trouble once.

    Attributes:
        alarms: What was told, a line each.
        report: The newest examination, or None.
    """

    def __init__(
        self, *, every: int = 100, expect: Expected = None, heads: bool = True, rows: int = 64
    ) -> None:
        """Choose how often to look, and what is right.

        Args:
            every: Optimizer steps from one examined batch to the next.
            expect: As :func:`attnscale.doctor.examine` takes it.
            heads: Whether each head has points of its own.
            rows: Rows of a head that are measured.

        Raises:
            ValueError: If ``every`` is below 1.
        """
        check_min("every", every, 1)
        self.every, self.expect, self.heads, self.rows = every, expect, heads, rows
        self.alarms: list[str] = []
        self.report: Report | None = None
        self._told: set[str] = set()
        self._stack: ExitStack | None = None
        self._watch: Watch | None = None
        self._step = -1

    def _open(self, module: pl.LightningModule) -> None:
        self._stack = ExitStack()
        self._watch = self._stack.enter_context(watching(module, rows=self.rows))

    def _close(
        self, trainer: pl.Trainer, module: pl.LightningModule, *, points: bool = True
    ) -> None:
        if self._stack is None or self._watch is None:
            return
        self._stack.close()
        watch, self._stack, self._watch = self._watch, None, None
        self.report = Report(
            type(module).__name__,
            tuple(watch.attentions),
            tuple(dict.fromkeys(watch.not_visible)),
            self.expect,
        )
        figures: dict[str, float] = {}
        for attention in self.report.attentions if points else ():
            figures |= figures_of(attention)
        figures = {name: x for name, x in figures.items() if self.heads or "/head" not in name}
        for logger in trainer.loggers if figures else ():
            logger.log_metrics(figures, step=trainer.global_step)
        for finding in self.report.findings:
            text = str(finding)
            if finding.level == FAIL and text not in self._told:
                self._told.add(text)
                self.alarms.append(f"{text}, at step {trainer.global_step}")
                log.warning("%s, at step %d", text, trainer.global_step)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Watch the batch of every so many steps, the first of it where several are accumulated."""
        if trainer.global_step % self.every == 0 and trainer.global_step != self._step:
            self._step = trainer.global_step
            self._open(pl_module)

    def on_before_zero_grad(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Any
    ) -> None:
        """Stop watching: forward is over, backward has not begun."""
        self._close(trainer, pl_module)

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Stop watching, where no gradient was cleared in the batch."""
        self._close(trainer, pl_module)

    def on_validation_batch_start(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Watch the first batch of a validation, not of the check before training."""
        if batch_idx == 0 and dataloader_idx == 0 and not trainer.sanity_checking:
            self._open(pl_module)

    def on_validation_batch_end(  # noqa: PLR0917 -- Lightning's signature
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Stop watching; alarms alone, as points at a step are those of training."""
        self._close(trainer, pl_module, points=False)

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Leave torch as it was."""
        if self._stack is not None:
            self._stack.close()
            self._stack = self._watch = None
