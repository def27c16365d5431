"""Which recorded sweep a claim is judged by: whole, unchanged, of the largest budget."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from attnscale.claims.sweeps import recorded_sweep
from attnscale.tracking.history import History, RecordedSweep
from attnscale.tracking.runs import Run
from tests.support.runs import Plant

NAME = "experiment=claim_width"


class Sweeps(History):
    """Planted sweeps, newest first."""

    def __init__(self, sweeps: Sequence[tuple[RecordedSweep, Sequence[Run]]]) -> None:
        self.planted = sweeps

    def sweeps_of(self, override: str) -> list[RecordedSweep]:
        return [sweep for sweep, _ in self.planted if override in sweep.overrides]

    def jobs_of(self, sweep: RecordedSweep) -> list[Run]:
        return [run for one, runs in self.planted if one is sweep for run in runs]


def sweep(
    overrides: str = NAME, outcomes: str = "ff", *, jobs: int = 2, budget: str = ""
) -> tuple[RecordedSweep, list[Run]]:
    """Return a sweep whose jobs finished (f), diverged (d), failed (x) or were killed (k)."""
    names = {"f": "finished", "d": "diverged", "x": "failed", "k": "killed"}
    plant = Plant()
    runs = [
        plant.run(
            seed=job,
            loss=0.5 if letter == "f" else None,
            outcome=names[letter],
            tags={"job": str(job)},
            budget=budget,
        )
        for job, letter in enumerate(outcomes)
    ]
    return RecordedSweep("a", tuple(overrides.split()), jobs), runs


def test_the_newest_whole_sweep_is_taken_and_a_smoke_test_is_not() -> None:
    smoke = sweep(f"{NAME} trainer.max_epochs=1 seed=0")
    newest, older = sweep(), sweep()
    recorded = recorded_sweep(Sweeps([smoke, newest, older]), "claim_width")
    assert recorded.runs == newest[1]
    only = recorded_sweep(Sweeps([smoke]), "claim_width")
    assert only.runs == ()
    assert only.refused == "a sweep with trainer.max_epochs=1 seed=0 is another experiment"
    assert recorded_sweep(Sweeps([]), "claim_width").refused == ""


@pytest.mark.parametrize("override", ["budget=night", "tracking.uri=x", "hydra.verbose=true"])
def test_what_leaves_an_experiment_what_it_is(override: str) -> None:
    one = sweep(f"{override} {NAME}")
    assert recorded_sweep(Sweeps([one]), "claim_width").runs == one[1]


@pytest.mark.parametrize(
    ("outcomes", "jobs", "remarks", "refused"),
    [
        ("ffxf", 4, "1 of 4 jobs failed", ""),
        # A diverged run is a result.
        ("ffdf", 4, "", ""),
        ("fff", 4, "", "3 of 4 jobs ended"),
        ("ffkf", 4, "", "3 of 4 jobs ended"),
        # Where their number was not recorded, the last job counts them.
        ("ffkf", 0, "", "3 of 4 jobs ended"),
        ("ffff", 0, "", ""),
        ("", 0, "", "0 of 1 jobs ended"),
    ],
)
def test_a_failed_job_is_told_and_a_missing_one_makes_it_no_whole(
    outcomes: str, jobs: int, remarks: str, refused: str
) -> None:
    recorded = recorded_sweep(Sweeps([sweep(outcomes=outcomes, jobs=jobs)]), "claim_width")
    assert (recorded.remarks, recorded.refused) == (remarks, refused)
    assert len(recorded.runs) == (0 if refused else len(outcomes))


def test_the_largest_budget_is_taken_and_told() -> None:
    laptop, night = sweep(budget="laptop"), sweep(budget="night")
    recorded = recorded_sweep(Sweeps([laptop, night, sweep(budget="night")]), "claim_width")
    assert recorded.runs == night[1]
    assert recorded.remarks == "night budget"
    failed = replace(recorded, runs=sweep(outcomes="xf", budget="laptop")[1])
    assert failed.remarks == "laptop budget, 1 of 2 jobs failed"
