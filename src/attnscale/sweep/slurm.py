"""A sweep as one Slurm job array.

hydra-submitit-launcher submits; what differs here is the waiting. Its own launcher leaves at the
first lost job, with the others running on unwatched, and on Ctrl-C leaves all of them, having named
none. This one names the jobs, waits for all, makes a lost job a failed result, and cancels on
Ctrl-C.
"""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus
from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf
from hydra_plugins.hydra_submitit_launcher.submitit_launcher import SlurmLauncher
from omegaconf import OmegaConf

from attnscale.config.hydra_section import bounded_hydra
from attnscale.experiment.result import WORST
from attnscale.sweep.state import LOST, Job, job_file


def _check_slurm() -> None:
    """Refuse to submit where Slurm is missing, and warn where lost jobs cannot be noticed."""
    if shutil.which("sbatch") is None:
        raise ValueError("hydra/launcher=slurm: sbatch was not found; submit from a Slurm machine")
    accounting = subprocess.run(
        ["sacct", "--noheader", "--starttime", "now"], capture_output=True, check=False
    )
    if accounting.returncode != 0:
        print(  # noqa: T201
            "Slurm's accounting (sacct) does not answer: a job that is killed will not be noticed, "
            "and the sweep will wait for it for ever"
        )


def _finished(job: Any, file: Path, overrides: Sequence[str]) -> JobReturn:
    """Wait for a job; one that Slurm lost is a failed result, and its file says so."""
    import submitit

    try:
        result = job.results()[0]
        assert isinstance(result, JobReturn)
        return result
    except (submitit.core.utils.UncompletedJobError, submitit.core.utils.FailedJobError) as error:
        reason = f"Slurm job {job.job_id} was lost: {str(error).splitlines()[0]}"
        print(reason, flush=True)  # noqa: T201
        known = Job(index=int(file.stem), name=" ".join(overrides), status=LOST)
        # It may have begun, and said where.
        known = Job.load(file) if file.is_file() else known
        replace(known, status=LOST, error=reason).save(file)
        return JobReturn(_return_value=WORST, status=JobStatus.COMPLETED)


class SlurmSweepLauncher(SlurmLauncher):  # type: ignore[misc]
    """Submits all jobs of a sweep at once, and waits for all of them."""

    def __call__(self, *arguments: Any) -> JobReturn:
        """Run a job where Slurm put it, composed under the same bounds as here."""
        with bounded_hydra():
            result = super().__call__(*arguments)
        assert isinstance(result, JobReturn)
        return result

    def _executor(self) -> Any:
        import submitit

        shared = set(OmegaConf.structured(BaseQueueConf).keys())
        options = {
            key if key in shared else f"slurm_{key}": value for key, value in self.params.items()
        }
        executor = submitit.AutoExecutor(
            cluster="slurm",
            folder=options.pop("submitit_folder"),
            slurm_max_num_timeout=options.pop("slurm_max_num_timeout"),
        )
        executor.update_parameters(**options)
        return executor

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Submit the jobs, name them, and wait.

        Raises:
            ValueError: If Slurm is missing, or an option would train copies in one folder.
        """
        assert self.config is not None
        _check_slurm()
        tasks = self.params["tasks_per_node"]
        if tasks != 1:
            raise ValueError(
                f"hydra.launcher.tasks_per_node={tasks}: must be 1; a job starts the processes of "
                "trainer.devices itself"
            )
        root = Path(str(self.config.hydra.sweep.dir))
        root.mkdir(parents=True, exist_ok=True)
        state = Singleton.get_state()
        arguments = [
            (list(overrides), "hydra.sweep.dir", initial_job_idx + i, f"job_{i}", state)
            for i, overrides in enumerate(job_overrides)
        ]
        jobs = self._executor().map_array(self, *zip(*arguments, strict=True))
        names = ", ".join(job.job_id for job in jobs)
        print(f"Slurm jobs {names}; squeue shows them", flush=True)  # noqa: T201
        try:
            return [
                _finished(job, job_file(root, initial_job_idx + i), job_overrides[i])
                for i, job in enumerate(jobs)
            ]
        except KeyboardInterrupt:
            for job in jobs:
                job.cancel(check=False)
            print(f"Cancelled: {names}", flush=True)  # noqa: T201
            raise


def register(name: str) -> None:
    """Make the launcher known to Hydra under a name, which must be one of ``hydra_plugins``."""
    Plugins.instance().class_name_to_class[name] = SlurmSweepLauncher
