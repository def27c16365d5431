"""The records of attentions: what a pass left of them, sampled in rows and put in numbers."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attnscale.doctor.kernels import Fused, flex_rows
from attnscale.doctor.origin import Node, Origin, origin
from attnscale.doctor.record import Attention
from attnscale.doctor.recovery import Rows, read, rows_at, sampled, unrelated_spread, used

Nodes = tuple[Node | None, Node | None]


def by_head(tensor: Tensor, heads: int) -> Tensor:
    """Return scores as (batch, head, query, key), whatever axes are before the last two."""
    if tensor.ndim == 2:
        tensor = tensor[None]
    if tensor.ndim == 3:
        # Heads are folded into the batch.
        return tensor.reshape(-1, heads, *tensor.shape[1:])
    return tensor.flatten(0, -4)


def read_eager(
    node: Node,
    logits: Tensor,
    weights: Tensor,
    axis: int,
    *,
    path: str,
    heads: int | None,
    rows: int,
    end: str,
) -> Attention:
    """Read an attention from its scores, logits and weights.

    Args:
        node: Of the logits: the products in them, and their twin.
        logits: What the softmax gets, (…, query, key), perhaps with columns that have no key.
        weights: What it gives.
        axis: Of the keys.
        path: Module path.
        heads: How many heads are folded into the first of three axes, or None if nobody knows.
        rows: Rows of a head that are measured.
        end: What makes weights of logits.

    Raises:
        ValueError: If there is nothing to measure, or the logits do not follow the scores.
    """
    assert node.twin is not None
    product = node.products[0]
    columns = [one.scores.transpose(axis, -1) for one in node.products]
    n_keys = columns[0].shape[-1]
    others = [t.detach().transpose(axis, -1) for t in (logits, node.twin, weights)]
    has_key = ~columns[0].reshape(-1, n_keys)[0].isnan()
    sinks = n_keys - int(has_key.sum())
    if sinks:
        columns, others = ([t[..., has_key] for t in each] for each in (columns, others))
    if logits.ndim > 3:
        heads = logits.shape[-3]
    elif logits.ndim == 2:
        heads = 1
    tensors = [by_head(t, heads or 1) for t in (*columns, *others)]
    pairs = [((one.left, one.of_left), (one.right.mT, one.of_right)) for one in node.products]
    if axis % logits.ndim == logits.ndim - 2:
        pairs = [(k, q) for q, k in pairs]
    (q, of_q), (k, of_k) = pairs[0]

    def rows_of(block: slice, batch: Tensor, queries: Tensor) -> Rows:
        *some, last, still, given = (rows_at(t[:, block], batch, queries) for t in tensors)
        return Rows(some, last, still, given)

    return record(
        rows_of,
        tensors[0].shape,
        (q, k),
        (of_q, of_k),
        further=[
            (origin(of_one, one), origin(of_other, other))
            for (one, of_one), (other, of_other) in pairs[1:]
        ],
        rows=rows,
        slope=product.slope,
        capped=product.capped,
        path=path,
        how="eager",
        heads=heads,
        sinks=sinks,
        end=end,
    )


def read_fused(
    fused: Fused, nodes: Nodes, *, path: str, rows: int, width: int | None = None
) -> Attention:
    """Read an attention from the arguments of a kernel.

    Args:
        fused: The arguments.
        nodes: Of q and k.
        path: Module path.
        rows: Rows of a head that are measured.
        width: Of what a native kernel projects itself.

    Raises:
        ValueError: As :func:`read_eager`.
    """
    errors: list[Tensor] = []

    def rows_of(block: slice, batch: Tensor, queries: Tensor) -> Rows:
        some, error = fused.rows(block, batch, queries)
        errors.extend([] if error is None else [error])
        return some

    if fused.how == "native":
        nodes = (Node(fused.q, "projection", width=width), Node(fused.k, "projection"))
    return record(
        rows_of,
        (*fused.q.shape[:3], fused.k.shape[2]),
        (fused.q, fused.k),
        nodes,
        rows=rows,
        errors=errors,
        path=path,
        how=fused.how,
        heads=fused.q.shape[1],
        default_scale=fused.default_scale,
    )


def read_flex(args: tuple[Any, ...], nodes: Nodes, *, path: str, rows: int) -> Attention:
    """Read an attention from the arguments of ``flex_attention``; else as :func:`read_fused`."""
    q, k = args[:2]
    return record(
        lambda block, batch, queries: flex_rows(args, block, batch, queries),
        (*q.shape[:3], k.shape[2]),
        (q, k),
        nodes,
        rows=rows,
        path=path,
        how="flex",
        heads=q.shape[1],
    )


def record(
    rows_of: Callable[[slice, Tensor, Tensor], Rows],
    shape: tuple[int, ...],
    vectors: tuple[Tensor, Tensor],
    nodes: Nodes,
    *,
    rows: int,
    further: Sequence[tuple[Origin, Origin]] = (),
    errors: list[Tensor] | None = None,
    slope: float = 1.0,
    capped: bool = False,
    default_scale: bool = False,
    sinks: int = 0,
    end: str = "softmax",
    **about: Any,
) -> Attention:
    """Measure an attention and return what it came to.

    Args:
        rows_of: (heads, sequences, queries) -> their rows.
        shape: (batch, head, query, key).
        vectors: q and k as they are multiplied, (…, d); their axes before may be folded.
        nodes: Where they come from.
        rows: Rows of a head that are measured.
        further: Where the vectors of further products come from.
        errors: What a kernel's output was off by, as ``rows_of`` notes it; None if it is not known.
        slope: Factor up to a soft cap.
        capped: Whether there is one.
        default_scale: Of the record, as the following ones.
        sinks: Further columns.
        end: What makes weights of logits.
        about: ``path``, ``how`` and ``heads`` of the record.
    """
    batch, n, queries, keys = shape
    at = sampled(batch, queries, rows, vectors[0].device)
    n_rows = len(at[0]) * len(at[1])
    reading = read(n, n_rows * keys, lambda block: rows_of(block, *at))
    own = used(*vectors)
    q, k = (tensor[..., own] for tensor in vectors)
    of_q, of_k = (origin(*pair) for pair in zip(nodes, (q, k), strict=True))
    slopes = torch.cat(reading.slopes)
    first = slopes[:, 0] * slope
    since = of_q.factor * of_k.factor
    rest, whole = torch.stack(reading.squares).sum(dim=0).tolist()
    if q.ndim == 3 and q.shape[0] == batch * n:
        q, k = (tensor.unflatten(0, (batch, n)) for tensor in (q, k))
    if q.ndim != 4 or q.shape[1] != n:
        q, k = (tensor.reshape(1, 1, -1, tensor.shape[-1]) for tensor in (q, k))
    return Attention(
        call=0,
        batch=batch,
        queries=queries,
        keys=keys,
        rows=n_rows,
        d_k=int(own.sum()),
        d_product=int(own.numel()),
        d_model=of_q.width,
        scales=tuple((first * since).tolist()),
        further_scales=tuple(
            float(slopes[:, i].mean()) * one.factor * other.factor
            for i, (one, other) in enumerate(further, start=1)
        ),
        factor_q=of_q.factor,
        factor_k=of_k.factor,
        origin_q=of_q.kind,
        origin_k=of_k.kind,
        misfit=(rest / whole) ** 0.5,
        softcap=float(slopes[:, 0].mean()) if capped else None,
        bias=reading.bias,
        masked=float(torch.cat(reading.masked).mean()),
        sinks=sinks,
        end=end,
        figures={name: reading.heads(name) for name in reading.figures},
        spread=tuple(torch.cat(reading.spread).tolist()),
        predicted=tuple(unrelated_spread(q, k, first).tolist()),
        first_key=tuple(torch.cat(reading.first_key).tolist()),
        weight_sum=float(torch.cat(reading.weight_sum).mean()),
        output_error=float(torch.stack(errors).max()) if errors else None,
        default_scale=default_scale,
        **about,
    )
