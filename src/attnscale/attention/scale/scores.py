"""Modes that change the score matrix: squashed, or normalised over a row or a batch.

    softcap          C · tanh(r / (√s · C)), s = d_k, before the mask: tanh of a masked −10⁹ is −C
    score_layernorm  γ_head · (r − mean r) / (std r + ε)      over the kept keys of a row
    score_batchnorm  γ_head · (r − mean r) / √(var r + ε)     over all kept pairs of a batch
    nap              (r − mean r) / (std r + ε) · γ_head + β_head as the weights, without a softmax;
                     LayerNorm of the joined heads before W_o

Means and standard deviations count what ``keep`` keeps and nothing else; those of a row divide by
n. A bias before a softmax has no effect and is left out. A row with one key gets logit 0, and so
does a row of equal scores, as a query of zeros has; its gradient is 0 and not 1/ε.

The squares of a row of ``nap``'s weights add up to n, so that heads grow as √n, and faster where
values go with the scores: the LayerNorm takes that out. In the authors' code it stands in their
block around softmax too, and so does a GELU after it, which is left out here: with it ``nap`` and
``sqrt`` would differ by a nonlinearity as well.

Sources: Gemma 2 technical report 2024 (``softcap``; s is d_k but for its 27B model, 144 for d_k =
128); Richter & Wattenhofer 2020, "Normalized
Attention Without Probability Cage", and its code (``nap``; ``score_layernorm`` is the same
normalisation in front of a softmax); Wang et al. 2020, Axial-DeepLab (``score_batchnorm``, which in
training lets a batch's examples, and later positions, see each other; running statistics in
evaluation).
"""

import torch
from torch import Tensor, nn

from attnscale.attention.scale.base import (
    Moments,
    Scale,
    checked,
    mean_of,
    per_head,
    positive,
    root_factor,
)


def _row_normed(scores: Tensor, keep: Tensor | None, eps: float) -> Tensor:
    """Centre and divide each row over its kept keys; hidden places and rows of equals are 0."""
    if keep is None:
        n: Tensor | float = float(scores.shape[-1])
        centred = scores - scores.mean(dim=-1, keepdim=True)
    else:
        keep = keep.expand(*keep.shape[:-1], scores.shape[-1])
        n = keep.sum(dim=-1, keepdim=True).clamp_min(1).to(scores.dtype)
        total = scores.masked_fill(~keep, 0.0).sum(dim=-1, keepdim=True)
        centred = (scores - total / n).masked_fill(~keep, 0.0)
    variance = centred.square().sum(dim=-1, keepdim=True) / n
    # A row of equal scores has variance 0, where a square root has no gradient.
    flat = variance == 0
    std = variance.masked_fill(flat, 1.0).sqrt().masked_fill(flat, torch.inf)
    return centred / (std + eps)


def _batch_moments(scores: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return (mean, variance, count) over all kept pairs of each head, (head, 1, 1).

    The count is a scalar where nothing is hidden.
    """
    if keep is None:
        count = scores.new_tensor(float(scores.numel() // scores.shape[1]))
        mean = scores.mean(dim=(0, 2, 3), keepdim=True)
        centred = scores - mean
    else:
        keep = keep.broadcast_to(scores.shape)
        # Of each head: a mask may differ between them.
        count = keep.sum(dim=(0, 2, 3), keepdim=True).clamp_min(1).to(scores.dtype)
        mean = scores.masked_fill(~keep, 0.0).sum(dim=(0, 2, 3), keepdim=True) / count
        centred = (scores - mean).masked_fill(~keep, 0.0)
    variance = centred.square().sum(dim=(0, 2, 3), keepdim=True) / count
    return mean[0], variance[0], count[0] if count.dim() else count


class SoftCap(Scale):
    """The usual scale, squashed so that no logit passes a cap."""

    formula = "C · tanh(r / (√d_k · C))"
    source = "Gemma 2 technical report 2024; `scalar` stands for d_k, 144 in its 27B model"

    def __init__(self, *, d_k: int, cap: float = 50.0, scalar: float = 0) -> None:
        """Set C, the largest logit, and s of 1/√s, 0 for d_k."""
        super().__init__()
        self.factor, self.cap = root_factor(scalar, d_k), positive("cap", cap)

    def logits(self, scores: Tensor, keep: Tensor | None = None) -> Tensor:
        """Squash the scaled scores."""
        return self.cap * (scores * (self.factor / self.cap)).tanh()

    def predicted_std(self, moments: Moments) -> float:
        """Return √E[C² tanh²(βz/C)] for a normal z, by quadrature over its density."""
        beta = self.factor * moments.score_std
        z = torch.linspace(-8, 8, 4001, dtype=torch.float64)
        density = (-0.5 * z * z).exp()
        squared = (self.cap * (beta * z / self.cap).tanh()).square()
        return float(((squared * density).sum() / density.sum()).sqrt())


class ScoreLayerNorm(Scale):
    """Each row normalised over its kept keys."""

    formula = "γ_head · (r − mean r) / (std r + ε) over the row's kept keys, γ starts at 1"
    source = "the normalisation of Richter & Wattenhofer 2020, in front of a softmax"

    def __init__(self, *, n_heads: int, eps: float = 1e-6) -> None:
        """Set ε, added to a row's standard deviation."""
        super().__init__()
        self.eps = positive("eps", eps)
        self.gain = nn.Parameter(torch.ones(n_heads))

    def learned_scale(self) -> Tensor:
        """Return γ."""
        return self.gain

    def logits(self, scores: Tensor, keep: Tensor | None = None) -> Tensor:
        """Normalise each row."""
        return _row_normed(scores, keep, self.eps) * per_head(self.gain)

    def predicted_std(self, moments: Moments) -> float:
        """Return the mean of γ; the row's own std divides by n, not n − 1."""
        return mean_of(self.gain) * moments.shrink


class ScoreBatchNorm(Scale):
    """All kept pairs of a batch normalised together; running statistics in evaluation."""

    formula = (
        "γ_head · (r − mean r) / √(var r + ε) over the batch's kept pairs, γ starts at 1; "
        "running statistics in evaluation"
    )
    source = "Wang et al. 2020, Axial-DeepLab (its bias has no effect before a softmax)"
    over_batch = True

    running_mean: Tensor
    running_variance: Tensor

    def __init__(self, *, n_heads: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        """Set ε under the square root, and a new batch's share in the running statistics."""
        super().__init__()
        self.eps = positive("eps", eps)
        self.momentum = checked(
            "momentum", momentum, "a number above 0, at most 1", lambda number: 0 < number <= 1
        )
        self.gain = nn.Parameter(torch.ones(n_heads))
        self.register_buffer("running_mean", torch.zeros(n_heads))
        self.register_buffer("running_variance", torch.ones(n_heads))

    def learned_scale(self) -> Tensor:
        """Return γ."""
        return self.gain

    def logits(self, scores: Tensor, keep: Tensor | None = None) -> Tensor:
        """Normalise over the batch and update the running statistics, or use them."""
        # A process may have no example of a batch, and nothing has no mean.
        if self.training and scores.numel():
            mean, variance, count = _batch_moments(scores, keep)
            self._update(mean.detach(), variance.detach(), count)
        else:
            mean, variance = per_head(self.running_mean), per_head(self.running_variance)
        factor = (variance + self.eps).rsqrt() * per_head(self.gain)
        return (scores - mean) * factor

    @torch.no_grad()
    def _update(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        unbiased = variance * (count / (count - 1).clamp_min(1))
        # One pair, or none, has no variance: such a batch leaves the running statistics alone.
        share = (count > 1).to(mean.dtype).expand_as(mean).flatten() * self.momentum
        for running, new in ((self.running_mean, mean), (self.running_variance, unbiased)):
            running.lerp_(new.flatten().to(running.dtype), share.to(running.dtype))

    def predicted_std(self, moments: Moments) -> float:
        """Return the mean of γ times the share of the standard deviation that is within rows."""
        return mean_of(self.gain) * moments.row_share


class NAP(Scale):
    """Normalised rows as the weights, without a softmax, and LayerNorm of the joined heads."""

    formula = (
        "r; weights γ_head · (r − mean r) / (std r + ε) + β_head instead of a softmax; "
        "LayerNorm of the joined heads before W_o"
    )
    source = (
        "Richter & Wattenhofer 2020, Normalized Attention Without Probability Cage, and its code "
        "(without the GELU behind that LayerNorm)"
    )

    def __init__(self, *, n_heads: int, eps: float = 1e-3, output_norm: float = 1) -> None:
        """Set ε, added to a row's standard deviation, and whether there is the LayerNorm (1, 0)."""
        super().__init__()
        self.eps = positive("eps", eps)
        self.normed = checked("output_norm", output_norm, "0 or 1", lambda flag: flag in (0, 1))
        # The order in which an optimizer's state in a checkpoint numbers them.
        self.bias = nn.Parameter(torch.zeros(n_heads))
        self.gain = nn.Parameter(torch.ones(n_heads))

    def learned_scale(self) -> Tensor:
        """Return γ."""
        return self.gain

    def output_norm(self, size: int) -> nn.Module | None:
        """Return LayerNorm with Keras's ε, as in the authors' code."""
        return nn.LayerNorm(size, eps=1e-3) if self.normed else None

    def weights(self, logits: Tensor, keep: Tensor | None = None) -> Tensor:
        """Normalise each row, with gain and bias."""
        normed = _row_normed(logits, keep, self.eps)
        weights = normed * per_head(self.gain) + per_head(self.bias)
        return weights if keep is None else weights.masked_fill(~keep, 0.0)

    def predicted_std(self, moments: Moments) -> float:
        """Return that of the scores."""
        return moments.score_std
