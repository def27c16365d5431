"""Says which layer and head is in trouble, and when it began; notes apart what is only unusual.

A figure of the attention alone is no trouble: where one-hot attention solves the task, its entropy
is 0 in the best of runs. So an *alarm* needs harm beside it:

    stalled      the gradients of W_q and W_k are gone, √(‖g_q‖² + ‖g_k‖²) < 10⁻³ ‖g‖, while the
                 loss stands and is above 0.8 of its start
    loss rises   by more than a tenth of its start above its lowest
    dead head    no sample of a head had live rows, while other heads of its attention had: it has
                 no part in what they learn
    not finite   a statistic, a gradient or the loss is NaN or infinite: the run has diverged

Losses are means, gradients medians, of windows of 16 steps: rare ties of a saturated softmax send
large gradients. Each trouble is named once, on the screen and in the run's tag ``alarms``.
*Unusual*, in the tag of that name and in the log file, once per head:

    low entropy     entropy_norm of a head below a bound: nearly every query sees one key
    large gap       logit_gap of a head above a bound; unlike logit_max, a shift common to a row,
                    which the softmax does not see, does not move it
    few live rows   live_rows of a head below a bound: the softmax hardly moves

Only "not finite" ends a run. A stall above the loss of a model without attention is not told from
convergence: both are a loss that stands. The bounds are proposals, not published figures.
"""

import logging
import math
from statistics import fmean, median
from typing import Any

import pytorch_lightning as pl

from attnscale.attention import attentions
from attnscale.callbacks.attention_stats import MIN_SAMPLES, AttentionStats
from attnscale.callbacks.curves import Curves
from attnscale.task.callback import TaskCallback

log = logging.getLogger(__name__)

MAX_LINES = 40
"""Lines of a kind that are written down; a sick model of many heads has hundreds."""

WINDOW = 16
"""Steps that are judged together."""
STANDING = 4
"""Windows over which a loss that stands does not fall by ``SMALL_FALL``."""
SMALL_FALL = 0.01
"""What is no fall over ``STANDING`` windows, ÷ the loss at the start."""
UNLEARNED = 0.8
"""A loss above this has learned little, ÷ the loss at the start."""
GONE = 1e-3
"""A gradient of W_q and W_k below this is gone, ÷ the gradient of everything."""
LARGE_RISE = 0.1
"""A rise above the lowest loss that is an alarm, ÷ the loss at the start."""
DEAD_SAMPLES = MIN_SAMPLES // 3
"""Samples after which a head that has never been live is dead."""


class Watchdog(TaskCallback):
    """Listens to the statistics of the attentions and to the curves, where these are recorded."""

    def __init__(
        self,
        *,
        min_entropy_norm: float | None,
        max_logit_gap: float | None,
        min_live_rows: float | None,
        stop: bool,
    ) -> None:
        """Set the bounds of what is usual; None switches one off.

        Args:
            min_entropy_norm: Of a head, 0 to 1.
            max_logit_gap: Of a head, in logits.
            min_live_rows: Share of rows of a head, 0 to 1; of a dead head too.
            stop: Whether a run ends as soon as a figure is not finite.
        """
        bounds = {
            "entropy_norm": ("low entropy", min_entropy_norm, False),
            "logit_gap": ("large gap", max_logit_gap, True),
            "live_rows": ("few live rows", min_live_rows, False),
        }
        self.bounds = {
            name: (what, bound, above)
            for name, (what, bound, above) in bounds.items()
            if bound is not None
        }
        self.stop = stop
        self.told: set[tuple[str, str, int]] = set()
        self.alarms: list[str] = []
        self.unusual: list[str] = []
        self.written = (0, 0)
        self.levels: list[float] = []
        self.window: list[tuple[float, dict[str, float]]] = []
        self.live: dict[str, list[set[int]]] = {}

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Listen to the callbacks that sample."""
        self.module.loop.stop_when_diverged = self.stop
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, AttentionStats) and self.inspect not in callback.listeners:
                callback.listeners.append(self.inspect)
            if isinstance(callback, Curves) and self.follow not in callback.listeners:
                callback.listeners.append(self.follow)

    def state_dict(self) -> dict[str, Any]:
        """Return what was seen so far: a resumed run is compared with its own start."""
        return {
            "levels": self.levels,
            "window": self.window,
            "told": sorted(self.told),
            "alarms": self.alarms,
            "unusual": self.unusual,
            "live": {path: [sorted(one) for one in each] for path, each in self.live.items()},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the losses and, if the same run goes on, all of it."""
        self.levels = list(state_dict["levels"])
        if not self.module.goes_on or "told" not in state_dict:
            return
        self.window = [(loss, dict(shares)) for loss, shares in state_dict["window"]]
        self.told = {(what, path, head) for what, path, head in state_dict["told"]}
        self.alarms, self.unusual = (list(state_dict[name]) for name in ("alarms", "unusual"))
        self.live = {p: [set(one) for one in each] for p, each in state_dict["live"].items()}

    def inspect(self, step: int, path: str, values: dict[str, list[float]]) -> None:
        """Look at the figures of one attention at one step; the same on every process."""
        for name, heads in values.items():
            broken = [i for i, value in enumerate(heads) if not math.isfinite(value)]
            if broken:
                where = ", ".join(f"head {head}" for head in broken)
                self.alarm(f"not finite: {path} {where}, {name} at step {step}")
                self.module.mark_diverged(f"attention/{path}/{name}", step)
                return
        for name, (what, bound, above) in self.bounds.items():
            heads = values.get(name, [])
            beyond = [i for i, x in enumerate(heads) if (x > bound if above else x < bound)]
            sign = "above" if above else "below"
            for head in beyond:
                if self._first(what, path, head):
                    text = f"{what}: {path} head {head} at step {step}, {name} {heads[head]:.4g}"
                    self.note(f"{text} {sign} {bound:g}")
            if name == "live_rows" and (self.module.goes_on or not self.module.first_step):
                samples = self.live.setdefault(path, [])
                samples.append(set(range(len(heads))) - set(beyond))
                ever = set.union(*samples)
                if len(samples) == DEAD_SAMPLES and ever:
                    for head in sorted(set(range(len(heads))) - ever):
                        self.alarm(
                            f"dead head: {path} head {head} at step {step}, live_rows below "
                            f"{bound:g} in all {len(samples)} samples"
                        )

    def follow(self, step: int, loss: float, norms: dict[str, float]) -> None:
        """Look at the loss and the gradient norms of one step; the same on every process."""
        whole = norms["grad_norm/total"]
        resumed_without_levels = self.module.first_step and not self.levels
        if resumed_without_levels or not (math.isfinite(loss) and math.isfinite(whole)):
            return
        paths = list(attentions(self.module.model))
        groups = {path: f"grad_norm/{path}" for path in paths if f"grad_norm/{path}/q" in norms}
        shares = {
            where: math.hypot(norms[f"{group}/q"], norms[f"{group}/k"]) / (whole or math.inf)
            for where, group in (groups or {", ".join(paths): "grad_norm"}).items()
        }
        self.window.append((loss, shares))
        if len(self.window) == WINDOW:
            self._judge(step)
            self.window = []

    def _judge(self, step: int) -> None:
        """Judge a whole window."""
        level = fmean(loss for loss, _ in self.window)
        lowest = min(self.levels, default=level)
        self.levels.append(level)
        start = self.levels[0]
        if level - lowest > LARGE_RISE * start and self._first("loss rises"):
            self.alarm(
                f"loss rises: at step {step} to {level:.4g} from {lowest:.4g}, by more than "
                f"{LARGE_RISE:g} of the {start:.4g} at the start"
            )
        if len(self.levels) <= STANDING or level < UNLEARNED * start:
            return
        if self.levels[-1 - STANDING] - level > SMALL_FALL * start:
            return
        for where in self.window[0][1]:
            share = median(shares[where] for _, shares in self.window)
            if share < GONE and self._first("stalled", where):
                self.alarm(
                    f"stalled: {where} at step {step}, gradient of W_q and W_k {share:.2g} of the "
                    f"whole, loss {level:.4g} after {start:.4g} at the start"
                )

    def _first(self, what: str, path: str = "", head: int = 0) -> bool:
        """Return whether this was not told before, and note that it is now."""
        key = (what, path, head)
        new = key not in self.told
        self.told.add(key)
        return new

    def alarm(self, text: str) -> None:
        """Write an alarm to the screen and to the run."""
        if len(self.alarms) == MAX_LINES:
            return
        self.alarms.append(text)
        if not self.module.trainer.is_global_zero:
            return
        # One line on the screen: the log file and the run's tag have them all.
        extra = {"file_only": len(self.alarms) > 1}
        log.warning("%s (any more: tag 'alarms' of the run)", text, extra=extra)

    def note(self, text: str) -> None:
        """Write what is unusual to the log file and to the run."""
        if len(self.unusual) == MAX_LINES:
            return
        self.unusual.append(text)
        if self.module.trainer.is_global_zero:
            log.info("unusual, %s", text, extra={"file_only": True})

    def write(self) -> None:
        """Write what is new to the run."""
        counts = (len(self.alarms), len(self.unusual))
        if counts != self.written:
            self.written = counts
            lines = {"alarms": self.alarms, "unusual": self.unusual}
            self.module.tag({tag: "\n".join(texts) for tag, texts in lines.items() if texts})

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write what is new."""
        self.write()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Write what is new."""
        self.write()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Say in the run where a figure stopped being finite."""
        where = self.module.diverged
        if where is not None and not any(text.startswith("not finite") for text in self.alarms):
            self.alarm(f"not finite: {where.metric} at step {where.step}")
        self.write()
