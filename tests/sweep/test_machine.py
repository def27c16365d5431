"""What a machine has for jobs, where a container has less of it."""

import os
from pathlib import Path

import pytest

from attnscale.sweep import machine
from attnscale.sweep.machine import CUDA_VARIABLE, cores, free_mib, gpus, oom_kills

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "GROUP_FILE", tmp_path / "self")
    monkeypatch.setattr(machine, "MEMORY_FILE", tmp_path / "meminfo")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_without_control_groups_cores_are_those_of_the_affinity() -> None:
    assert cores() == 8


@pytest.mark.parametrize(
    ("files", "n"),
    [
        pytest.param({"self": "0::/\n", "cgroup/cpu.max": "300000 100000\n"}, 3, id="v2"),
        pytest.param({"self": "0::/\n", "cgroup/cpu.max": "max 100000\n"}, 8, id="v2 without"),
        pytest.param({"self": "0::/\n", "cgroup/cpu.max": "1600000 100000\n"}, 8, id="v2 beyond"),
        pytest.param({"self": "0::/\n", "cgroup/cpu.max": "250000 100000\n"}, 2, id="v2 broken"),
        pytest.param(
            {"self": "0::/\n", "cgroup/cpu.max": "50000 100000\n"}, 1, id="v2 half a core"
        ),
        pytest.param(
            {
                "self": "0::/a/b\n",
                "cgroup/a/b/cpu.max": "600000 100000\n",
                "cgroup/a/cpu.max": "400000 100000\n",
                "cgroup/c/cpu.max": "100000 100000\n",
            },
            4,
            id="v2 nested: the group above allows less, one beside does not count",
        ),
        pytest.param(
            {
                "self": "5:memory:/x\n4:cpu,cpuacct:/x\n0::/\n",
                "cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": "200000\n",
                "cgroup/cpu,cpuacct/x/cpu.cfs_period_us": "100000\n",
                "cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                "cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            2,
            id="v1",
        ),
        pytest.param(
            {
                "self": "4:cpu:/docker/5eed\n",
                "cgroup/cpu/cpu.cfs_quota_us": "500000\n",
                "cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            5,
            id="v1 in a container, which sees its own group as the root",
        ),
    ],
)
def test_a_quota_of_control_groups_limits_the_cores(
    files: dict[str, str], n: int, tmp_path: Path
) -> None:
    write(tmp_path, files)
    assert cores() == n


MEMINFO = {"meminfo": "MemTotal: 9999999 kB\nMemFree: 1024 kB\nMemAvailable: 4096000 kB\n"}


@pytest.mark.parametrize(
    ("files", "mib"),
    [
        pytest.param({}, None, id="nothing tells"),
        pytest.param(MEMINFO, 4000.0, id="the machine"),
        pytest.param(
            {
                **MEMINFO,
                "self": "0::/\n",
                "cgroup/memory.max": f"{1000 * MIB}\n",
                "cgroup/memory.current": f"{700 * MIB}\n",
                "cgroup/memory.stat": f"anon 5\ninactive_file {200 * MIB}\n",
            },
            500.0,
            id="v2, where what is cached is free",
        ),
        pytest.param(
            {
                **MEMINFO,
                "self": "0::/\n",
                "cgroup/memory.max": "max\n",
                "cgroup/memory.current": f"{700 * MIB}\n",
            },
            4000.0,
            id="v2 without a limit",
        ),
        pytest.param(
            {
                "self": "0::/a\n",
                "cgroup/memory.max": f"{100 * MIB}\n",
                "cgroup/memory.current": f"{60 * MIB}\n",
                "cgroup/a/memory.max": f"{90 * MIB}\n",
                "cgroup/a/memory.current": f"{10 * MIB}\n",
            },
            40.0,
            id="v2 nested, without statistics",
        ),
        pytest.param(
            {
                **MEMINFO,
                "self": "9:memory:/x\n",
                "cgroup/memory/x/memory.limit_in_bytes": f"{64 * MIB}\n",
                "cgroup/memory/x/memory.usage_in_bytes": f"{48 * MIB}\n",
                "cgroup/memory/x/memory.stat": f"inactive_file 0\ntotal_inactive_file {8 * MIB}\n",
            },
            24.0,
            id="v1, whose totals have the groups below",
        ),
    ],
)
def test_free_memory_is_the_least_of_what_is_told(
    files: dict[str, str], mib: float | None, tmp_path: Path
) -> None:
    write(tmp_path, files)
    assert free_mib() == mib


def test_the_kernel_s_kills_for_memory_are_counted(tmp_path: Path) -> None:
    assert oom_kills() == 0
    write(tmp_path, {"self": "0::/a\n", "cgroup/a/memory.events": "oom 7\noom_kill 3\n"})
    assert oom_kills() == 3


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ("2,5", ["2", "5"]),
        (" 1 , 0 ", ["1", "0"]),
        ("GPU-8f1a,MIG-77b2", ["GPU-8f1a", "MIG-77b2"]),
        ("", []),
        ("-1", []),
        ("3,-1,4", ["3"]),
    ],
)
def test_gpus_that_are_given_are_divided_and_no_others(
    visible: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CUDA_VARIABLE, visible)
    assert gpus() == names
    assert os.environ[CUDA_VARIABLE] == visible


@pytest.mark.parametrize(
    ("script", "names"),
    [
        (None, []),
        (
            'test "$1 $2" = "--query-gpu=index --format=csv,noheader" && printf "0\\n1\\n"',
            ["0", "1"],
        ),
        ("echo No devices were found; exit 6", []),
    ],
)
def test_else_gpus_are_those_of_nvidia_smi(
    script: str | None, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CUDA_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    if script is not None:
        file = tmp_path / "nvidia-smi"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
    assert gpus() == names
