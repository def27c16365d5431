"""Multi-head attention as a PyTorch module, and a look into every one that a model has.

    head_h = attend(x W_q^h, y W_k^h, y W_v^h),    output = [head_1 … head_H] W_o

Source: Vaswani et al. 2017, section 3.2.2. Differences: d_k, d_v, n_heads and d_model are free of
each other (the paper has d_k = d_v = d_model / n_heads), the scale is an argument, and biases are
off unless asked for.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnscale.attention.core import Attended, Tap, attend, choose_backend
from attnscale.attention.dropout import Dropout
from attnscale.attention.scale import Scale, ScaleFactory, choose_scale
from attnscale.checks import check_min

SIDES = ("source", "target")


@dataclass
class KeyValueCache:
    """Keys and values of one attention, kept while a sentence is decoded step by step.

    In self-attention each step adds a position; in cross-attention the source is projected once.

    Attributes:
        entries: Keys (batch, head, key, d_k) and values (batch, head, key, d_v), None before the
            first step.
    """

    entries: tuple[Tensor, Tensor] | None = None

    def select(self, rows: Tensor) -> None:
        """Keep these sentences of the batch, in this order."""
        if self.entries is not None:
            k, v = self.entries
            self.entries = k[rows], v[rows]


class MultiHeadAttention(nn.Module):
    """Multi-head attention with a scale that can be chosen.

    Self-attention over a batch of sequences, without the factor 1/√d_k, each sequence with its own
    length, and a look at the logits::

        >>> import torch
        >>> from attnscale.attention import MultiHeadAttention, padding_keep
        >>> attention = MultiHeadAttention(d_model=32, n_heads=2, d_k=16, d_v=16, scale="none")
        >>> x, keep = torch.randn(3, 7, 32), padding_keep(torch.tensor([7, 5, 2]), 7)
        >>> attention.tap = lambda call: print(tuple(call.logits().shape))
        >>> attention(x, keep=keep).shape
        (3, 2, 7, 7)
        torch.Size([3, 7, 32])

    Change ``scale`` to ``"sqrt"``, ``"inverse"``, ``"learned"``, ``0.125`` … and nothing else: the
    weights of a seed are the same, so what differs is the scale.
    """

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        d_k: int,
        d_v: int,
        scale: str | float | ScaleFactory | Scale,
        bias: bool = False,
        dropout: float = 0.0,
        backend: str = "auto",
        queries: str = "source",
        keys: str = "source",
    ) -> None:
        """Create the four projections and what the scale mode learns.

        Args:
            d_model: Size of the input and output vectors.
            n_heads: Number of heads.
            d_k: Size of a query or key, per head.
            d_v: Size of a value, per head.
            scale: A scale, which other attentions may share; or what makes one, a scale mode's name
                or a positive number.
            bias: Whether the four projections have a bias.
            dropout: Probability with which an attention weight is dropped while training.
            backend: "auto", "explicit" or "fused".
            queries: Which side of a translation the queries come from, "source" or "target".
            keys: Which side the keys come from.

        Raises:
            ValueError: If a size is below 1, the dropout is outside [0, 1), or scale, backend or a
                side are not allowed.
        """
        super().__init__()
        sizes = {"d_model": d_model, "n_heads": n_heads, "d_k": d_k, "d_v": d_v}
        for name, size in sizes.items():
            check_min(f"model.{name}", size)
        for side in (queries, keys):
            if side not in SIDES:
                raise ValueError(f"side {side!r}: allowed are {', '.join(SIDES)}")
        self.d_model, self.n_heads, self.d_k, self.d_v = d_model, n_heads, d_k, d_v
        self.dropout, self.backend = Dropout(dropout).p, backend
        self.queries, self.keys = queries, keys
        self.q = nn.Linear(d_model, n_heads * d_k, bias=bias)
        self.k = nn.Linear(d_model, n_heads * d_k, bias=bias)
        self.v = nn.Linear(d_model, n_heads * d_v, bias=bias)
        self.o = nn.Linear(n_heads * d_v, d_model, bias=bias)
        if not isinstance(scale, Scale | ScaleFactory):
            scale = choose_scale(scale)
        if not isinstance(scale, Scale):
            scale = scale(n_heads=n_heads, d_k=d_k, d_model=d_model)
        self.scale = scale
        choose_backend(backend, scale, 1, torch.device("cpu"))
        self.tap: Tap | None = None
        self._fold()

    @torch.no_grad()
    def _fold(self) -> None:
        """Multiply the newly initialised W_q and its bias by the scale's gain, if it has one."""
        gain = self.scale.init_gain(self.d_k)
        if gain != 1.0:
            for parameter in self.q.parameters():
                parameter.mul_(gain)

    def reset_parameters(self, init: Callable[[nn.Linear], None]) -> None:
        """Initialise the projections anew, with the scale's gain on top."""
        for layer in (self.q, self.k, self.v, self.o):
            init(layer)
        self._fold()

    def projections(self) -> dict[str, list[nn.Parameter]]:
        """Return the parameters of the q, k, v and o projections, weights first."""
        return {name: list(getattr(self, name).parameters()) for name in ("q", "k", "v", "o")}

    @torch.no_grad()
    def learned_scale(self) -> Float[Tensor, " head"] | None:
        """Return what the scale has learned to multiply logits by, one per head, or None."""
        learned = self.scale.learned_scale()
        return None if learned is None else learned.clone().expand(self.n_heads)

    def _split(self, x: Tensor, size: int) -> Tensor:
        # (batch, position, head * size) -> (batch, head, position, size)
        if self.n_heads == 1:
            return x.unsqueeze(1)
        return x.view(*x.shape[:-1], self.n_heads, size).transpose(1, 2)

    def _keys_and_values(
        self, source: Tensor, cache: KeyValueCache | None, *, grows: bool
    ) -> tuple[Tensor, Tensor]:
        before = None if cache is None else cache.entries
        if before is not None and not grows:
            return before
        k, v = self._split(self.k(source), self.d_k), self._split(self.v(source), self.d_v)
        if before is not None:
            k, v = torch.cat([before[0], k], dim=2), torch.cat([before[1], v], dim=2)
        if cache is not None:
            cache.entries = k, v
        return k, v

    def _informed(self, tap: Tap, source: Tensor) -> Tap:
        """Return a tap that also receives what only this module knows."""
        x, queries, keys = source.detach(), self.queries, self.keys
        return lambda attended: tap(replace(attended, x=x, queries=queries, keys=keys))

    def forward(
        self,
        query: Float[Tensor, "batch query d_model"],
        source: Float[Tensor, "batch key d_model"] | None = None,
        *,
        keep: Bool[Tensor, "..."] | None = None,
        causal: bool = False,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "batch query d_model"]:
        """Attend from ``query`` to ``source``, or to itself.

        Args:
            query: Where the queries come from.
            source: Where keys and values come from; ``query`` if None.
            keep: True where a key may be attended; broadcastable to (batch, head, query, key).
            causal: Hide the keys after each query.
            cache: Keys and values of earlier calls, for decoding step by step; it is updated.
        """
        grows = source is None
        source = query if source is None else source
        tap = None if self.tap is None else self._informed(self.tap, source)
        k, v = self._keys_and_values(source, cache, grows=grows)
        attended = attend(
            self._split(self.q(query), self.d_k),
            k,
            v,
            scale=self.scale,
            keep=keep,
            causal=causal,
            dropout=self.dropout if self.training else 0.0,
            backend=self.backend,
            tap=tap,
        )
        # (batch, head, query, d_v) -> (batch, query, head * d_v)
        joined = attended.squeeze(1) if self.n_heads == 1 else attended.transpose(1, 2).flatten(2)
        return cast(Tensor, self.o(joined))


AttentionMaker = Callable[..., MultiHeadAttention]
"""Makes every attention of a model: scale and backend are chosen, the keyword arguments
``d_model``, ``n_heads``, ``d_k``, ``d_v``, ``bias``, ``dropout``, ``queries`` and ``keys`` are the
model's. ``functools.partial(MultiHeadAttention, scale="sqrt")`` is one."""


def attentions(model: nn.Module) -> dict[str, MultiHeadAttention]:
    """Return every attention of a model by its module path, in order."""
    return {path: m for path, m in model.named_modules() if isinstance(m, MultiHeadAttention)}


@contextmanager
def tapped(model: nn.Module, receive: Callable[[str, Attended], None]) -> Iterator[None]:
    """Call ``receive(path, attended)`` at each attention of the model while the context is open.

    A tap never chooses the backend and never changes the result: training is bit-identical in eager
    mode with taps on or off. Contexts may be open inside one another; each receives every record.

    Raises:
        ValueError: If the model has no attention to tap.
    """
    modules = attentions(model)
    if not modules:
        raise ValueError("the model has no MultiHeadAttention to tap")
    before = {path: module.tap for path, module in modules.items()}

    def both(path: str, attended: Attended) -> None:
        outer = before[path]
        if outer is not None:
            outer(attended)
        receive(path, attended)

    for path, module in modules.items():
        module.tap = lambda attended, path=path: both(path, attended)
    try:
        yield
    finally:
        for path, module in modules.items():
            module.tap = before[path]
