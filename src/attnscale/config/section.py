"""Sections of a configuration as objects, and back to plain values at the edges.

Plain dictionaries are what OmegaConf hands over, what a checkpoint and a JSON file hold, and what
MLflow records. Between those edges a configuration is read by attribute.
"""

import copy
from collections.abc import Mapping
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import fields, is_dataclass
from typing import Any, Generic, TypeVar, get_type_hints

T = TypeVar("T")


class Key(Generic[T]):
    """A key of a :class:`Node` that the program reads, as a typed attribute."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, node: "Node", owner: type) -> T:
        value: T = node[self.name]
        return value

    def __set__(self, node: "Node", value: T) -> None:
        node[self.name] = value


class Node(dict[str, Any]):
    """A section that names a class: ``_target_`` and that class's arguments, whatever they are."""

    _target_ = Key[str]()

    def without(self, *names: str) -> dict[str, Any]:
        """Return the keys but for some that are not for the class."""
        return {key: value for key, value in self.items() if key not in names}


class ModelNode(Node):
    """``model``: what the program reads of any model."""

    d_k = Key[int]()


class DataNode(Node):
    """``data``: what a translation corpus has."""

    source = Key[str]()
    target = Key[str]()
    tokenizer = Key[str]()
    lowercase = Key[bool]()
    max_length = Key[int]()


class TaskNode(Node):
    """``task``: what the program reads of any task."""

    block = Key[int]()


class OptimizerNode(Node):
    """``optimizer``: what the program reads of any optimizer."""

    lr = Key[float]()
    fused = Key[bool | None]()
    schedule = Key[str]()
    warmup_steps = Key[int]()


def typed(kind: type[T], values: Mapping[str, Any], place: str = "") -> T:
    """Return plain values as an object.

    Args:
        kind: A dataclass of ``schema.py``.
        values: The plain configuration, or a section of it; it is copied.
        place: Where it stands, for the message.

    Raises:
        ValueError: If a key is missing or unknown, naming it.
    """
    hints = get_type_hints(kind)
    optional = {f.name for f in fields(kind) if f.default_factory is not NO_DEFAULT}  # type: ignore[arg-type]
    prefix = f"{place}." if place else ""
    if unknown := sorted(set(values) - set(hints)):
        raise ValueError(f"{prefix}{unknown[0]}: no such key")
    if absent := sorted(set(hints) - set(values) - optional):
        raise ValueError(f"{prefix}{absent[0]}: is missing")
    return kind(
        **{key: _typed(hints[key], value, f"{prefix}{key}") for key, value in values.items()}
    )


def _typed(kind: Any, value: Any, place: str) -> Any:
    if not isinstance(kind, type) or not (is_dataclass(kind) or issubclass(kind, Node)):
        return copy.deepcopy(value)
    if not isinstance(value, Mapping):
        raise ValueError(f"{place}={value}: must be a section with keys")
    return typed(kind, value, place) if is_dataclass(kind) else kind(copy.deepcopy(dict(value)))


def plain(config: Any) -> Any:
    """Return a configuration, or a part of it, as plain dictionaries, lists and values."""
    if is_dataclass(config):
        return {f.name: plain(getattr(config, f.name)) for f in fields(config)}
    if isinstance(config, Mapping):
        return {key: plain(inner) for key, inner in config.items()}
    return [plain(inner) for inner in config] if isinstance(config, list | tuple) else config
