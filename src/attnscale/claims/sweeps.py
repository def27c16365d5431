"""Which recorded sweep a claim is judged by: its experiment, whole and unchanged."""

from collections.abc import Sequence
from dataclasses import dataclass

from attnscale.claims.list import CLAIMS
from attnscale.tracking.history import History, RecordedSweep
from attnscale.tracking.runs import Run
from attnscale.tracking.store import Store

BUDGETS = ("laptop", "night", "cluster")
"""From the smallest to the full design."""

HARMLESS = ("experiment=", "budget=", "tracking.", "hydra.")
"""Starts of the overrides that leave an experiment what it is."""


@dataclass(frozen=True)
class Recorded:
    """The sweep that an experiment is judged by.

    Attributes:
        runs: Its runs, those that failed too; none if there is no such sweep.
        refused: Why the newest other sweep of that name was not taken, or an empty text.
    """

    runs: Sequence[Run] = ()
    refused: str = ""

    @property
    def budget(self) -> str:
        """Parameter ``budget`` of its runs, or an empty text."""
        return next((run.parameters.get("budget", "") for run in self.runs), "")

    @property
    def remarks(self) -> str:
        """Its budget, and how many jobs failed."""
        failed = sum(run.outcome == "failed" for run in self.runs)
        said = [f"{self.budget} budget"] if self.budget else []
        said += [f"{failed} of {len(self.runs)} jobs failed"] if failed else []
        return ", ".join(said)


def _fault(sweep: RecordedSweep, runs: Sequence[Run]) -> str:
    """Say why a sweep is not its experiment, or return an empty text."""
    changed = [text for text in sweep.overrides if not text.startswith(HARMLESS)]
    if changed:
        return f"a sweep with {' '.join(changed)} is another experiment"
    ended = sum(run.ended for run in runs)
    jobs = sweep.jobs or 1 + max((int(run.tags.get("job", "0")) for run in runs), default=0)
    return f"{ended} of {jobs} jobs ended" if ended < jobs else ""


def recorded_sweep(history: History, experiment: str) -> Recorded:
    """Return the newest whole sweep of an experiment, of the largest budget.

    Args:
        history: The recorded runs.
        experiment: Name of a file in ``conf/experiment/``.
    """
    whole, refused = [], ""
    for sweep in history.sweeps_of(f"experiment={experiment}"):
        runs = history.jobs_of(sweep)
        fault = _fault(sweep, runs)
        if fault:
            refused = refused or fault
        else:
            whole.append(Recorded(runs))

    # Of equal ones max takes the first, which is the newest.
    def size(one: Recorded) -> int:
        return BUDGETS.index(one.budget) if one.budget in BUDGETS else len(BUDGETS)

    return max(whole, key=size, default=Recorded(refused=refused))


def recorded_sweeps(store: Store, group: str) -> dict[str, Recorded]:
    """Return the recorded sweeps of all claims, by experiment.

    Args:
        store: Where runs are recorded.
        group: MLflow's experiment.
    """
    history = History(store, group)
    names = dict.fromkeys(name for claim in CLAIMS for name in claim.experiments)
    return {name: recorded_sweep(history, name) for name in names}
