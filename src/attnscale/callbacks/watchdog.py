"""Says which layer and head is in trouble, and when it began.

    entropy collapse   entropy_norm of a head below a bound: nearly every query sees one key
    large logits       logit_max of a head above a bound
    dead rows          live_rows of a head below a bound: the softmax no longer moves
    not finite         a statistic, a gradient or the loss is NaN or infinite: the run has diverged

Each trouble is named once per head, on the screen and as a tag of the run. A trouble that is not
about finiteness ends nothing: sharp attention can be right. The bounds are proposals, not published
figures.
"""

import logging
import math

import pytorch_lightning as pl

from attnscale.callbacks.attention_stats import AttentionStats
from attnscale.task.callback import TaskCallback

log = logging.getLogger(__name__)

MAX_ALARMS = 40
"""Alarms that are written down; a sick model of many heads has hundreds."""


class Watchdog(TaskCallback):
    """Listens to the statistics of the attentions; needs the callback that samples them."""

    def __init__(
        self,
        *,
        min_entropy_norm: float | None,
        max_logit: float | None,
        min_live_rows: float | None,
        stop: bool,
    ) -> None:
        """Set the bounds; None switches one off.

        Args:
            min_entropy_norm: Of a head, 0 to 1.
            max_logit: Of a head, before the mask.
            min_live_rows: Share of rows of a head, 0 to 1.
            stop: Whether a run ends as soon as a figure is not finite.
        """
        self.bounds: dict[str, tuple[str, float, bool]] = {}
        if min_entropy_norm is not None:
            self.bounds["entropy_norm"] = ("entropy collapse", min_entropy_norm, False)
        if max_logit is not None:
            self.bounds["logit_max"] = ("large logits", max_logit, True)
        if min_live_rows is not None:
            self.bounds["live_rows"] = ("dead rows", min_live_rows, False)
        self.stop = stop
        self.alarmed: set[tuple[str, str, int]] = set()
        self.alarms: list[str] = []
        self.written = 0

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Listen to the callback that samples."""
        self.module.loop.stop_when_diverged = self.stop
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, AttentionStats) and self.inspect not in callback.listeners:
                callback.listeners.append(self.inspect)

    def inspect(self, step: int, path: str, values: dict[str, list[float]]) -> None:
        """Look at the figures of one attention at one step; the same on every process."""
        for name, heads in values.items():
            broken = [i for i, value in enumerate(heads) if not math.isfinite(value)]
            if broken:
                where = ", ".join(f"head {head}" for head in broken)
                self.alarm(f"not finite: {path} {where}, {name} at step {step}")
                self.module.mark_diverged(f"attention/{path}/{name}", step)
                return
        for name, (trouble, bound, above) in self.bounds.items():
            for head, value in enumerate(values.get(name, ())):
                bad = value > bound if above else value < bound
                key = (path, trouble, head)
                if not bad or key in self.alarmed:
                    continue
                self.alarmed.add(key)
                sign = "above" if above else "below"
                self.alarm(
                    f"{trouble}: {path} head {head} at step {step}, {name} {value:.4g} {sign} "
                    f"{bound:g}"
                )

    def alarm(self, text: str) -> None:
        """Write an alarm to the screen and to the run."""
        if len(self.alarms) == MAX_ALARMS:
            return
        self.alarms.append(text)
        if not self.module.trainer.is_global_zero:
            return
        # One line on the screen: the log file and the run's tag have them all.
        extra = {"file_only": len(self.alarms) > 1}
        log.warning("%s (any more: tag 'alarms' of the run)", text, extra=extra)

    def write(self) -> None:
        """Write the alarms so far to the run."""
        if len(self.alarms) == self.written:
            return
        self.written = len(self.alarms)
        self.module.tag({"alarms": "\n".join(self.alarms)})

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the alarms so far."""
        self.write()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Write the alarms so far."""
        self.write()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Say in the run where a figure stopped being finite."""
        where = self.module.diverged
        if where is not None and not any(text.startswith("not finite") for text in self.alarms):
            self.alarm(f"not finite: {where.metric} at step {where.step}")
        self.write()
