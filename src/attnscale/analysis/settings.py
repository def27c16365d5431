"""Which runs were asked for, and which belong together: what varies except the seeds, by itself.

A replicate of a setting is a pair of seeds: of the weights and of the data. Runs of one replicate
(the same sweep made twice, say) are averaged and counted.

Of the parameters that vary, those are kept that tell settings apart; one that always changes
together with others is left out of the name and listed as a confound.
"""

import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from attnscale.analysis.estimate import Estimate, estimate
from attnscale.tracking.history import History
from attnscale.tracking.runs import OBJECTIVE, Run
from attnscale.tracking.store import Store

SCALE, D_K, LR = "attention.scale", "model.d_k", "optimizer.lr"
FIRST = (SCALE, "model._target_", D_K, LR)
"""Parameters that name a setting before any other."""

NOISE = ("seed", "folder", "checkpoint", "threads", "allocator", "data.seed")
NOISE_PREFIXES = (
    "margin.",
    "tracking.",
    "tags.",
    "callbacks.",
    "trainer.default_root_dir",
    "trainer.logger",
)
MISSING = "–"
MAX_CELLS = 10_000
"""Combinations of values of which the missing ones are listed."""

Replicate = tuple[int, int]
"""Seed and seed of the data."""


def by_replicate(
    runs: Iterable[Run], metric: str | Callable[[Run], float | None]
) -> dict[Replicate, float]:
    """Return replicate -> mean of a figure over its runs that finished, in order of the seeds.

    Args:
        runs: Runs of one setting.
        metric: A metric, of which the last value counts, or a function of a finished run.
    """
    values: dict[Replicate, list[float]] = {}
    for run in runs:
        if run.outcome != "finished":
            continue
        value = run.value(metric) if isinstance(metric, str) else metric(run)
        if value is not None:
            values.setdefault(run.replicate, []).append(value)
    return {key: sum(values[key]) / len(values[key]) for key in sorted(values)}


@dataclass(frozen=True)
class Asked:
    """What a person asked for; one of the four, or several sweeps.

    Attributes:
        sweep: "latest", a sweep's name or folder, or several of them with commas between.
        runs: Run ids.
        filter: A filter of MLflow.
        experiment: MLflow's experiment.
    """

    sweep: str
    runs: Sequence[str]
    filter: str | None
    experiment: str


@dataclass(frozen=True)
class Setting:
    """Runs that differ in their seed only.

    Attributes:
        values: Key to text, in the order of the keys.
        runs: The runs.
    """

    values: dict[str, str]
    runs: tuple[Run, ...]

    @property
    def label(self) -> str:
        """A short name such as ``scale=none d_k=64``."""
        return labelled(self.values) or "all runs"

    @cached_property
    def losses(self) -> dict[Replicate, float]:
        """Replicate -> best validation loss of the runs that finished."""
        return self.by_replicate(OBJECTIVE)

    @cached_property
    def mean_loss(self) -> float:
        """Mean of the losses over replicates, infinite without any."""
        losses = self.losses.values()
        return sum(losses) / len(losses) if losses else math.inf

    def by_replicate(self, metric: str | Callable[[Run], float | None]) -> dict[Replicate, float]:
        """Return replicate -> a figure, averaged over its runs that finished."""
        return by_replicate(self.runs, metric)

    @property
    def duplicates(self) -> int:
        """How many runs that finished repeat another one's replicate."""
        return self.count("finished") - len(self.losses)

    def estimate(self, metric: str | Callable[[Run], float | None]) -> Estimate | None:
        """Return mean and spread of a figure over replicates, or None."""
        values = list(self.by_replicate(metric).values())
        return estimate(values) if values else None

    def count(self, outcome: str) -> int:
        """Return how many runs came to an outcome."""
        return sum(run.outcome == outcome for run in self.runs)

    @cached_property
    def lost(self) -> int:
        """How many replicates have no result, because their runs diverged or failed.

        Killed ones say nothing, and a replicate that was tried again with success is not lost.
        """
        ended = {run.replicate for run in self.runs if run.outcome in ("diverged", "failed")}
        return len(ended - self.losses.keys())

    @property
    def ended(self) -> int:
        """How many replicates came to an end of their own."""
        return self.lost + len(self.losses)

    @property
    def share_lost(self) -> float:
        """Share of the ended replicates that were lost; 0 without any."""
        return self.lost / self.ended if self.ended else 0.0


@dataclass(frozen=True)
class Grid:
    """All settings of a report.

    Attributes:
        keys: Parameters that name a setting.
        settings: The settings, in the order of their values.
        together: Key -> other parameters that change whenever it does.
        missing: Labels of combinations of values that no run has; none if there are too many.
    """

    keys: tuple[str, ...]
    settings: tuple[Setting, ...]
    together: dict[str, list[str]]
    missing: tuple[str, ...]

    @property
    def runs(self) -> list[Run]:
        """The runs of all settings."""
        return [run for setting in self.settings for run in setting.runs]

    def numbers(self) -> list[str]:
        """Return the keys whose values are all numbers, two or more of them."""
        return [
            key
            for key in self.keys
            if all(is_number(s.values[key]) for s in self.settings)
            and len({s.values[key] for s in self.settings}) > 1
        ]


def _name_in(folder: Path) -> str:
    """Return the name of the sweep in a folder, which is that of the folder if it says no other."""
    file = folder / "sweep.json"
    if not file.is_file():
        return folder.name
    return str(json.loads(file.read_text(encoding="utf-8"))["name"])


def find_runs(store: Store, asked: Asked) -> list[Run]:
    """Return the runs that were asked for.

    Raises:
        ValueError: If there is nothing of that name in the store.
    """
    history = History(store, asked.experiment)
    if asked.runs:
        runs = [history.by_id(run_id) for run_id in asked.runs]
    elif asked.filter is not None:
        runs = history.matching(asked.filter)
    else:
        names = (part.strip() for part in asked.sweep.split(","))
        sweeps = [_name_in(Path(name)) if "/" in name else name for name in names]
        runs = [run for sweep in sweeps for run in history.sweep_runs(sweep)]
    return list({run.run_id: run for run in runs}.values())


def short(key: str) -> str:
    """Return the last word of a dotted key."""
    name = key.rpartition(".")[2]
    return "model" if name == "_target_" else name


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Return each key's last word, or the whole key where several end alike."""
    words = {key: short(key) for key in keys}
    listed = list(words.values())
    return {key: word if listed.count(word) == 1 else key for key, word in words.items()}


def labelled(values: Mapping[str, str]) -> str:
    """Return a setting in words such as ``scale=none d_k=64``."""
    names = short_names(values)
    return " ".join(f"{names[key]}={value}" for key, value in values.items())


def is_number(text: str) -> bool:
    """Whether a text is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _order(value: str) -> tuple[int, float, str]:
    """Sort numbers as numbers, before words."""
    return (0, float(value), "") if is_number(value) else (1, 0.0, value)


def _groups(runs: Sequence[Run], keys: Sequence[str]) -> dict[tuple[str, ...], list[Run]]:
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(run.parameters.get(key, MISSING) for key in keys), []).append(run)
    return groups


def varying(runs: Sequence[Run]) -> list[str]:
    """Return the parameters that differ between runs, the telling ones first."""
    keys = {
        key
        for run in runs
        for key in run.parameters
        if key not in NOISE and not key.startswith(NOISE_PREFIXES)
    }
    differ = [key for key in keys if len({run.parameters.get(key, MISSING) for run in runs}) > 1]
    return sorted(differ, key=lambda key: (FIRST.index(key) if key in FIRST else len(FIRST), key))


def _telling(runs: Sequence[Run], candidates: Sequence[str]) -> list[str]:
    """Return the keys that each split the runs further, in order."""
    telling: list[str] = []
    size = 1
    for key in candidates:
        refined = len(_groups(runs, [*telling, key]))
        if refined > size:
            telling, size = [*telling, key], refined
    return telling


def _value(key: str, text: str) -> str:
    # attnscale.model.transformer.Transformer: the class is enough.
    return text.rpartition(".")[2] if key.endswith("_target_") else text


def make_grid(runs: Sequence[Run]) -> Grid:
    """Group runs into settings."""
    candidates = varying(runs)
    keys = _telling(runs, candidates)
    together: dict[str, list[str]] = {}
    for key in keys:
        rest = [other for other in candidates if other not in keys]
        same = [o for o in rest if len(_groups(runs, [key])) == len(_groups(runs, [key, o]))]
        if same:
            together[key] = same
    groups = _groups(runs, keys)
    settings = [
        Setting(
            {key: _value(key, text) for key, text in zip(keys, values, strict=True)}, tuple(alike)
        )
        for values, alike in groups.items()
    ]
    settings.sort(key=lambda setting: tuple(map(_order, setting.values.values())))
    present = {tuple(setting.values.values()) for setting in settings}
    axes = [sorted({setting.values[key] for setting in settings}, key=_order) for key in keys]
    # Runs that were never meant as a grid can have more cells than could be counted.
    a_grid = bool(keys) and math.prod(map(len, axes)) <= MAX_CELLS
    missing = [
        labelled(dict(zip(keys, cell, strict=True)))
        for cell in (itertools.product(*axes) if a_grid else ())
        if cell not in present
    ]
    return Grid(tuple(keys), tuple(settings), together, tuple(missing))
