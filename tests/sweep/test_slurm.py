"""A job that Slurm lost."""

from pathlib import Path

import pytest

from attnscale.experiment.result import WORST
from attnscale.sweep.state import LOST, RUNNING, Job, job_file, read_jobs

submitit = pytest.importorskip("submitit")
pytest.importorskip("hydra_plugins.hydra_submitit_launcher.submitit_launcher")


class Lost:
    """A job of Slurm's that was killed."""

    job_id = "7_1"

    def results(self) -> list[object]:
        raise submitit.core.utils.UncompletedJobError("node failed\nmore")


@pytest.mark.parametrize("began", [False, True])
def test_a_lost_job_is_a_failed_one_and_its_file_says_so(began: bool, tmp_path: Path) -> None:
    from attnscale.sweep.slurm import _finished

    file = job_file(tmp_path, 1)
    if began:
        Job(index=1, name="seed=1", status=RUNNING, folder="there").save(file)
    assert _finished(Lost(), file, ["seed=1"]).return_value == WORST
    error = "Slurm job 7_1 was lost: node failed"
    folder = "there" if began else ""
    (job,) = read_jobs(tmp_path)
    assert job == Job(index=1, name="seed=1", status=LOST, folder=folder, error=error)
