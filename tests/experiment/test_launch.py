"""Variables that say a process is one of several, of which some are left over in a shell."""

import os
import re
import signal
from pathlib import Path
from types import FrameType

import pytest
from pytorch_lightning.plugins.environments import LightningEnvironment
from pytorch_lightning.utilities import rank_zero_only

from attnscale.config.build import compose
from attnscale.config.choice_schema import TrainerConfig
from attnscale.experiment import processes
from attnscale.experiment.processes import check_launch, launched_from_outside, meet
from attnscale.experiment.trainer import make_trainer

SHELL = {"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}
STEP = {
    **SHELL,
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_NTASKS_PER_NODE": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NODELIST": "localhost",
    "MASTER_PORT": "29731",
}
WORKER = {
    "TORCHELASTIC_RUN_ID": "none",
    "WORLD_SIZE": "4",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29732",
}
CLIENT = {**WORKER, "TORCHELASTIC_USE_AGENT_STORE": "True"}


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in list(os.environ):
        if name.startswith(("SLURM_", "TORCHELASTIC_", *processes.RANK_VARIABLES)):
            monkeypatch.delenv(name)
    return monkeypatch


def export(variables: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    for name, value in values.items():
        variables.setenv(name, value)


@pytest.fixture(scope="module")
def trainer() -> TrainerConfig:
    return compose(["trainer.devices=2", "trainer.strategy=ddp"], folder=Path("unused")).trainer


@pytest.mark.parametrize(
    "values",
    [
        {"SLURM_NTASKS": "4"},
        SHELL,
        {**SHELL, "SLURM_STEP_NUM_TASKS": "1"},
        {name: WORKER[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")},
        {"OMPI_COMM_WORLD_SIZE": "4", "PMI_SIZE": "4", "PMI_RANK": "0"},
    ],
    ids=["NTASKS alone", "allocation", "step of one", "torchrun's without its id", "MPI"],
)
def test_a_shell_with_variables_of_others_is_alone(
    variables: pytest.MonkeyPatch, trainer: TrainerConfig, values: dict[str, str]
) -> None:
    export(variables, values)
    assert launched_from_outside() is None
    check_launch(trainer)
    assert meet() is None


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (STEP, "SLURM_STEP_NUM_TASKS and SLURM_NTASKS=4 say that srun started 4 processes"),
        (WORKER, "TORCHELASTIC_RUN_ID and WORLD_SIZE=4 say that torchrun started 4 processes"),
        ({**SHELL, "SLURM_STEP_NUM_TASKS": "4"}, "SLURM_STEP_NUM_TASKS is set, but not SLURM_NT"),
        ({"TORCHELASTIC_RUN_ID": "x"}, "TORCHELASTIC_RUN_ID is set, but not WORLD_SIZE, RANK"),
    ],
)
def test_variables_that_do_not_fit_the_devices_are_named_with_the_way_to_ignore_them(
    variables: pytest.MonkeyPatch, trainer: TrainerConfig, values: dict[str, str], words: str
) -> None:
    export(variables, values)
    with pytest.raises(ValueError, match=re.escape(words)) as refusal:
        check_launch(trainer)
    assert f"env -u {words.split(maxsplit=1)[0]} python" in str(refusal.value)


@pytest.mark.parametrize("values", [STEP, WORKER, CLIENT], ids=["srun", "torchrun", "agent"])
def test_processes_that_nobody_started_are_not_waited_for(
    variables: pytest.MonkeyPatch, values: dict[str, str]
) -> None:
    export(variables, values)
    variables.setattr(processes, "MEETING_SECONDS", 0.3)
    with pytest.raises(ValueError, match=r"did not meet at localhost:2973\d within"):
        meet()


@pytest.mark.parametrize("values", [STEP, CLIENT], ids=["host", "client"])
def test_a_signal_ends_the_wait(variables: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    export(variables, values)
    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            meet()
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("strategy", ["auto", "ddp"])
def test_a_run_of_one_process_is_the_first_whatever_is_left_over(
    variables: pytest.MonkeyPatch, tmp_path: Path, strategy: str
) -> None:
    export(variables, {"RANK": "1", "LOCAL_RANK": "1", "NODE_RANK": "1", "WORLD_SIZE": "4"})
    # Lightning read the variables when it was imported.
    variables.setattr(rank_zero_only, "rank", 1, raising=False)
    config = compose([f"trainer.strategy={strategy}", "callbacks=none"], folder=tmp_path)
    lightning = make_trainer(config, None)
    assert lightning.global_rank == getattr(rank_zero_only, "rank") == 0  # noqa: B009
    assert LightningEnvironment().local_rank() == 0


def test_processes_of_a_run_get_no_left_over_options_of_torchrun(
    variables: pytest.MonkeyPatch,
) -> None:
    export(variables, {**WORKER, "PET_NNODES": "2", "OTHER": "x"})
    started = processes._environment(2)
    assert started["OTHER"] == "x"
    assert not [name for name in started if name.startswith("PET_") or name in WORKER]
