"""How settings of transformers become cases, for each way that a model computes its attention."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from tests.doctor_zoo.case import Batch, Case

D_MODEL, N_HEADS, D_K, N = 60, 5, 12, 14
"""Sizes without coincidences, so that no scale could be another's."""
SQRT = D_K**-0.5

EAGER = ("eager",)

ENCODER = {
    "hidden_size": D_MODEL,
    "num_attention_heads": N_HEADS,
    "num_hidden_layers": 2,
    "intermediate_size": 40,
    "vocab_size": 99,
    "pad_token_id": 0,
}


def tokens(n: int = N) -> Tensor:
    return torch.randint(2, 99, (2, n))


def text() -> Batch:
    return {"input_ids": tokens()}


def settings(
    model_type: str,
    values: dict[str, Any],
    *scales: float,
    batch: Callable[[], Batch] = text,
    ways: tuple[str, ...] = ("eager", "sdpa"),
    hidden: tuple[str, ...] = (),
    origins: tuple[str, str] | None = None,
    further: tuple[float, ...] = (),
) -> list[Any]:
    """Return a case for each way that a model offers to compute its attention."""

    def case(way: str) -> Case:
        def build() -> tuple[nn.Module, Batch]:
            config = AutoConfig.for_model(model_type, **values)
            return AutoModel.from_config(config, attn_implementation=way), batch()

        return Case(build, scales, hidden, origins, further)

    return [(case(way), way) for way in ways]


def each_way(cases: Mapping[str, list[Any]]) -> list[Any]:
    """Return the cases as a test's parameters."""
    return [
        pytest.param(case, id=f"{name}, {way}")
        for name, ways in cases.items()
        for case, way in ways
    ]
