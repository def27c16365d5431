"""What makes a comparison doubtful is said in words."""

from collections.abc import Mapping
from typing import Any

import pytest

from attnscale.analysis.settings import make_grid
from attnscale.report.provenance import confounds, table, warnings

STEPS = "progress/steps"


def test_runs_of_one_making_have_no_warning(plant: Any) -> None:
    tags = {"git.commit": "a" * 40, "git.dirty": "false", "host": "h", "device": "cpu"}
    runs = [
        plant.run(
            f"scale={s} data.source=de", tags=tags, metrics={STEPS: 40.0, "model/parameters": 9}
        )
        for s in ("sqrt", "none")
    ]
    grid = make_grid(runs)
    assert warnings(grid) == []
    assert confounds(grid) == []


@pytest.mark.parametrize(
    ("name", "values", "sentence"),
    [
        ("git.commit", ("a" * 40, "b" * 40), "Runs of 2 commits: aaaaaaaaaa, bbbbbbbbbb."),
        ("git.dirty", ("true", "false"), "1 of 2 runs were made with uncommitted changes."),
        ("git.dirty", ("true", "true"), "2 of 2 runs were made with uncommitted changes."),
        ("version.torch", ("2.6", "2.13"), "Runs differ in their torch: 2.13, 2.6."),
        ("device", ("cpu", "H200"), "Runs differ in their device: H200, cpu."),
        ("host", ("x", "y"), "Runs differ in their machine: x, y."),
        ("resumed_from", ("last.ckpt", None), "1 runs were resumed from a checkpoint."),
    ],
)
def test_runs_that_were_made_differently(
    plant: Any, name: str, values: tuple[str | None, ...], sentence: str
) -> None:
    runs = [
        plant.run(f"scale={scale}", tags={} if value is None else {name: value})
        for scale, value in zip(("sqrt", "none"), values, strict=True)
    ]
    assert warnings(make_grid(runs)) == [sentence]


@pytest.mark.parametrize(
    "key", ["data._target_", "data.dir", "data.source", "data.target", "data.n_train"]
)
def test_other_data_is_a_warning_unless_it_was_what_was_varied(plant: Any, key: str) -> None:
    together = [plant.run(f"scale={s} {key}={v}") for s, v in (("sqrt", "x"), ("none", "y"))]
    assert warnings(make_grid(together)) == [f"Runs differ in their data, {key}: x, y."]
    varied = [plant.run(f"scale=sqrt {key}={value}") for value in ("x", "y")]
    assert warnings(make_grid(varied)) == []


def steps(plant: Any, given: Mapping[str, float | None], outcome: str = "finished") -> list[str]:
    runs = [
        plant.run(f"scale={s}", metrics={} if n is None else {STEPS: n}, outcome=outcome)
        for s, n in given.items()
    ]
    return warnings(make_grid(runs))


def test_unequal_lengths(plant: Any) -> None:
    expected = ["Runs differ in their optimizer steps: 40 to 1000."]
    assert steps(plant, {"sqrt": 1000.0, "none": 40.0, "cosine": 50.0}) == expected
    assert steps(plant, {"sqrt": 40.0, "none": 40.0, "cosine": None}) == []
    # One that was stopped is not finished, which is said elsewhere.
    assert steps(plant, {"sqrt": 40.0, "none": 7.0}, outcome="killed") == []


def test_what_changes_together(plant: Any) -> None:
    runs = [
        plant.run(
            f"scale=sqrt d_k={size} model.d_v={size} model.d_model={2 * size}",
            metrics={"model/parameters": 1000.0 * size},
        )
        for size in (8, 64)
    ]
    assert confounds(make_grid(runs)) == [
        "d_k changes together with model.d_model, model.d_v.",
        "The number of parameters differs: 8,000 to 64,000.",
        "The width d_model differs: 128, 16.",
    ]


@pytest.mark.parametrize("d_v", ["null", "None", None])
def test_d_v_that_follows_d_k_by_default(plant: Any, d_v: str | None) -> None:
    more = {} if d_v is None else {"model__d_v": d_v}
    runs = [plant.run(f"d_k={size}", **more) for size in (8, 64)]
    (sentence,) = confounds(make_grid(runs))
    assert sentence.startswith("d_k varies and d_v follows it")
    # Where d_k is one size there is nothing to follow.
    assert confounds(make_grid([plant.run(f"scale={s}", **more) for s in ("sqrt", "none")])) == []


def test_the_table_of_facts(plant: Any) -> None:
    runs = [
        plant.run(
            f"scale=sqrt data.source={'de' if i % 2 else 'en'}",
            i,
            tags={"host": f"host{i}", "sweep": "night", "git.commit": "c0ffee"},
        )
        for i in range(6)
    ]
    columns, rows = table(make_grid(runs))
    assert columns == ["fact", "value"]
    assert rows == [
        ["git.commit", "c0ffee"],
        ["host", "host0\nhost1\nhost2\nhost3 (and 2 more)"],
        ["data.source", "de, en"],
        ["sweep", "night"],
        ["runs", "6"],
    ]
    assert table(make_grid([]))[1] == [["sweep", "none"], ["runs", "0"]]
    assert warnings(make_grid([])) == confounds(make_grid([])) == []
