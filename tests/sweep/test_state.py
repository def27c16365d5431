"""What a job leaves in its folder."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnscale.sweep.state import JOB_FILE, Job


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder on a file system of its own, of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting is refused here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_why_a_job_failed_is_kept_on_a_full_disk(small_disk: Path) -> None:
    Job(index=3, name="r", status="RUNNING").save(small_disk / JOB_FILE)
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "fill").write_bytes(bytes(1 << 17))
    Job(index=3, name="r", status="FAILED", error="–" * 5000).save(small_disk / JOB_FILE)
    job = Job.load(small_disk / JOB_FILE)
    assert (job.index, job.status, job.error) == (3, "FAILED", "–" * 500)
    assert sorted(file.name for file in small_disk.iterdir()) == ["fill", JOB_FILE]
