"""What a run needs of its machine, by its configuration alone."""

from typing import Any

import pytest

from attnscale.config.choice_schema import TrainerConfig
from attnscale.config.schema import TrainConfig
from attnscale.config.section import ModelNode
from attnscale.experiment.demand import Demand, demand, layer_weights, threads_for

WIDE = {"d_model": 512, "n_heads": 8, "d_k": 64, "d_v": 64, "feed_forward": 2048, "n_layers": 6}


def node(**values: Any) -> ModelNode:
    return ModelNode({"_target_": "mine.Model", **values})


def of(
    *,
    cores: int = 16,
    n_gpus: int = 0,
    threads: int | None = None,
    model: Any = WIDE,
    **trainer: Any,
) -> Demand:
    config = object.__new__(TrainConfig)
    config.trainer = object.__new__(TrainerConfig)
    given = {"accelerator": "cpu", "devices": 1, "max_epochs": 10} | trainer
    for key, value in given.items():
        setattr(config.trainer, key, value)
    config.model, config.threads = node(**model), threads
    return demand(config, cores=cores, n_gpus=n_gpus)


def test_the_weights_of_layers_are_those_of_their_matrices() -> None:
    # Vaswani et al. 2017, base: a layer has 4 · 512² in its attention and 2 · 512 · 2048 beside it.
    assert layer_weights(node(**WIDE)) == 6 * (4 * 512**2 + 2 * 512 * 2048) == 18_874_368
    assert layer_weights(node(d_model=10, n_heads=2, d_k=3, d_v=5, n_layers=1)) == 2 * 10 * 2 * 8


@pytest.mark.parametrize(
    ("feed_forward", "cores", "threads"),
    [
        # Two matrices of 2^10 × feed_forward: 2^20, 2^22, 2^24 weights are the edges.
        (511, 16, 1),
        (512, 16, 2),
        (2047, 16, 2),
        (2048, 16, 4),
        (8191, 16, 4),
        (8192, 16, 8),
        (1 << 20, 64, 8),
        (1 << 20, 3, 3),
        (1 << 20, 1, 1),
    ],
)
def test_threads_follow_the_model_s_size_and_the_cores(
    feed_forward: int, cores: int, threads: int
) -> None:
    assert threads_for(node(d_model=1024, feed_forward=feed_forward), cores) == threads


def test_a_model_of_one_s_own_without_these_keys_has_one_thread() -> None:
    assert layer_weights(node(width=3)) == 0
    assert threads_for(node(width=3), 64) == 1
    assert of(model={"width": 3}) == Demand(threads=1, processes=1, gpus=0, work=10.0)


def test_threads_that_are_given_are_kept() -> None:
    assert of(threads=5).threads == 5


@pytest.mark.parametrize(
    ("trainer", "n_gpus", "processes", "gpus"),
    [
        ({}, 4, 1, 0),
        ({"devices": 3}, 4, 3, 0),
        ({"devices": "2"}, 0, 2, 0),
        ({"devices": "auto"}, 4, 1, 0),
        ({"accelerator": "gpu"}, 4, 1, 1),
        ({"accelerator": "cuda", "devices": 2}, 4, 2, 2),
        ({"accelerator": "gpu", "devices": [1, 3]}, 4, 2, 2),
        ({"accelerator": "gpu", "devices": -1}, 4, 4, None),
        ({"accelerator": "auto"}, 0, 1, 0),
        ({"accelerator": "auto"}, 2, 1, 1),
        ({"accelerator": "auto", "devices": "auto"}, 2, 2, None),
    ],
)
def test_a_run_of_several_processes_counts_with_all(
    trainer: dict[str, Any], n_gpus: int, processes: int, gpus: int | None
) -> None:
    need = of(n_gpus=n_gpus, **trainer)
    assert (need.processes, need.gpus) == (processes, gpus)


def test_work_grows_with_epochs_and_size() -> None:
    assert of(max_epochs=20).work == 2 * of().work
    assert of(model=WIDE | {"n_layers": 12}).work == 2 * of().work
    assert of(max_epochs=-1).work == of(max_epochs=None).work == of(max_epochs=1).work
