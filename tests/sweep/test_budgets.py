"""Experiments that have budgets: what each sweeps, and that it says how long that takes."""

import copy
import functools
from pathlib import Path

import numpy as np
import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from omegaconf import DictConfig

from attnscale.config.build import compose, project_root, register
from attnscale.config.hydra_section import check_hydra
from attnscale.data.toy_translation import ToyTranslation
from attnscale.sweep.forecast import duration, n_jobs
from attnscale.sweep.overrides import check, parse

CELLS = {
    "claim_alignment": (6, 12, 24),
    "claim_entropy": (2, 4, 10),
    "claim_entropy_held": (3, 7, 9),
    "claim_folding": (3, 9, 15),
    "claim_folding_sgd": (3, 9, 15),
    "claim_initialisation": (6, 18, 36),
    "claim_inverse": (3, 8, 12),
    "claim_learned_temperature": (3, 8, 8),
    "claim_length_law": (3, 3, 3),
    "claim_unit_variance": (6, 14, 16),
    "claim_unscaled_convergence": (3, 12, 25),
    "claim_unscaled_convergence_translation": (3, 8, 25),
    "claim_width": (6, 12, 24),
}
"""Settings without seed and rate under laptop, night and cluster."""

BUDGETS = {"laptop": (3, 3, 240.0), "night": (5, 7, 6 * 3600.0), "cluster": (10, 9, None)}
"""Seeds, rates, and the most seconds that all jobs may take."""


@functools.cache
def composed(*overrides: str) -> DictConfig:
    register()
    with initialize_config_dir(str(project_root() / "conf"), version_base="1.3"):
        return hydra_compose("train", [*overrides, "folder=here"], return_hydra_config=True)


def jobs_of(config: DictConfig) -> list[dict[str, str]]:
    overrides = [f"{key}={value}" for key, value in config.hydra.sweeper.params.items()]
    check(overrides, config)
    (jobs,) = BasicSweeper.split_arguments(parse(overrides), max_batch_size=None)
    assert n_jobs(config.hydra, overrides) == len(jobs)
    return [dict(override.split("=", 1) for override in job) for job in jobs]


def test_every_claim_that_is_trained_has_budgets() -> None:
    files = (project_root() / "conf" / "experiment").glob("claim_*.yaml")
    assert {file.stem for file in files} == set(CELLS)


@pytest.mark.parametrize(
    "budget", ["laptop", *(pytest.param(b, marks=pytest.mark.slow) for b in ("night", "cluster"))]
)
@pytest.mark.parametrize("name", CELLS)
def test_an_experiment_sweeps_what_its_budget_says(name: str, budget: str) -> None:
    config = composed(f"experiment={name}", f"budget={budget}")
    jobs = jobs_of(config)
    n_seeds, n_rates, limit = BUDGETS[budget]
    assert len({job["seed"] for job in jobs}) == n_seeds
    rates = [float(job["optimizer.lr"]) for job in jobs]
    assert len(set(rates)) == n_rates
    assert max(rates) / min(rates) >= (10 if budget == "laptop" else 999)
    assert len(jobs) == n_seeds * n_rates * CELLS[name][list(BUDGETS).index(budget)]
    assert config.threads == 1
    if limit is not None:
        assert len(jobs) * config.budgets[budget].seconds <= limit


def test_a_laptop_is_the_default_and_the_budget_is_recorded(tmp_path: Path) -> None:
    config = compose(["experiment=claim_folding_sgd"], folder=tmp_path)
    assert config.budget == "laptop"
    assert config == compose(["experiment=claim_folding_sgd", "budget=laptop"], folder=tmp_path)
    assert not hasattr(config, "budgets")


@pytest.mark.parametrize("name", ["claim_unscaled_convergence", "claim_unit_variance"])
@pytest.mark.parametrize("budget", BUDGETS)
def test_convergence_is_judged_beside_a_model_without_attention(name: str, budget: str) -> None:
    jobs = jobs_of(composed(f"experiment={name}", f"budget={budget}"))
    assert any(
        float(job["attention.scale"]) == 1e-20 for job in jobs if "e-" in job["attention.scale"]
    )


@pytest.mark.parametrize(
    ("design", "d_k", "n_heads"),
    [("product", 8, 8), ("product", 32, 2), ("heads", 8, 4), ("heads", 32, 4), ("one", 32, 1)],
)
def test_the_designs_of_width_hold_what_they_say(
    design: str, d_k: int, n_heads: int, tmp_path: Path
) -> None:
    overrides = ["experiment=claim_width", f"tags.design={design}", f"model.d_k={d_k}"]
    model = compose(overrides, folder=tmp_path).model
    assert (model["n_heads"], model["n_heads"] * model["d_v"]) == (n_heads, 64)


def test_factors_around_the_root_are_those_of_both_widths() -> None:
    jobs = jobs_of(composed("experiment=claim_unit_variance", "budget=night"))
    factors = {float(job["attention.scale"]) for job in jobs} - {1e-20}
    for d_k in (16, 256):
        assert {c / d_k**0.5 for c in (1 / 16, 1 / 4, 1, 4, 16)} <= factors


def test_the_base_of_the_length_law_is_the_mean_length_of_training(tmp_path: Path) -> None:
    config = compose(["experiment=claim_length_law", "data.n_train=6000"], folder=tmp_path)
    data = ToyTranslation(**config.data.without("_target_"))
    train, test = data.load("train"), data.load("test")
    source, target = train.source.lengths, train.target.lengths - 1
    # Rows of the encoder, of the decoder, and of the decoder over the source.
    rows = [np.repeat(source, source), np.repeat(source, target)]
    rows += [np.concatenate([np.arange(1, n + 1) for n in target])]
    base = np.exp(np.mean([np.log(n).mean() for n in rows]))
    options = config.attention.options
    assert options["log_n_base"]["base"] == pytest.approx(base, rel=0.01)
    assert options["ssmax"]["start"] == pytest.approx(1 / np.log(base), rel=0.01)
    # The full stop and END, a comma.
    assert target.max() == 8 + 2 <= source.max() <= 8 + 3
    assert test.target.lengths.max() > 21


@pytest.mark.parametrize(
    "overrides", [("budget=night",), ("experiment=scale_modes", "budget=laptop")]
)
def test_a_budget_without_an_experiment_that_has_them_is_refused(
    overrides: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(
        ValueError, match=r"budget=\w+: allowed with an experiment that has budgets: claim_a"
    ):
        compose(overrides, folder=tmp_path)
    config = composed(*overrides)
    with pytest.raises(ValueError, match="allowed with an experiment that has budgets"):
        check_hydra(config, len(config.hydra.overrides.task), ())


def test_an_experiment_without_its_budget_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="budget=None: this experiment has laptop, night, cluster"):
        compose(["experiment=claim_width", "~budget"], folder=tmp_path)


@pytest.mark.parametrize(
    ("overrides", "n"), [(["seed=0"], 9), (["seed=0", "optimizer.lr=1e-3,1e-2", "report=false"], 6)]
)
def test_jobs_are_counted_with_the_command_line(overrides: list[str], n: int) -> None:
    config = copy.deepcopy(composed("experiment=claim_length_law", "budget=laptop"))
    from_file = [f"{key}={value}" for key, value in config.hydra.sweeper.params.items()]
    assert n_jobs(config.hydra, [*from_file, *overrides]) == n
    config.hydra.sweeper._target_ = "somebodys.Sweeper"
    assert n_jobs(config.hydra, from_file) is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(41.7, "42 s"), (61, "1 min"), (210, "3.5 min"), (18720, "5.2 h")]
)
def test_a_duration_has_the_unit_of_its_size(seconds: float, text: str) -> None:
    assert duration(seconds) == text
