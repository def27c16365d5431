"""What earlier versions named otherwise, so that their checkpoints and stores can still be used.

One table. A checkpoint is brought up to date where it is loaded, a run where it is read.
"""

import copy
import re
from collections.abc import Mapping
from typing import Any, NamedTuple


class Renamed(NamedTuple):
    """One kind of name, as a regular expression, and what replaces it."""

    old: str
    new: str


TENSORS = (
    Renamed(r"(?<!\.scale)\.(running_mean|running_variance)$", r".scale.\1"),
    Renamed(r"\b(self|cross|feed_forward)_around\.norm\.", r"\1_residual.norm."),
    Renamed(r"\b(layers\.\d+\.(?:attention|feed_forward))_norm\.", r"\1_residual.norm."),
)
"""Keys of a state dict: buffers of ``score_batchnorm`` belong to the scale, not the attention; a
LayerNorm belongs to the residual connection of its sublayer."""

KEYS = (
    Renamed(r"^callbacks\.temperatures(?=\.|$)", "callbacks.learned_scales"),
    Renamed(r"^(callbacks\.watchdog)\.least_(entropy_norm|live_rows)$", r"\1.min_\2"),
    Renamed(r"^(callbacks\.watchdog)\.(largest|max)_logit$", r"\1.max_logit_gap"),
)
"""Dotted keys of the configuration."""

TARGETS = (
    Renamed(
        r"^attnscale\.callbacks\.temperatures\.Temperatures$",
        "attnscale.callbacks.learned_scales.LearnedScales",
    ),
)
"""Values of ``_target_``."""

METRICS = (Renamed(r"^(attention/.+)/temperature$", r"\1/learned_scale"),)
"""Metrics: what multiplies the logits is no temperature, which divides them."""


def renamed(name: str, table: tuple[Renamed, ...]) -> str:
    """Return today's name."""
    for row in table:
        name = re.sub(row.old, row.new, name)
    return name


def earlier_metrics(name: str) -> list[str]:
    """Return the names under which earlier versions recorded a metric."""
    earlier = [re.sub(r"/learned_scale$", "/temperature", name)]
    return [old for old in earlier if old != name and renamed(old, METRICS) == name]


def _updated(node: Any, path: str) -> Any:
    if isinstance(node, list):
        return [_updated(entry, path) for entry in node]
    if not isinstance(node, Mapping):
        last = path.rpartition(".")[2]
        return renamed(node, TARGETS) if last == "_target_" and isinstance(node, str) else node
    updated = {}
    for key, value in node.items():
        parent = f"{path}." if path else ""
        today = renamed(f"{parent}{key}", KEYS)
        updated[today.removeprefix(parent)] = _updated(value, today)
    return updated


def updated_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with today's keys and targets; the old one stays as it is."""
    return dict(_updated(copy.deepcopy(dict(config)), ""))


def update_checkpoint(checkpoint: dict[str, Any]) -> None:
    """Give a checkpoint today's names, in place: its tensors and the configuration it carries."""
    tensors = checkpoint["state_dict"]
    # In place: a state dict is more than its entries.
    for key in list(tensors):
        today = renamed(key, TENSORS)
        if today != key:
            tensors[today] = tensors.pop(key)
    carried = checkpoint["attnscale"]
    checkpoint["attnscale"] = {**carried, "config": updated_config(carried["config"])}
