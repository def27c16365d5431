"""Where a query or key comes from: its projection, and the one factor between the two.

q' enters the product; q_a is the tensor nearest to the projection whose vectors have the lengths of
those of q' but for one number. Rotations, casts, copies, pads and repeats keep lengths, so the
number is what q was multiplied by, wherever that happened. A normalisation does not keep them: then
q_a is what it gave, and q is called normalised.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

MAX_DEPTH = 60
"""Operations between a projection and the product that are walked through."""

MOVES = frozenset(
    f"aten::{name}"
    for name in (
        *("view", "_unsafe_view", "reshape", "_reshape_alias", "permute", "transpose", "t"),
        *("expand", "clone", "contiguous", "alias", "detach", "lift_fresh", "as_strided"),
        *("slice", "select", "squeeze", "unsqueeze", "unflatten", "repeat", "index"),
        *("index_select", "gather", "split", "split_with_sizes", "unbind", "chunk", "cat"),
        *("stack", "constant_pad_nd", "_to_copy"),
    )
)
"""Operations that move numbers and change none."""

LINEAR = MOVES | {
    f"aten::{name}" for name in ("add", "add_", "sub", "mul", "mul_", "div", "div_", "neg")
}
"""Operations that leave a projection one, such as a rotation or a factor."""


@dataclass(eq=False)
class Node:
    """What is known of a tensor.

    Attributes:
        tensor: An alias of it, which does not keep the tensor itself alive.
        kind: "projection", "op", "constant" (made of parameters alone), "product" or "weights".
        parents: Nodes of what it was made of, back to projections.
        operation: Name of the operation that made it.
        width: Of the input of a projection, or None.
        roots: The projections that it descends from, by identity.
        products: The q · k products that are in it.
        twin: What it would be if those products were 0.
        attention: Of weights: what they are of, or None if their scores were not followed.
    """

    tensor: Tensor
    kind: str = "op"
    parents: tuple["Node", ...] = ()
    operation: str = ""
    width: int | None = None
    roots: frozenset[int] = frozenset()
    products: list["Product"] = field(default_factory=list)
    twin: Tensor | None = None
    attention: Any = None


@dataclass(frozen=True, eq=False)
class Product:
    """A product of queries and keys on its way to a softmax.

    Attributes:
        scores: q' · k' as they are now placed.
        left: First factor, (…, left, d).
        right: Second factor, (…, d, right).
        of_left: Node of the first factor, or None.
        of_right: Node of the second factor, or None.
        slope: What the scores were multiplied by before a soft cap; 1 before there is one.
        capped: Whether it has gone through a soft cap, whose bound is the slope from there on.
    """

    scores: Tensor
    left: Tensor
    right: Tensor
    of_left: Node | None
    of_right: Node | None
    slope: float = 1.0
    capped: bool = False

    def is_of(self, other: "Product") -> bool:
        """Whether it is the same product, wherever it is placed."""
        return self.left is other.left and self.right is other.right


@dataclass(frozen=True)
class Origin:
    """Where vectors come from.

    Attributes:
        factor: What they were multiplied by since.
        kind: "raw", "rescaled", "normalised", "put together" or "unknown".
        width: Of the projection's input, or None.
    """

    factor: float
    kind: str
    width: int | None


def wide(tensor: Tensor) -> Tensor:
    """Return a tensor in fp64, or fp32 where a device has no wider type."""
    return tensor.detach().to(torch.float32 if tensor.device.type == "mps" else torch.float64)


def _lengths(tensor: Tensor, d: int) -> Iterator[Tensor]:
    """Yield the sorted lengths of vectors along each axis of size d, or of pieces of the last."""
    pieces = [(tensor, axis) for axis in range(tensor.ndim) if tensor.shape[axis] == d][::-1]
    if tensor.ndim and tensor.shape[-1] > d and tensor.shape[-1] % d == 0:
        pieces.append((tensor.unflatten(-1, (-1, d)), -1))
    for piece, axis in pieces:
        yield torch.linalg.vector_norm(wide(piece), dim=axis).flatten().sort().values


def _factor(theirs: Tensor, own: Tensor, tolerance: float) -> float | None:
    """Return f where own = f · theirs, either of them perhaps repeated, or None."""
    n, m = len(theirs), len(own)
    if not n or not m or (n % m and m % n):
        return None
    theirs, own = theirs[:: max(1, n // m)], own[:: max(1, m // n)]
    long_ones = theirs > theirs.max() * 1e-6
    ratio = own[long_ones] / theirs[long_ones]
    if len(ratio) < 2 or not bool(ratio.isfinite().all()):
        return None
    mean = ratio.mean()
    return float(mean) if bool((ratio - mean).abs().max() <= tolerance * mean) else None


def _of_parts(node: Node, d: int) -> Origin | None:
    """Return where vectors come from that were put one behind the other, as a cache of keys is."""
    while node.operation in MOVES and len(node.parents) == 1:
        (node,) = node.parents
    if len(node.parents) < 2 or node.operation not in ("aten::cat", "aten::stack"):
        return None
    if any(parent.tensor.shape[-1] != d for parent in node.parents):
        return None
    parts = [origin(parent, parent.tensor) for parent in node.parents]
    factors = [part.factor for part in parts]
    alike = len({part.kind for part in parts}) == 1
    return parts[0] if alike and max(factors) - min(factors) <= 1e-3 * max(factors) else None


def origin(node: Node | None, vectors: Tensor) -> Origin:
    """Walk back from vectors, (…, d), that entered a product as the tensor of a node."""
    if node is None:
        return Origin(1.0, "unknown", None)
    parts = _of_parts(node, vectors.shape[-1])
    if parts is not None:
        return parts
    half = vectors.dtype in (torch.float16, torch.bfloat16)
    tolerance, d = 3e-2 if half else 1e-3, vectors.shape[-1]
    own = torch.linalg.vector_norm(wide(vectors), dim=-1).flatten().sort().values
    width, alike = None, False
    best: tuple[bool, int, float, Node] | None = None
    todo, walked = [(node, 0)], set()
    while todo:
        one, depth = todo.pop(0)
        if id(one) in walked or depth > MAX_DEPTH:
            continue
        walked.add(id(one))
        if one.kind == "projection" and width is None:
            width = one.width
        factor = None
        for lengths in _lengths(one.tensor, d):
            factor = _factor(lengths, own, tolerance)
            alike |= factor is None and len(lengths) == len(own)
            if factor is not None:
                break
        if factor is not None:
            root = one
            while root.kind != "projection" and root.operation in LINEAR and len(root.parents) == 1:
                root = root.parents[0]
            candidate = (root.kind == "projection", depth, factor, one)
            if best is None or candidate[:2] > best[:2]:
                best = candidate
        todo += [(parent, depth + 1) for parent in one.parents]
    if best is None:
        return Origin(1.0, "unknown", width)
    raw, _, factor, nearest = best
    if raw:
        return Origin(factor, "raw" if abs(factor - 1) < 1e-3 else "rescaled", width)
    lengths = next(_lengths(nearest.tensor, d))
    one_length = bool(lengths.std() < 1e-2 * lengths.mean())
    return Origin(factor, "normalised" if one_length or alike else "put together", width)
