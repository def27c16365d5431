"""QK-Clip: after an optimizer step, shrink W_q and W_k of each head whose logits were too large.

    η_head = min(1, τ / S_max),   W_q ← η^α W_q,   W_k ← η^(1−α) W_k     (biases likewise)

S_max is the largest kept logit of the head, over the queries of the step's batches that are no
padding, of all processes. The forward pass is not touched. Where logits are a product of q and k
times a number, the same batch would now give at most τ; where a mode normalises q, k or the scores,
the weights' size does not reach the logits and clipping has no effect on them.

Source: Kimi Team 2025, "Kimi K2" (MuonClip; without biases there).
"""

from typing import Any, ClassVar

import torch
import torch.distributed
from torch import Tensor, nn

from attnscale.attention import Attended, attentions
from attnscale.task.callback import StepCallback
from attnscale.task.loop import Receiver


class QKClip(StepCallback):
    """Watches the logits of a model's attentions while it trains, and clips after each step."""

    writes: ClassVar[bool] = True

    def __init__(self, model: nn.Module, *, threshold: float, alpha: float) -> None:
        """Find the attentions.

        Args:
            model: The model that trains.
            threshold: τ, the largest logit that is left alone.
            alpha: Share of the clipping that W_q takes, 0 to 1.

        Raises:
            ValueError: If a value is not allowed.
        """
        if not threshold > 0:
            raise ValueError(f"attention.qk_clip={threshold}: must be positive, or null")
        if not 0.0 <= alpha <= 1.0:
            raise ValueError(f"attention.qk_clip_alpha={alpha}: must be from 0 to 1")
        self.threshold, self.alpha = threshold, alpha
        self.attentions = attentions(model)
        self.max_logits: dict[str, Tensor] = {}

    def receiver(self, batch: Any) -> Receiver:
        """Receive the taps of every forward pass."""
        return lambda path, attended: self.watch(
            path, attended, self.module.real_queries(attended.queries, batch)
        )

    def after_step(self) -> None:
        """Clip."""
        self.clip()

    @torch.no_grad()
    def watch(self, path: str, attended: Attended, real_queries: Tensor | None = None) -> None:
        """Take the largest kept logit of each head from a tap.

        Args:
            path: The attention's module path.
            attended: What its tap received.
            real_queries: True where a query is no padding, (batch, query); None if all are real.
        """
        logits = attended.logits()
        if attended.keep is not None:
            logits = logits.masked_fill(~attended.keep, -torch.inf)
        if real_queries is not None:
            logits = logits.masked_fill(~real_queries[:, None, :, None], -torch.inf)
        if len(logits) == 0:
            # A process may have no example of a batch; it takes part in the reduction.
            maxima = logits.new_full(logits.shape[1:2], -torch.inf)
        else:
            maxima = logits.amax(dim=(0, 2, 3))
        before = self.max_logits.get(path)
        self.max_logits[path] = maxima if before is None else torch.maximum(before, maxima)

    @torch.no_grad()
    def clip(self) -> dict[str, Tensor]:
        """Shrink the weights of heads above the threshold; return η of each attention, (head,)."""
        factors = {}
        for path, maxima in self.max_logits.items():
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                torch.distributed.all_reduce(maxima, torch.distributed.ReduceOp.MAX)
            # A logit that is not finite says nothing of how much to shrink.
            finite = torch.where(maxima.isfinite(), maxima, self.threshold)
            shrink = self.threshold / finite.clamp_min(self.threshold)
            attention = self.attentions[path]
            for layer, power in ((attention.q, self.alpha), (attention.k, 1.0 - self.alpha)):
                rows = shrink.pow(power).repeat_interleave(attention.d_k)
                for parameter in layer.parameters():
                    parameter.mul_(rows.to(parameter).view(-1, *[1] * (parameter.dim() - 1)))
            factors[path] = shrink
        self.max_logits = {}
        return factors
