"""What ``make check`` must notice: undefined names, misspelt keys, and circles of files."""

import importlib.util
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[2]
PLANTED = '''"""A file with a name that nothing defines."""


def value() -> int:
    """Return what is not there."""
    return undefined_name
'''
MISSPELT = '''"""A file that misspells keys of the configuration."""

from attnscale.config.schema import TrainConfig


def values(config: TrainConfig) -> list[object]:
    """Return what is not there."""
    return [
        config.trainer.max_stepz,
        config.model.dk,
        config.optimizer.rate,
        config.tracking.url,
        config.allowed,
    ]


def value(config: TrainConfig) -> str:
    """Return what is no text."""
    return config.trainer.max_steps
'''


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    path = tmp_path / "planted.py"
    path.write_text(PLANTED)
    return path


def _run(tool: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    if importlib.util.find_spec(tool) is None:
        pytest.skip(f"{tool} is not installed, so it cannot look for undefined names")
    command = [sys.executable, "-m", tool, *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )


def test_ruff_finds_an_undefined_name(planted: Path) -> None:
    done = _run("ruff", "check", "--no-cache", "--config", "pyproject.toml", str(planted))
    assert done.returncode == 1
    assert "F821" in done.stdout
    assert "undefined_name" in done.stdout


def test_mypy_finds_an_undefined_name(planted: Path) -> None:
    cache = str(planted.parent / "cache")
    done = _run("mypy", "--config-file", "pyproject.toml", "--cache-dir", cache, str(planted))
    assert done.returncode == 1
    assert 'Name "undefined_name" is not defined  [name-defined]' in done.stdout


def test_mypy_finds_misspelt_keys_of_the_configuration(planted: Path) -> None:
    planted.write_text(MISSPELT)
    cache = str(planted.parent / "cache")
    done = _run("mypy", "--config-file", "pyproject.toml", "--cache-dir", cache, str(planted))
    assert done.returncode == 1
    for error in (
        '"TrainerConfig" has no attribute "max_stepz"',
        '"ModelNode" has no attribute "dk"',
        '"OptimizerNode" has no attribute "rate"',
        '"TrackingConfig" has no attribute "url"',
        '"TrainConfig" has no attribute "allowed"',
        'Incompatible return value type (got "int", expected "str")',
        "Found 6 errors in 1 file",
    ):
        assert error in done.stdout


def test_no_circle_of_files() -> None:
    """Imports for types count too: two files that know each other are one file."""
    graph = grimp.build_graph("attnscale", exclude_type_checking_imports=False, cache_dir=None)
    # A package's face gathers what is below it; a circle through it is one of its files.
    files = {m: graph.find_modules_directly_imported_by(m) for m in graph.modules}
    TopologicalSorter(files).prepare()
