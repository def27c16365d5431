"""What is known of the tensors of a pass: where they come from, and which q · k is in them."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from attnscale.doctor.origin import MOVES, Node, Product, wide
from attnscale.doctor.record import Attention, NotVisible

PRODUCTS = {
    "aten::bmm": (0, 1),
    "aten::mm": (0, 1),
    "aten::baddbmm": (1, 2),
    "aten::addmm": (1, 2),
    "aten::convolution": (0, 1),
}
"""Operation -> places of its two factors."""
PLAIN_PRODUCTS = ("aten::bmm", "aten::mm")
SUMS = frozenset(f"aten::{name}" for name in ("add", "add_", "sub", "sub_"))
TANH = ("aten::tanh", "aten::tanh_")

MODEL = "(model)"


class Tracker:
    """Follows tensors through operations.

    Attributes:
        attentions: Those that were read, in order.
        not_visible: What could not be read.
    """

    def __init__(self, model: nn.Module, *, rows: int, notify: Callable[[int], None]) -> None:
        """Know nothing yet.

        Args:
            model: The model.
            rows: Rows of a head that are measured; all where there are fewer.
            notify: Called with the number of attentions whenever one was read.
        """
        super().__init__()
        self.attentions: list[Attention] = []
        self.not_visible: list[NotVisible] = []
        self.rows, self.notify = rows, notify
        self._modules = {name or MODEL: module for name, module in model.named_modules()}
        self._paths = {id(module): name for name, module in self._modules.items()}
        self._owned = {
            tensor.untyped_storage().data_ptr()
            for tensor in (*model.parameters(), *model.buffers())
            if tensor.layout == torch.strided
        }
        self._nodes = WeakTensorKeyDictionary()
        self._stack: list[str] = []
        self._calls: Counter[str] = Counter()

    @property
    def path(self) -> str:
        """Path of the innermost module of the model that is running."""
        return next((path for path in reversed(self._stack) if path), MODEL)

    def _lose(self, operation: str, reason: str) -> None:
        self.not_visible.append(NotVisible(path=self.path, operation=operation, reason=reason))

    def _of(self, value: object) -> Node | None:
        return self._nodes.get(value) if isinstance(value, Tensor) else None

    def _put(self, tensor: Tensor, node: Node) -> None:
        self._nodes[tensor] = node

    def _start(self, tensor: Tensor, kind: str, width: int | None = None) -> Node:
        node = Node(tensor.detach(), kind, width=width)
        node.roots = frozenset([id(node)])
        self._put(tensor, node)
        return node

    def _is_parameter(self, value: object) -> bool:
        """Whether a tensor is a parameter, a view of one, or made of parameters alone."""
        if not isinstance(value, Tensor):
            return False
        node = self._of(value)
        if node is not None:
            return node.kind == "constant"
        plain = value.layout == torch.strided and not value.is_nested
        return plain and value.untyped_storage().data_ptr() in self._owned

    def _keep_old(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Copy what an operation in place is about to overwrite."""
        bound = bound_arguments(func, args, kwargs)
        for argument in func._schema.arguments:
            target = bound.get(argument.name)
            node = self._of(target)
            if node is None or argument.alias_info is None or not argument.alias_info.is_write:
                continue
            assert isinstance(target, Tensor)
            storage = target.untyped_storage().data_ptr()
            node.products = [
                replace(one, scores=one.scores.clone())
                if one.scores.untyped_storage().data_ptr() == storage
                else one
                for one in node.products
            ]
            old: Node | None = node
            if node.products:
                continue
            while old is not None and old.tensor.untyped_storage().data_ptr() == storage:
                old.tensor = old.tensor.clone()
                old = old.parents[0] if old.parents else None

    def _other(self, name: str, nodes: Sequence[Node], outputs: Sequence[Tensor]) -> None:
        """Follow an operation on what is no score: vectors of a projection, or weights."""
        if not nodes or (name in SUMS and len({node.roots for node in nodes}) > 1):
            # A residual sum is no vector of one projection; what it is of need not be kept.
            return
        weights = next((node for node in nodes if node.kind == "weights"), None)
        if weights and name not in MOVES and outputs[0].numel() < weights.tensor.numel():
            # A sum or a maximum of weights is none.
            return
        roots = frozenset[int]().union(*(node.roots for node in nodes))
        for one in outputs:
            if weights is not None:
                node = Node(one.detach(), "weights", attention=weights.attention)
            else:
                node = Node(one.detach(), "op", tuple(nodes), name, roots=roots)
            self._put(one, node)

    def _product(  # noqa: PLR0911 -- one for each kind of product
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Tensor
    ) -> bool:
        """Look at a matrix product; return whether that is all there is to it."""
        i, j = PRODUCTS[name]
        left, right = self._of(args[i]), self._of(args[j])
        nodes = [node for node in (left, right) if node is not None]
        carrier = next((node for node in nodes if node.kind == "weights"), None)
        parameters = [self._is_parameter(args[i]), self._is_parameter(args[j])]
        if carrier is not None and any(parameters):
            if output.numel() == carrier.tensor.numel():
                # Heads are mixed after the softmax.
                self._put(output, Node(output.detach(), "weights", attention=carrier.attention))
                return True
            carrier = None
        if carrier is not None:
            # weights · v: this was an attention.
            if carrier.attention is None:
                self._lose("softmax", "its scores were not followed back to q · k")
            elif not any(carrier.attention is one for one in self.attentions):
                self._found(carrier.attention)
            return True
        has_scores = any(node.products for node in nodes)
        if any(parameters):
            if has_scores:
                # Talking heads: a mix of heads, through which no scale of one goes.
                return False
            source = args[j] if parameters[0] else args[i]
            self._start(
                output,
                "projection",
                source.shape[-1] if name != "aten::convolution" else source.shape[1],
            )
            return True
        if has_scores:
            self._lose(name, "a product of q and k is multiplied on without a softmax")
            return True
        if not ((left and right) or name in ("aten::bmm", "aten::baddbmm")):
            return False
        nothing = [torch.zeros_like(x) if n == i else x for n, x in enumerate(args)]
        plain = name in PLAIN_PRODUCTS
        twin = torch.zeros_like(output) if plain else func(*nothing, **kwargs)
        scores = output.detach() if plain else torch.matmul(args[i], args[j])
        node = Node(output.detach(), "product", twin=twin)
        node.products = [Product(scores, args[i].detach(), args[j].detach(), left, right)]
        self._put(output, node)
        return True

    def _scores(
        self,
        func: Any,
        name: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        outputs: Sequence[Tensor],
    ) -> None:
        """Follow an operation on scores: by their twin, and where it moves them by themselves."""
        if torch.Tag.nondeterministic_seeded in func.tags:
            self._lose(name, "a random operation on the scores")
            return

        def still(value: Any) -> Any:
            node = self._of(value)
            return value if node is None or node.twin is None else node.twin

        flat = tree_flatten((args, kwargs))[0]
        scores = [node for node in map(self._of, flat) if node is not None and node.products]
        twin = func(*tree_map(still, args), **tree_map(still, dict(kwargs)))
        twins = list(twin) if isinstance(twin, tuple | list) else [twin]
        # A product counts once, however many ways it came.
        products = _distinct(scores, outputs[0].shape)
        placed: list[list[Tensor]] = []
        if name in MOVES:
            plain = {key: value for key, value in kwargs.items() if key != "dtype"}
            for product in products:

                def place(value: Any, product: Product = product) -> Any:
                    node = self._of(value)
                    if node is not None and node.products:
                        own = (one for one in node.products if one.is_of(product))
                        same = next(own, None)
                        nothing = torch.zeros_like(value) if same is None else same.scores
                        return nothing.to(value.dtype)
                    if name == "aten::cat" and isinstance(value, Tensor):
                        # Columns without a key.
                        return torch.full_like(value, torch.nan)
                    return value

                one = func(*tree_map(place, args), **tree_map(place, plain))
                placed.append(list(one) if isinstance(one, tuple | list) else [one])
        elif name in TANH and len(products) == 1:
            products = [self._capped(products[0], args[0], scores[0], outputs[0], name)]
        for n, output in enumerate(outputs):
            node = Node(output.detach(), "op", twin=twins[n])
            node.products = [
                replace(product, scores=placed[p][n]) if placed else product
                for p, product in enumerate(products)
            ]
            self._put(output, node)

    def _capped(
        self, product: Product, inner: Tensor, node: Node, output: Tensor, name: str
    ) -> Product:
        """Return scores from a tanh on, with the slope up to it."""
        scores = wide(product.scores)
        still = node.twin
        assert still is not None
        if name.endswith("_"):
            before = torch.atanh(wide(output).clamp(-1 + 1e-9, 1 - 1e-9))
        else:
            before = wide(inner) - wide(still)
        slope = float((before * scores).sum() / scores.square().sum())
        return replace(product, scores=output.detach().clone(), slope=slope, capped=True)

    def _found(self, attention: Attention) -> None:
        call = self._calls[attention.path]
        self._calls[attention.path] += 1
        # The object stays the one that the weights carry: it is known by its identity.
        object.__setattr__(attention, "call", call)
        self.attentions.append(attention)
        self.notify(len(self.attentions))


def _distinct(nodes: Sequence[Node], shape: torch.Size) -> list[Product]:
    """Return the products in some scores, each once: as it is placed where it has a shape."""
    products: list[Product] = []
    for product in (product for node in nodes for product in node.products):
        places = [i for i, one in enumerate(products) if one.is_of(product)]
        if not places:
            products.append(product)
        elif products[places[0]].scores.shape != shape and product.scores.shape == shape:
            products[places[0]] = product
    return products


def bound_arguments(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return an operation's arguments by their names."""
    names = (argument.name for argument in func._schema.arguments)
    return dict(zip(names, args, strict=False)) | dict(kwargs)
