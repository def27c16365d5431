"""Which classes a configuration may name, and how they become objects.

A configuration comes from the command line, from a file, or out of a checkpoint, and each
``_target_`` in it is code that will run. So a target is the path of a class in one of
:data:`MODULES`, written there literally; a function, a method, or a class that a module merely
imports is refused, at every depth, before anything is called. A person's own packages join with
``allow=[package]``, which counts for one process and is stored nowhere.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

MODULES = (
    "attnscale.callbacks",
    "attnscale.data",
    "attnscale.model",
    "attnscale.task",
    "pytorch_lightning.callbacks",
    "pytorch_lightning.loggers",
    "pytorch_lightning.plugins",
    "pytorch_lightning.profilers",
    "pytorch_lightning.strategies",
    "torch.optim",
)
"""Paths before the class. In the project's own folders a module directly inside counts too."""

PROJECT = "attnscale"
TARGET = "_target_"
_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")

T = TypeVar("T")


def below(path: str, top: str) -> bool:
    """Whether a dotted path is a package or lies in it."""
    return path == top or path.startswith(f"{top}.")


def _dotted(key: str, name: object) -> str:
    """Return the key of what a section holds under a name; an empty key is that of the root."""
    return f"{key}.{name}" if key else str(name)


def _setting(key: str, target: object) -> str:
    """Return a target with its key, as a message begins."""
    return f"{_dotted(key, TARGET)}={target}"


def _nodes(value: Any, key: str) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    """Yield each mapping with its key, those inside lists included."""
    if isinstance(value, Mapping):
        yield key, value
        for name, inner in value.items():
            yield from _nodes(inner, _dotted(key, name))
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            yield from _nodes(inner, f"{key}[{i}]")


@dataclass(frozen=True)
class Targets:
    """The classes that a configuration may name.

    Attributes:
        allow: A person's own packages, whose classes are allowed beside those of :data:`MODULES`.
    """

    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for package in self.allow:
            if not isinstance(package, str) or not _PATH.fullmatch(package):
                raise ValueError(f"allow={package}: must be names of packages, allow=[mypackage]")

    def check_names(self, config: Mapping[str, Any], key: str = "") -> None:
        """Check every target and key by its name alone, without importing anything.

        ``key`` is where the configuration stands, for the message.

        Raises:
            ValueError: Naming the key, the target and what is allowed.
        """
        for place, node in _nodes(config, key):
            for name in node:
                # Hydra gives _args_, _partial_ and others a meaning; here they have none.
                if isinstance(name, str) and name.startswith("_") and name != TARGET:
                    raise ValueError(
                        f"{_dotted(place, name)}: a key cannot start with an underscore, "
                        f"but for {TARGET}"
                    )
            if TARGET in node:
                self._home(node[TARGET], place)

    def check(self, config: Mapping[str, Any]) -> None:
        """Check every target of a configuration, those that nobody builds included.

        Raises:
            ValueError: As :meth:`check_names`.
        """
        if config.get("allow"):
            raise ValueError(f"allow={config['allow']}: counts on the command line only")
        self.check_names(config)
        for place, node in _nodes(config, ""):
            if TARGET in node:
                self._class(node[TARGET], place)

    def build(self, node: Any, kind: type[T], key: str = "", /, **arguments: Any) -> T:
        """Call the class that ``node`` names, with the node's other keys and ``arguments``.

        Nodes inside the node are built too, after all of them were checked.

        Args:
            node: A plain mapping with ``_target_`` and keyword arguments.
            kind: What the class must be or derive from.
            key: Where the node stands, for the message.
            arguments: Further keyword arguments, such as objects that a configuration cannot hold.

        Raises:
            ValueError: If the target is missing, not allowed, of another kind, or called with
                arguments that it does not have.
        """
        place = f"{key}: " if key else ""
        if not isinstance(node, Mapping):
            raise ValueError(f"{place}{node!r} is no mapping with {TARGET}")
        if TARGET not in node:
            raise ValueError(f"{place}{TARGET} is missing in {dict(node)}")
        # Not ``check``: a constructor may well have an argument of the name allow.
        self.check_names(node, key)
        for where, inner in _nodes(node, key):
            if TARGET not in inner:
                continue
            signature = inspect.signature(self._class(inner[TARGET], where))
            keys = {name: value for name, value in inner.items() if name != TARGET}
            try:
                signature.bind(**keys, **(arguments if inner is node else {}))
            except TypeError as error:
                raise ValueError(f"{_setting(where, inner[TARGET])}: {error}") from error
        target = self._class(node[TARGET], key)
        if not issubclass(target, kind):
            raise ValueError(f"{_setting(key, node[TARGET])}: is no {kind.__name__}")
        return target(**self._values(node), **arguments)

    def _home(self, target: object, key: str) -> str:
        """Return the allowed package that a target's path lies in."""
        setting = _setting(key, target)
        if not isinstance(target, str) or not _PATH.fullmatch(target) or "." not in target:
            raise ValueError(f"{setting}: must be the path of a class, package.module.Class")
        path = target.rpartition(".")[0]
        for package in self.allow:
            if below(path, package):
                return package
        for package in MODULES:
            own = package.startswith(f"{PROJECT}.")
            if path == package or (own and path.rpartition(".")[0] == package):
                return package
        top = path.partition(".")[0]
        known = {*sys.stdlib_module_names, *(package.partition(".")[0] for package in MODULES)}
        hint = "" if top in known else f"; if it is your own: allow=[{top}]"
        allowed = ", ".join((*MODULES, *self.allow))
        raise ValueError(f"{setting}: allowed are classes in {allowed}{hint}")

    def _class(self, target: str, key: str) -> type[Any]:
        """Return the class of a target; importing its module is all that happens."""
        setting = _setting(key, target)
        home = self._home(target, key)
        path, _, name = target.rpartition(".")
        try:
            kind = getattr(importlib.import_module(path), name)
        except Exception as error:
            # A person's own module may fail in any way.
            raise ValueError(f"{setting}: cannot be found: {error}") from error
        if not isinstance(kind, type):
            raise ValueError(f"{setting}: is no class, and only classes are allowed")
        if not below(kind.__module__, home):
            raise ValueError(f"{setting}: is defined in {kind.__module__}, outside {home}")
        return kind

    def _values(self, node: Mapping[Any, Any]) -> dict[Any, Any]:
        return {name: self._value(value) for name, value in node.items() if name != TARGET}

    def _value(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return self.build(value, object) if TARGET in value else self._values(value)
        if isinstance(value, list | tuple):
            return [self._value(inner) for inner in value]
        return value


NO_ALLOWANCE = Targets()
"""Without a person's own packages."""
