"""The jobs of a launch before the first of them starts."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from attnscale.config.build import project_root, register
from attnscale.experiment.result import Result
from attnscale.sweep import plan as module
from attnscale.sweep.plan import Planned, plan
from attnscale.sweep.state import Job, Launch, job_file, read_jobs


@pytest.fixture(scope="module")
def composed() -> DictConfig:
    register()
    with initialize_config_dir(str(project_root() / "conf"), version_base="1.3"):
        return compose("train", ["threads=1"], return_hydra_config=True)


class Loader:
    """Sets a job's overrides in a copy, where Hydra would compose anew."""

    def load_sweep_config(self, master: DictConfig, overrides: list[str]) -> DictConfig:
        config = copy.deepcopy(master)
        with read_write(config), open_dict(config):
            config.merge_with_dotlist(overrides)
        return config


class Sweep:
    """A sweep's folder, and what is launched in it."""

    def __init__(self, master: DictConfig, folder: Path) -> None:
        self.folder, self.master = folder, copy.deepcopy(master)
        with read_write(self.master), open_dict(self.master):
            self.master.hydra.sweep.dir = str(folder)
        Launch(parent="", name="s", swept=["seed"], allow=[]).save(folder)

    def plan(self, *jobs: str, first: int = 0, **settings: Any) -> list[Planned]:
        with read_write(self.master), open_dict(self.master):
            for key, value in settings.items():
                OmegaConf.update(self.master, key, value)
        overrides = [job.split() for job in jobs]
        return plan(cast(Any, Loader()), self.master, overrides, first, self.folder)

    def end(self, index: int, status: str, result: Result | None = None) -> None:
        file = job_file(self.folder, index)
        job = Job.load(file)
        (Path(job.folder) / ".hydra").mkdir(parents=True)
        replace(job, status=status, result=result).save(file)


@pytest.fixture
def sweep(composed: DictConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sweep]:
    monkeypatch.setattr(module, "gpus", lambda: [])
    yield Sweep(composed, tmp_path)
    HydraConfig.instance().cfg = None


def test_jobs_are_numbered_and_left_word_of(sweep: Sweep) -> None:
    jobs = [planned.job for planned in sweep.plan("seed=1", "seed=2", first=4)]
    assert [job.folder for job in jobs] == [str(sweep.folder / name) for name in "45"]
    assert [(job.name, job.status, job.threads) for job in jobs] == [
        ("seed=1", "WAITING", 1),
        ("seed=2", "WAITING", 1),
    ]
    assert read_jobs(sweep.folder) == jobs
    assert len({job.identity for job in jobs}) == 2


def test_a_sweep_that_goes_on_takes_each_job_as_it_ended(sweep: Sweep) -> None:
    sweep.plan("seed=0", "seed=1", "seed=2", "seed=3")
    sweep.end(0, "FINISHED", Result(objective=0.25))
    sweep.end(1, "KILLED")
    sweep.end(2, "FAILED")
    jobs = sweep.plan("seed=9", "seed=2", "seed=1", "seed=0", "seed=3", resume="x")
    places = [(one.job.index, one.job.folder) for one in jobs]
    names = ((4, "4"), (2, "2_2"), (1, "1"), (0, "0"), (3, "3"))
    assert places == [(index, str(sweep.folder / name)) for index, name in names]
    results = [None if one.result is None else one.result.return_value for one in jobs]
    assert results == [None, None, None, 0.25, None]
    # Where Hydra writes: nothing of the earlier launch is overwritten.
    hydra = [one.config.hydra for one in jobs[1:3]]
    assert [(one.sweep.subdir, one.output_subdir) for one in hydra] == [
        ("2_2", ".hydra"),
        ("1", ".hydra_2"),
    ]
    assert [job.status for job in read_jobs(sweep.folder)] == ["FINISHED", *["WAITING"] * 4]


def test_a_job_that_failed_twice_has_a_third_folder(sweep: Sweep) -> None:
    sweep.plan("seed=0")
    for attempt in (2, 3):
        (job,) = read_jobs(sweep.folder)
        Path(job.folder).mkdir()
        sweep.end(0, "FAILED")
        (again,) = sweep.plan("seed=0", resume="x")
        assert again.job.folder == str(sweep.folder / f"0_{attempt}")


def test_a_job_that_is_mistaken_is_one_job_whenever_it_is_tried(sweep: Sweep) -> None:
    sweep.plan("model._target_=os.system")
    sweep.end(0, "FAILED")
    (again,) = sweep.plan("model._target_=os.system", resume="x")
    assert again.job.index == 0


def test_jobs_that_differ_only_in_how_they_are_run_stay_apart(sweep: Sweep) -> None:
    sweep.plan("threads=1", "threads=2")
    sweep.end(0, "FINISHED", Result(objective=0.5))
    jobs = sweep.plan("threads=1", "threads=2", resume="x")
    assert [one.job.index for one in jobs] == [0, 1]
    assert [one.result is None for one in jobs] == [False, True]


@pytest.mark.parametrize(
    ("jobs", "settings", "key"),
    [
        (("seed=1", "seed=2"), {"hydra.sweep.subdir": "same"}, "hydra.sweep.subdir=.*same"),
        (("folder=/x", "folder=/x"), {}, "folder=/x"),
    ],
)
def test_two_jobs_in_one_folder_are_refused(
    jobs: tuple[str, ...], settings: dict[str, Any], key: str, sweep: Sweep
) -> None:
    with pytest.raises(ValueError, match=f"^{key}: 2 jobs would write into one folder"):
        sweep.plan(*jobs, **settings)
    assert read_jobs(sweep.folder) == []


def test_a_sweep_goes_on_with_other_data_only_if_trusted(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "fingerprint", lambda data: "before")
    sweep.plan("seed=0")
    monkeypatch.setattr(module, "fingerprint", lambda data: "after")
    with pytest.raises(ValueError, match=r"^resume=x: the data of job 0 have changed .*trust=true"):
        sweep.plan("seed=0", resume="x")
    (job,) = sweep.plan("seed=0", resume="x", trust=True)
    assert (job.job.index, job.job.data) == (0, "after")


def test_a_mistaken_job_is_planned_and_will_say_so_itself(sweep: Sweep) -> None:
    wrong, right = sweep.plan("model._target_=os.system", "seed=1")
    assert wrong.demand == module.UNKNOWN
    assert right.job.identity != ""
