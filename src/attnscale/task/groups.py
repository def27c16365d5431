"""Which parameters an optimizer steps how, as the scale modes say.

Three kinds: what a mode or σReparam learns (no weight decay); W_q and its bias where the mode has
factors for their optimizer; and everything else.
"""

from typing import Any

import torch
from torch import nn

from attnscale.attention import MultiHeadAttention, attentions
from attnscale.model.sigma_reparam import SigmaReparam

FACTORS = "attnscale_factors_of"
"""Key of a group that still waits for its factors: they depend on the optimizer's kind."""

PROJECTIONS = ("q", "k", "v", "o")


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Return the optimizer's groups; those of W_q carry their attention until :func:`adjust`."""
    modules = list(attentions(model).values())
    owners = [owner for attention in modules for owner in (attention.scale, attention.output_norm)]
    owners += [module for module in model.modules() if isinstance(module, SigmaReparam)]
    # A scale may be shared by several attentions.
    learned = {id(p): p for owner in owners if owner is not None for p in owner.parameters()}
    free = list(learned.values())
    queries = [
        (attention, list(attention.q.parameters()))
        for attention in modules
        if attention.scale.adjusts_optimizer
    ]
    special = set(learned) | {id(p) for _, ps in queries for p in ps}
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if id(p) not in special]}
    ]
    if free:
        groups.append({"params": free, "weight_decay": 0.0})
    groups += [{"params": parameters, FACTORS: attention} for attention, parameters in queries]
    return groups


def named_groups(model: nn.Module, *, per_attention: bool) -> dict[str, list[nn.Parameter]]:
    """Return the parameters that train under the names that metrics give their groups.

    Args:
        model: Any model.
        per_attention: Whether each of several attentions has groups of its own too.

    Returns:
        "total", all of them; "q", "k", "v" and "o", the projections of all attentions together;
        "<path>/q" and so on for one attention of several.
    """
    by_path = {path: attention.projections() for path, attention in attentions(model).items()}
    groups = {"total": list(model.parameters())}
    for name in PROJECTIONS:
        groups[name] = [p for projections in by_path.values() for p in projections[name]]
    if per_attention and len(by_path) > 1:
        for path, projections in by_path.items():
            groups |= {f"{path}/{name}": projections[name] for name in PROJECTIONS}
    return {name: [p for p in group if p.requires_grad] for name, group in groups.items()}


def kind_of(optimizer: torch.optim.Optimizer) -> str:
    """Return "adam", "adamw" or "sgd", or the class's name for any other optimizer."""
    # In newer versions of torch AdamW is an Adam whose groups say that decay is decoupled.
    decoupled = any(group.get("decoupled_weight_decay") for group in optimizer.param_groups)
    if isinstance(optimizer, torch.optim.AdamW) or (
        isinstance(optimizer, torch.optim.Adam) and decoupled
    ):
        return "adamw"
    kinds = {torch.optim.Adam: "adam", torch.optim.SGD: "sgd"}
    return kinds.get(type(optimizer), type(optimizer).__name__)


def adjust(optimizer: torch.optim.Optimizer) -> bool:
    """Multiply the numbers of the groups that have factors; return whether there was one.

    Raises:
        ValueError: If a mode has no factors for this optimizer.
    """
    kind, adjusted = kind_of(optimizer), False
    for group in optimizer.param_groups:
        attention = group.pop(FACTORS, None)
        if attention is None:
            continue
        assert isinstance(attention, MultiHeadAttention)
        factors = attention.scale.optimizer_factors(attention.d_k, kind)
        group["lr"] *= factors.lr
        group["weight_decay"] *= factors.weight_decay
        if "eps" in group:
            group["eps"] *= factors.eps
        adjusted = True
    return adjusted
