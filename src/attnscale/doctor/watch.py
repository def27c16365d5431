"""Finds the attentions of any model in one forward pass, below any Python code.

    projection ─▶ q_a ─(factor, rotation, cast, pad …)─▶ q' ┐
                                                             ├─▶ q'·k' ─(scale, softcap, bias …)─▶
    projection ─▶ k_a ─(factor …)─────────────────────▶ k' ┘         softmax ─▶ · v

    effective scale = factor of q · factor of k · slope of the logits on q'·k'

A ``TorchDispatchMode`` sees each operation with its tensors. Beside the scores runs a *twin* that
starts as the product without q · k: what differs in the end is what q · k contributed. The model's
own operations are executed as they are, and first.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from attnscale.doctor.kernels import Fused, native_arguments
from attnscale.doctor.origin import MOVES, Node, Product, wide
from attnscale.doctor.readings import read_eager, read_flex, read_fused
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
SOFTMAX = frozenset(f"aten::{name}" for name in ("_softmax", "_safe_softmax", "_masked_softmax"))
OTHER_ENDS = {"aten::exp": "exp", "aten::exp_": "exp", "aten::sigmoid": "sigmoid"}
NATIVE = frozenset(("aten::_native_multi_head_attention", "aten::_transformer_encoder_layer_fwd"))
SUMS = frozenset(f"aten::{name}" for name in ("add", "add_", "sub", "sub_"))
TANH = ("aten::tanh", "aten::tanh_")

HEADS = ("num_heads", "n_heads", "nhead", "heads", "n_head", "num_attention_heads")
"""Attributes by which modules say how many heads are folded into the batch."""

MODEL = "(model)"


class Watch(TorchDispatchMode):
    """Sees one pass of a model.

    Attributes:
        attentions: Those that were read, in order.
        not_visible: What could not be read.
    """

    supports_higher_order_operators = True  # flex_attention

    def __init__(self, model: nn.Module, *, rows: int, notify: Callable[[int], None]) -> None:
        """Look at nothing yet.

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
        self._hooks: list[Any] = []

    def __enter__(self) -> Any:
        """Watch, and know which module is running."""

        def enter(module: nn.Module, inputs: object) -> None:
            self._stack.append(self._paths.get(id(module), ""))

        def leave(module: nn.Module, inputs: object, output: object) -> None:
            # What a hook returns would replace the output.
            del self._stack[-1:]

        self._hooks = [
            torch_module.register_module_forward_pre_hook(enter),
            torch_module.register_module_forward_hook(leave, always_call=True),
        ]
        return super().__enter__()

    def __exit__(self, *error: Any) -> Any:
        """Leave the model as it was."""
        for hook in self._hooks:
            hook.remove()
        self._nodes = WeakTensorKeyDictionary()
        return super().__exit__(*error)

    @property
    def path(self) -> str:
        """Path of the innermost module of the model that is running."""
        return next((path for path in reversed(self._stack) if path), MODEL)

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Execute an operation, then look at it."""
        kwargs = kwargs or {}
        if torch._C._current_graph_task_id() != -1:
            # Backward, and what checkpointing computes again in it.
            return func(*args, **kwargs)
        if not hasattr(func, "_schema"):
            output = func(*args, **kwargs)
            if str(func) == "flex_attention":
                self._guarded("flex_attention", self._flex, args)
            return output
        name = func._schema.name
        if torch.is_inference_mode_enabled() and func._can_decompose():
            # Composite operations arrive whole there.
            TorchDispatchMode.__enter__(self)
            try:
                return func.decompose(*args, **kwargs)
            finally:
                TorchDispatchMode.__exit__(self, None, None, None)
        if func._schema.is_mutable:
            self._keep_old(func, args, kwargs)
        output = func(*args, **kwargs)
        self._guarded(name, self._look, func, name, args, kwargs, output)
        return output

    def _guarded(self, name: str, look: Callable[..., None], *arguments: Any) -> None:
        try:
            look(*arguments)
        except Exception as error:
            # Whatever is not understood must not stop the model; it is told.
            reason = str(error).split("\n")[0] or type(error).__name__
            self._lose(name, reason)

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
        bound = _bound(func, args, kwargs)
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

    def _look(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        listed = output if isinstance(output, tuple | list) else [output]
        outputs = [one for one in listed if isinstance(one, Tensor)]
        if not outputs or self._kernel(func, name, args, kwargs, outputs[0]):
            return
        if name in PRODUCTS and self._product(func, name, args, kwargs, outputs[0]):
            return
        flat = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
        nodes = [node for node in map(self._of, flat) if node is not None]
        scores = [node for node in nodes if node.products]
        if (name in SOFTMAX or (name in OTHER_ENDS and scores)) and outputs[0].ndim > 1:
            axis = args[1] if len(args) > 1 and type(args[1]) is int else -1
            self._end(name, scores[0] if scores else None, flat[0], outputs[0], axis)
        elif flat and all(map(self._is_parameter, flat)):
            for one in outputs:
                self._put(one, Node(one.detach(), "constant"))
        elif scores:
            self._scores(func, name, args, kwargs, outputs)
        else:
            self._other(name, [node for node in nodes if node.kind != "constant"], outputs)

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

    def _kernel(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Tensor
    ) -> bool:
        """Look at what is one operation; return whether it was that."""
        if "scaled_dot_product" in name or name in NATIVE:
            bound = _bound(func, args, kwargs)
            width = None
            if name in NATIVE:
                fused, width = native_arguments(bound)
            elif "query" in bound:
                fused = Fused.of(bound, output)
            else:
                return False
            nodes = (self._of(fused.q), self._of(fused.k))
            self._found(read_fused(fused, nodes, path=self.path, rows=self.rows, width=width))
            return True
        if "linear" in name or "gemv" in name:
            # Quantised and other packed projections.
            self._start(output, "projection")
            return True
        return False

    def _flex(self, args: tuple[Any, ...]) -> None:
        nodes = (self._of(args[0]), self._of(args[1]))
        self._found(read_flex(args, nodes, path=self.path, rows=self.rows))

    def _end(
        self, name: str, scores: Node | None, logits: Tensor, output: Tensor, axis: int
    ) -> None:
        """Read an attention where its logits become weights; it counts once these weigh values."""
        attention = None
        if scores is not None:
            weights = output if name in SOFTMAX else wide(logits).softmax(axis)
            attention = read_eager(
                scores,
                logits,
                weights,
                axis,
                path=self.path,
                heads=self._heads(logits.shape[0]),
                rows=self.rows,
                end=OTHER_ENDS.get(name, "softmax"),
            )
        if scores is not None or output.ndim > 2:
            self._put(output, Node(output.detach(), "weights", attention=attention))

    def _heads(self, folded: int) -> int | None:
        """Return how many heads the running module says that it has, if so many fit."""
        module = self._modules.get(self.path)
        counts = (getattr(module, name, None) for name in HEADS)
        count = next((n for n in counts if isinstance(n, int) and n > 0), None)
        return count if count is not None and folded % count == 0 else None

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


def _bound(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    names = (argument.name for argument in func._schema.arguments)
    return dict(zip(names, args, strict=False)) | dict(kwargs)


@contextmanager
def watching(
    model: nn.Module, *, rows: int = 64, notify: Callable[[int], None] = lambda n: None
) -> Iterator[Watch]:
    """Watch what a model computes in a block; a compiled one runs uncompiled in it.

    Args:
        model: The model.
        rows: Rows of a head that are measured.
        notify: Called with the number of attentions whenever one was read.
    """
    # Casts of weights that were made before would not be known as weights.
    torch.clear_autocast_cache()
    with (
        warnings.catch_warnings(),
        torch.compiler.set_stance("force_eager"),
        Watch(model, rows=rows, notify=notify) as watch,
    ):
        # The hooks are gone before anything is compiled again.
        warnings.filterwarnings("ignore", message=r"Using `torch.compile\(module\)` when there are")
        yield watch
