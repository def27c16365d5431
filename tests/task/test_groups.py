"""What an optimizer is given: which parameters in which group, with which numbers."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from attnscale.attention import SCALES, MultiHeadAttention, attentions, choose_scale
from attnscale.model.sigma_reparam import reparametrise
from attnscale.task.groups import adjust, kind_of, named_groups, parameter_groups
from tests.support import models

D_K = 16
C = D_K**-0.5
LR, EPS, DECAY = 0.5, 1e-3, 0.25
LEARNING = {
    *("learned", "learned_shared", "cosine", "qknorm", "qk_layernorm", "qk_rmsnorm", "ngpt"),
    *("score_layernorm", "score_batchnorm", "nap", "ssmax"),
}
"""The modes that learn something."""


def autoencoder(scale: str) -> nn.Module:
    return models.autoencoder(
        scale, d_k=D_K, n_heads=2, n_layers=2, residual=True, norm="pre", feed_forward=5, bias=True
    )


def transformer(scale: str) -> nn.Module:
    return models.transformer(scale, d_k=D_K, n_layers=1, positions="learned", tied=True)


@pytest.mark.parametrize("build", [autoencoder, transformer])
@pytest.mark.parametrize("scale", SCALES)
def test_every_parameter_is_in_one_group(scale: str, build: Any) -> None:
    model = build(scale)
    groups = parameter_groups(model)
    counts = Counter(id(p) for group in groups for p in group["params"])
    assert set(counts) == {id(p) for p in model.parameters()}
    assert set(counts.values()) == {1}
    torch.optim.AdamW(groups)  # which refuses a parameter that is in two groups


@pytest.mark.parametrize("build", [autoencoder, transformer])
@pytest.mark.parametrize("scale", SCALES)
def test_what_a_mode_learns_is_not_decayed(scale: str, build: Any) -> None:
    model = build(scale)
    optimizer = torch.optim.AdamW(parameter_groups(model), lr=LR, weight_decay=DECAY)
    learned = ("scale", "output_norm")
    free = {id(p) for name, p in model.named_parameters() if name.split(".")[-2] in learned}
    assert bool(free) == (scale in LEARNING)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            assert group["weight_decay"] == (0.0 if id(parameter) in free else DECAY)


@pytest.mark.parametrize("scale", ["sqrt", "learned"])
def test_the_norms_of_sigma_reparam_are_not_decayed(scale: str) -> None:
    model = transformer(scale)
    reparametrise(model, "all")
    optimizer = torch.optim.AdamW(parameter_groups(model), lr=LR, weight_decay=DECAY)
    decay = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    for name, parameter in model.named_parameters():
        free = name.endswith((".gamma", ".log_scale"))
        assert decay[id(parameter)] == (0.0 if free else DECAY), name
    assert sum(name.endswith(".gamma") for name, _ in model.named_parameters()) == 16


@pytest.mark.parametrize("scale", [name for name in SCALES if name != "none_equiv"])
def test_nothing_is_adjusted_without_factors(scale: str) -> None:
    optimizer = torch.optim.Adam(parameter_groups(autoencoder(scale)), lr=LR, eps=EPS)
    assert not adjust(optimizer)
    assert {(g["lr"], g["eps"]) for g in optimizer.param_groups} == {(LR, EPS)}


def adam(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups, lr=LR, eps=EPS, weight_decay=DECAY)


def adamw(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=LR, eps=EPS, weight_decay=DECAY)


def adam_decoupled(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups, lr=LR, eps=EPS, weight_decay=DECAY, decoupled_weight_decay=True)


def sgd(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=LR, momentum=0.9, weight_decay=DECAY)


@pytest.mark.parametrize("build", [autoencoder, transformer])
@pytest.mark.parametrize(
    ("make", "kind", "numbers"),
    [
        (adam, "adam", {"lr": LR * C, "eps": EPS / C, "weight_decay": DECAY / C**2}),
        (adamw, "adamw", {"lr": LR * C, "eps": EPS / C, "weight_decay": DECAY / C}),
        (adam_decoupled, "adamw", {"lr": LR * C, "eps": EPS / C, "weight_decay": DECAY / C}),
        (sgd, "sgd", {"lr": LR * C**2, "weight_decay": DECAY / C**2}),
    ],
)
def test_the_control_has_its_own_numbers(
    build: Any, make: Any, kind: str, numbers: dict[str, float]
) -> None:
    model = build("none_equiv")
    optimizer = make(parameter_groups(model))
    assert kind_of(optimizer) == kind
    assert adjust(optimizer)
    queries = {id(p) for attention in attentions(model).values() for p in attention.q.parameters()}
    usual = {name: {"lr": LR, "eps": EPS, "weight_decay": DECAY}[name] for name in numbers}
    seen = 0
    for group in optimizer.param_groups:
        mine = [id(p) in queries for p in group["params"]]
        assert all(mine) or not any(mine)
        wanted = numbers if all(mine) else usual
        assert {name: group[name] for name in numbers} == pytest.approx(wanted, rel=1e-12)
        seen += sum(mine)
        # What is left is what the optimizer itself would have: it goes into checkpoints.
        assert not any(isinstance(v, nn.Module) for v in group.values())
    assert seen == len(queries) == 2 * len(attentions(model))
    assert not adjust(optimizer), "the factors were applied twice"


def test_each_attention_has_the_factors_of_its_own_size() -> None:
    model = nn.ModuleDict(
        {
            str(d_k): MultiHeadAttention(
                d_model=7, n_heads=1, d_k=d_k, d_v=3, scale="none_equiv", bias=True
            )
            for d_k in (4, 9)
        }
    )
    optimizer = adam(parameter_groups(model))
    adjust(optimizer)
    rates = {id(p): g["lr"] for g in optimizer.param_groups for p in g["params"]}
    for d_k in (4, 9):
        for parameter in attentions(model)[str(d_k)].q.parameters():
            assert rates[id(parameter)] == pytest.approx(LR * d_k**-0.5)


@pytest.mark.parametrize(
    "kind", [torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.NAdam, torch.optim.Adamax]
)
def test_the_control_refuses_other_optimizers(kind: Any) -> None:
    optimizer = kind(parameter_groups(autoencoder("none_equiv")), lr=LR)
    assert kind_of(optimizer) == kind.__name__
    with pytest.raises(
        ValueError,
        match=rf"attention\.scale=none_equiv: .*'{kind.__name__}'; allowed are adam, adamw and sgd",
    ):
        adjust(optimizer)
    assert not adjust(kind(parameter_groups(autoencoder("learned")), lr=LR))


def test_a_scale_of_two_attentions_is_in_one_group_once() -> None:
    sizes: dict[str, Any] = {"d_model": 7, "n_heads": 2, "d_k": 4, "d_v": 3}
    scale = choose_scale("learned")(n_heads=2, d_k=4)
    model = nn.ModuleList(MultiHeadAttention(scale=scale, **sizes) for _ in range(2))
    groups = parameter_groups(model)
    assert [[id(p) for p in g["params"]].count(id(scale.log_scale)) for g in groups] == [0, 1]
    torch.optim.AdamW(groups)
    control = choose_scale("none_equiv")(n_heads=2, d_k=4)
    model = nn.ModuleList(MultiHeadAttention(scale=control, **sizes) for _ in range(2))
    optimizer = adam(parameter_groups(model))
    assert adjust(optimizer)
    assert [g["lr"] for g in optimizer.param_groups] == [LR, LR / 2, LR / 2]


def test_groups_have_the_names_of_metrics() -> None:
    model = autoencoder("learned")
    names = ["total", "q", "k", "v", "o"]
    paths = list(attentions(model))
    own = [f"{path}/{name}" for path in paths for name in names[1:]]
    assert list(named_groups(model, per_attention=False)) == names
    groups = named_groups(model, per_attention=True)
    assert list(groups) == [*names, *own]
    assert [id(p) for p in groups["total"]] == [id(p) for p in model.parameters()]
    for name in names[1:]:
        parts = [p for path in paths for p in groups[f"{path}/{name}"]]
        layers = [getattr(attention, name) for attention in attentions(model).values()]
        assert [id(p) for p in groups[name]] == [id(p) for p in parts]
        assert [id(p) for p in parts] == [id(p) for layer in layers for p in layer.parameters()]


def test_groups_hold_what_trains() -> None:
    model = autoencoder("sqrt")
    path, attention = next(iter(attentions(model).items()))
    attention.q.weight.requires_grad_(False)
    groups = named_groups(model, per_attention=True)
    for name in ("total", "q", f"{path}/q"):
        assert all(p is not attention.q.weight for p in groups[name]), name
    assert [id(p) for p in groups[f"{path}/q"]] == [id(attention.q.bias)]


def test_one_attention_has_no_groups_of_its_own() -> None:
    model = MultiHeadAttention(d_model=7, n_heads=1, d_k=4, d_v=3, scale="sqrt")
    assert list(named_groups(model, per_attention=True)) == ["total", "q", "k", "v", "o"]
