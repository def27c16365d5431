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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from torch.utils.weak import WeakTensorKeyDictionary

from attnscale.doctor.kernels import Fused, native_arguments
from attnscale.doctor.origin import Node, wide
from attnscale.doctor.readings import read_eager, read_flex, read_fused
from attnscale.doctor.tracking import PRODUCTS, Tracker, bound_arguments

SOFTMAX = frozenset(f"aten::{name}" for name in ("_softmax", "_safe_softmax", "_masked_softmax"))
OTHER_ENDS = {"aten::exp": "exp", "aten::exp_": "exp", "aten::sigmoid": "sigmoid"}
NATIVE = frozenset(("aten::_native_multi_head_attention", "aten::_transformer_encoder_layer_fwd"))

HEADS = ("num_heads", "n_heads", "nhead", "heads", "n_head", "num_attention_heads")
"""Attributes by which modules say how many heads are folded into the batch."""


class Watch(Tracker, TorchDispatchMode):
    """Sees one pass of a model, operation by operation."""

    supports_higher_order_operators = True  # flex_attention
    _hooks: tuple[Any, ...] = ()

    def __enter__(self) -> Any:
        """Watch, and know which module is running."""

        def enter(module: nn.Module, inputs: object) -> None:
            self._stack.append(self._paths.get(id(module), ""))

        def leave(module: nn.Module, inputs: object, output: object) -> None:
            # What a hook returns would replace the output.
            del self._stack[-1:]

        self._hooks = (
            torch_module.register_module_forward_pre_hook(enter),
            torch_module.register_module_forward_hook(leave, always_call=True),
        )
        return super().__enter__()

    def __exit__(self, *error: Any) -> Any:
        """Leave the model as it was."""
        for hook in self._hooks:
            hook.remove()
        self._nodes = WeakTensorKeyDictionary()
        return super().__exit__(*error)

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

    def _kernel(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Tensor
    ) -> bool:
        """Look at what is one operation; return whether it was that."""
        if "scaled_dot_product" in name or name in NATIVE:
            bound = bound_arguments(func, args, kwargs)
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
