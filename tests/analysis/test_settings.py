"""Which runs belong together, and what a setting is called."""

import time
from typing import Any

import pytest

from attnscale.analysis.settings import MISSING, is_number, make_grid, short, varying


def labels(runs: Any) -> list[str]:
    return [setting.label for setting in make_grid(runs).settings]


def test_everything_that_varies_but_the_seed_makes_a_setting(plant: Any) -> None:
    runs = [
        plant.run(f"scale={scale} d_k={size} model.dropout=0.1", seed)
        for seed in range(3)
        for scale in ("sqrt", "none")
        for size in (8, 64)
    ]
    grid = make_grid(runs)
    assert grid.keys == ("attention.scale", "model.d_k")
    assert [s.label for s in grid.settings] == [
        "scale=none d_k=8",
        "scale=none d_k=64",
        "scale=sqrt d_k=8",
        "scale=sqrt d_k=64",
    ]
    for setting in grid.settings:
        assert sorted(run.seed for run in setting.runs) == [0, 1, 2]
        assert {run.parameters["attention.scale"] for run in setting.runs} == {
            setting.values["attention.scale"]
        }
    assert (grid.together, grid.missing) == ({}, ())


def test_what_says_nothing_of_the_model_makes_no_setting(plant: Any) -> None:
    runs = [
        plant.run(
            "scale=sqrt",
            seed,
            folder=f"/out/{seed}",
            checkpoint=f"c{seed}",
            threads=str(seed),
            allocator=f"a{seed}",
            data__seed=str(seed),
            tracking__run_name=f"r{seed}",
            tags__note=f"n{seed}",
            callbacks__every=str(seed),
            trainer__default_root_dir=f"d{seed}",
            trainer__logger__x=f"l{seed}",
        )
        for seed in range(2)
    ]
    assert varying(runs) == []
    assert labels(runs) == ["all runs"]
    # Near names are not noise.
    runs.append(plant.run("scale=sqrt", 2, trainer__precision="bf16", seedling="1"))
    assert varying(runs) == ["seedling", "trainer.precision"]


def test_the_fewest_keys_tell_settings_apart_and_the_rest_goes_with_them(plant: Any) -> None:
    # d_v follows d_k: one of the two names a setting.
    runs = [
        plant.run(f"scale={scale} d_k={size} model.d_v={size}", seed)
        for scale in ("sqrt", "none")
        for size in (8, 64)
        for seed in (0, 1)
    ]
    grid = make_grid(runs)
    assert grid.keys == ("attention.scale", "model.d_k")
    assert grid.together == {"model.d_k": ["model.d_v"]}
    # Where d_v has a value of its own, it does not.
    runs.append(plant.run("scale=sqrt d_k=8 model.d_v=16"))
    grid = make_grid(runs)
    assert grid.keys == ("attention.scale", "model.d_k", "model.d_v")
    assert grid.together == {}


def test_another_model_is_one_key_with_dozens_behind_it(plant: Any) -> None:
    classes = ("attnscale.model.autoencoder.Autoencoder", "attnscale.model.transformer.Transformer")
    runs = []
    for index, name in enumerate(classes):
        more = {f"model.option_{i}": f"{index}" for i in range(30)}
        only = {"data.dir": "x"} if index else {}
        for scale in ("sqrt", "none"):
            words = " ".join(
                f"{k}={v}" for k, v in {"model._target_": name, **more, **only}.items()
            )
            runs.append(plant.run(f"scale={scale} {words}"))
    grid = make_grid(runs)
    assert grid.keys == ("attention.scale", "model._target_")
    assert len(grid.settings) == 4
    assert grid.settings[0].label == "scale=none model=Autoencoder"
    assert len(grid.together["model._target_"]) == 31
    assert "data.dir" in grid.together["model._target_"]
    assert grid.missing == ()


def test_cells_without_a_run_are_named(plant: Any) -> None:
    runs = [plant.run(f"scale={s} d_k={d}") for s, d in (("sqrt", 8), ("sqrt", 64), ("none", 8))]
    grid = make_grid(runs)
    assert grid.missing == ("scale=none d_k=64",)
    # A failed run is a run.
    runs.append(plant.run("scale=none d_k=64", loss=None, outcome="failed"))
    assert make_grid(runs).missing == ()


def test_a_parameter_that_some_runs_lack(plant: Any) -> None:
    runs = [plant.run("scale=sqrt"), plant.run("scale=sqrt extra.a=1")]
    assert labels(runs) == ["a=1", f"a={MISSING}"]


def test_numbers_are_sorted_as_numbers_before_words(plant: Any) -> None:
    runs = [plant.run(f"lr={lr}") for lr in ("1e-3", "0.01", "2e-4", "null", "10")]
    assert labels(runs) == ["lr=2e-4", "lr=1e-3", "lr=0.01", "lr=10", "lr=null"]
    runs = [plant.run(f"scale={scale}") for scale in ("sqrt", "0.125", "none", "0.5")]
    assert labels(runs) == ["scale=0.125", "scale=0.5", "scale=none", "scale=sqrt"]


def test_keys_that_hold_numbers(plant: Any) -> None:
    runs = [plant.run(f"scale={s} d_k={d}") for s in ("sqrt", "0.5") for d in (8, 64)]
    assert make_grid(runs).numbers() == ["model.d_k"]
    assert make_grid([]).numbers() == []
    # An infinity has no place on an axis.
    runs = [plant.run(f"trainer.clip={clip}") for clip in ("1.0", "inf")]
    assert make_grid(runs).numbers() == []
    assert [is_number(t) for t in ("1e-3", "-2", "none", "nan", "", "–")] == [
        *(True, True),
        *(False, False, False, False),
    ]


def test_a_fold_is_a_setting_of_its_own(plant: Any) -> None:
    # Folds are not averaged as seeds are: each fold is another task.
    runs = [
        plant.run(f"scale={scale} data.fold={fold}", seed)
        for scale in ("sqrt", "none")
        for fold in range(3)
        for seed in (0, 1)
    ]
    grid = make_grid(runs)
    assert grid.keys == ("attention.scale", "data.fold")
    assert [s.label for s in grid.settings][:2] == ["scale=none fold=0", "scale=none fold=1"]
    assert {len(s.runs) for s in grid.settings} == {2}


def test_losses_by_seed_and_their_mean(plant: Any) -> None:
    runs = [
        *plant.runs({"": {3: 0.25, 5: 0.75}}),
        plant.run(seed=7, loss=0.1, outcome="diverged"),
        plant.run(seed=8, loss=None, outcome="failed"),
        plant.run(seed=9, loss=0.2, outcome="running"),
    ]
    (setting,) = make_grid(runs).settings
    assert setting.losses == {(3, -1): 0.25, (5, -1): 0.75}
    found = setting.estimate("val/best_loss")
    assert found is not None
    assert (found.value, found.n) == (0.5, 2)
    assert setting.estimate("never") is None
    states = ("finished", "diverged", "failed", "killed", "running")
    assert [setting.count(state) for state in states] == [2, 1, 1, 0, 1]


@pytest.mark.parametrize("last", [0, 1])
def test_a_seed_that_was_tried_again_keeps_its_result(plant: Any, last: int) -> None:
    runs = [plant.run(seed=4, loss=0.5), plant.run(seed=4, loss=None, outcome="failed")]
    (setting,) = make_grid(runs if last else runs[::-1]).settings
    assert (setting.losses, setting.lost) == ({(4, -1): 0.5}, 0)


@pytest.mark.parametrize(
    ("states", "lost", "ended"),
    [
        (("finished", "finished"), 0, 2),
        (("finished", "failed"), 1, 2),
        (("finished", "diverged", "failed"), 2, 3),
        (("finished", "running", "killed"), 0, 1),
        (("running",), 0, 0),
    ],
)
def test_seeds_that_diverged_or_failed_are_lost(
    plant: Any, states: tuple[str, ...], lost: int, ended: int
) -> None:
    (setting,) = make_grid([plant.run(seed=i, outcome=s) for i, s in enumerate(states)]).settings
    assert (setting.lost, setting.ended) == (lost, ended)
    assert setting.share_lost == (lost / ended if ended else 0)


def test_a_replicate_is_a_pair_of_seeds_and_runs_that_repeat_it_are_averaged(plant: Any) -> None:
    runs = [
        plant.run("", 0, 0.1, data__seed="0", metrics={"test/loss": 1.0}),
        plant.run("", 0, 0.3, data__seed="1", metrics={"test/loss": 2.0}),
        plant.run("", 0, 0.5, data__seed="1", metrics={"test/loss": 5.0}),
        plant.run("", 0, None, data__seed="1", outcome="failed"),
    ]
    (setting,) = make_grid(runs).settings
    assert setting.losses == {(0, 0): 0.1, (0, 1): 0.4}
    assert setting.by_replicate("test/loss") == {(0, 0): 1.0, (0, 1): 3.5}
    found = setting.estimate("val/best_loss")
    assert found is not None
    assert (found.value, found.n, setting.duplicates) == (0.25, 2, 1)


def test_no_runs_are_no_settings() -> None:
    grid = make_grid([])
    assert (grid.keys, grid.settings, grid.together, grid.missing) == ((), (), {}, ())


def test_runs_that_are_no_grid_are_grouped_in_time(plant: Any) -> None:
    # Each run changes one more thing: the cells of such a "grid" are 2 to the power of 40.
    runs = [plant.run(" ".join(f"a.k{i:02}=1" for i in range(n))) for n in range(41)]
    began = time.perf_counter()
    grid = make_grid(runs)
    assert time.perf_counter() - began < 5
    assert len(grid.settings) == 41
    assert grid.missing == ()


def test_short_names() -> None:
    assert [short(k) for k in ("model.d_k", "seed", "model._target_")] == ["d_k", "seed", "model"]


def test_keys_that_end_alike_keep_their_whole_names(plant: Any) -> None:
    runs = [plant.run(f"model.dropout={a} data.dropout={b} d_k=8") for a in (0, 1) for b in (0, 1)]
    assert labels(runs[:3])[0] == "data.dropout=0 model.dropout=0"
    assert make_grid(runs[:3]).missing == ("data.dropout=1 model.dropout=1",)
