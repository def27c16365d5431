"""What earlier versions named otherwise, so that their checkpoints and stores can still be used.

One table. A checkpoint is brought up to date where it is loaded, a run where it is read.
"""

import re
from collections.abc import Mapping
from typing import Any

Table = Mapping[str, str]
"""Names as regular expressions, and what replaces them."""

TENSORS: Table = {
    r"(?<!\.scale)\.(running_mean|running_variance)$": r".scale.\1",
    r"\b(self|cross|feed_forward)_around\.norm\.": r"\1_residual.norm.",
    r"\b(layers\.\d+\.(?:attention|feed_forward))_norm\.": r"\1_residual.norm.",
}
"""Keys of a state dict: buffers of ``score_batchnorm`` belong to the scale, not the attention; a
LayerNorm belongs to the residual connection of its sublayer."""

KEYS: Table = {
    r"^callbacks\.temperatures(?=\.|$)": "callbacks.learned_scales",
    r"^(callbacks\.watchdog)\.least_(entropy_norm|live_rows)$": r"\1.min_\2",
    r"^(callbacks\.watchdog)\.(largest|max)_logit$": r"\1.max_logit_gap",
}
"""Dotted keys of the configuration."""

TARGETS: Table = {
    r"^attnscale\.callbacks\.temperatures\.Temperatures$": (
        "attnscale.callbacks.learned_scales.LearnedScales"
    ),
}
"""Values of ``_target_``."""

ADDED: dict[str, Any] = {
    "budget": None,
    "margin": {"relative": 0.0, "absolute": 0.0},
    "resume": None,
    "trust": False,
}
"""Sections of the configuration that there were not, with values that change nothing."""

METRICS: Table = {r"^(attention/.+)/temperature$": r"\1/learned_scale"}
"""Metrics: what multiplies the logits is no temperature, which divides them."""


def renamed(name: str, table: Table) -> str:
    """Return today's name."""
    for old, new in table.items():
        name = re.sub(old, new, name)
    return name


def earlier_metrics(name: str) -> list[str]:
    """Return the names under which earlier versions recorded a metric."""
    old = re.sub(r"/learned_scale$", "/temperature", name)
    return [old] if old != name and renamed(old, METRICS) == name else []


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
    return dict(_updated(config, ""))


def update_checkpoint(checkpoint: dict[str, Any]) -> None:
    """Give a checkpoint today's names and sections, in place: tensors and configuration."""
    tensors = checkpoint["state_dict"]
    # In place: a state dict is more than its entries.
    for key in list(tensors):
        today = renamed(key, TENSORS)
        if today != key:
            tensors[today] = tensors.pop(key)
    carried = checkpoint["attnscale"]
    config = ADDED | updated_config(carried["config"])
    attention = config.get("attention", {})
    if attention.get("scale") == "nap" and not any(".output_norm." in key for key in tensors):
        attention["options"].setdefault("nap", {})["output_norm"] = 0.0  # there was none
    checkpoint["attnscale"] = {**carried, "config": config}
