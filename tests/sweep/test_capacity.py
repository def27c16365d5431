"""Which jobs run beside each other."""

from pathlib import Path
from typing import Any, cast

import pytest

from attnscale.experiment.demand import Demand
from attnscale.sweep import capacity, local
from attnscale.sweep.capacity import Capacity, Running
from attnscale.sweep.plan import Planned
from attnscale.sweep.state import WAITING, Job


def need(threads: int = 1, processes: int = 1, gpus: int | None = 0, work: float = 1.0) -> Demand:
    return Demand(threads=threads, processes=processes, gpus=gpus, work=work)


def planned(demand: Demand, index: int = 0) -> Planned:
    job = Job(index=index, name=f"job {index}", status=WAITING)
    return Planned(job=job, config=cast(Any, None), demand=demand, result=None)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """Return the free memory, in MiB, as the only entry of a list that a test may change."""
    free: list[float | None] = [None]
    monkeypatch.setattr(capacity, "free_mib", lambda: free[0])
    return free


def start(there: Capacity, demand: Demand, started: float | None = None) -> Running:
    devices = there.take(demand)
    one = Running(planned(demand), cast(Any, None), 0, devices, 0)
    one.started = one.started if started is None else started
    there.running[len(there.running)] = one
    return one


def fill(there: Capacity, demand: Demand) -> int:
    """Start jobs while they fit, and return how many did."""
    while there.fits(demand) and len(there.running) < 100:
        start(there, demand)
    return len(there.running)


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize(
    ("n_jobs", "demand", "n"),
    [
        (None, need(), 8),
        (None, need(threads=3), 2),
        (None, need(threads=2, processes=2), 2),
        (None, need(threads=16), 1),
        (3, need(), 3),
        (20, need(threads=4), 20),
        (1, need(), 1),
    ],
)
def test_as_many_jobs_fit_as_their_threads_have_cores_or_as_were_asked_for(
    n_jobs: int | None, demand: Demand, n: int
) -> None:
    assert fill(Capacity(n_jobs, 8, [], 100.0), demand) == n


def test_what_young_jobs_will_take_is_not_free(memory: list[float | None]) -> None:
    memory[0] = 450.0
    assert fill(Capacity(None, 8, [], 100.0), need()) == 4


def test_what_old_jobs_took_is_in_the_figure(memory: list[float | None]) -> None:
    there = Capacity(None, 8, [], 100.0)
    start(there, need(), started=-1e9)
    memory[0] = 100.0
    assert there.fits(need())
    memory[0] = 99.0
    assert not there.fits(need())


@pytest.mark.usefixtures("memory")
def test_each_gpu_has_a_job_and_gets_the_next_when_it_ends() -> None:
    there, demand = Capacity(None, 8, ["0", "GPU-1"], 100.0), need(gpus=1)
    first, second = start(there, demand), start(there, demand)
    assert (first.devices, second.devices) == (["0"], ["GPU-1"])
    assert not there.fits(demand)
    there.running.popitem()
    there.give_back(second, 0.0)
    assert there.fits(demand)
    assert start(there, demand).devices == ["GPU-1"]


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize(("gpus", "n"), [(1, 4), (2, 2), (3, 1), (4, 1), (8, 1), (None, 1)])
def test_jobs_of_several_gpus_share_none(gpus: int | None, n: int) -> None:
    there = Capacity(None, 1, ["0", "1", "2", "3"], 100.0)
    assert fill(there, need(gpus=gpus)) == n
    devices = [device for one in there.running.values() for device in one.devices]
    assert len(devices) == len(set(devices))


@pytest.mark.usefixtures("memory")
def test_a_job_that_wants_all_gpus_waits_for_all() -> None:
    there = Capacity(None, 8, ["0", "1"], 100.0)
    start(there, need(gpus=1))
    assert there.devices == ["1"]
    assert not there.fits(need(gpus=None))


def test_a_job_bigger_than_the_machine_runs_alone(memory: list[float | None]) -> None:
    memory[0] = 1.0
    there = Capacity(None, 2, ["0"], 1e6)
    assert there.fits(need(threads=64, gpus=8))
    start(there, need(threads=64, gpus=8))
    assert not there.fits(need())


def test_what_a_job_had_comes_back_and_its_memory_is_learnt(memory: list[float | None]) -> None:
    there = Capacity(None, 4, ["0", "1"], 100.0)
    one = start(there, need(threads=2, processes=2, gpus=2))
    assert (there.cores, there.devices) == (0, [])
    there.running.clear()
    there.give_back(one, 300.0)
    assert (there.cores, there.devices, there.mib) == (4, ["0", "1"], 300.0)
    there.give_back(start(there, need()), 200.0)
    assert there.mib == 300.0


class Launcher:
    """Has the options of a launcher, and starts nothing."""

    n_jobs, memory_mib = None, 100.0


@pytest.mark.parametrize(
    ("work", "order"),
    [([1, 5, 3], [1, 2, 0]), ([2, 2, 2], [0, 1, 2]), ([2, 7, 2, 7], [1, 3, 0, 2])],
)
def test_the_longest_start_first_and_equal_ones_in_order(
    work: list[float], order: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "gpus", lambda: [])
    jobs = [planned(need(work=one), index) for index, one in enumerate(work)]
    schedule = local._Schedule(cast(Any, Launcher()), tmp_path, jobs)
    assert [one.job.index for one in schedule.waiting] == order


def test_each_job_has_its_line_where_there_are_more_gpus_than_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "gpus", lambda: ["0", "1", "2"])
    monkeypatch.setattr(local, "cores", lambda: 2)
    jobs = [planned(need(gpus=1), index) for index in range(5)]
    schedule = local._Schedule(cast(Any, Launcher()), tmp_path, jobs)
    assert len(schedule.lines._bars) == 3
    schedule.lines.close()
