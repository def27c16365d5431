"""The README's commands run as they stand there."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("python -m src.")
]


@pytest.fixture(scope="module")
def drawn(module_shell: Any) -> dict[str, Any]:
    """Run every command in the order of the README, on one store."""
    done = {}
    for command in COMMANDS:
        _, _, app, *arguments = shlex.split(command)
        done[command] = module_shell(*arguments, app=app)
    return done


def test_there_are_commands() -> None:
    assert "python -m src.train -m attention.scale=sqrt,none model.d_k=64,512" in COMMANDS
    assert len(COMMANDS) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs(drawn: dict[str, Any], command: str) -> None:
    assert drawn[command].returncode == 0, drawn[command].stderr


@pytest.mark.slow
def test_the_sweep_prints_the_table_of_the_readme(drawn: dict[str, Any], module_shell: Any) -> None:
    done = drawn["python -m src.train -m attention.scale=sqrt,none model.d_k=64,512"]
    header = next(line for line in README.splitlines() if line.startswith("job    run"))
    assert (
        header.split()
        == next(x for x in done.stdout.splitlines() if x.startswith("job    run")).split()
    )
    jobs = module_shell.jobs()[-4:]
    losses = [run.data.metrics["val/best_loss"] for run in jobs]
    rows = [line for line in README.splitlines() if re.match(r"\d\s{3}", line)]
    printed = [float(re.split(r"\s{2,}", row)[3]) for row in rows]
    assert losses[:3:2] == pytest.approx(printed[:3:2], rel=1e-2)
    assert [run.info.status for run in jobs] == ["FINISHED"] * 4
    assert len({run.data.metrics["grad_norm/q"] for run in jobs}) == 4


@pytest.mark.slow
@pytest.mark.parametrize("command", re.findall(r"```bash slow\n(.*?)\n```", README, re.DOTALL))
def test_a_slow_command_runs(shell: Any, command: str) -> None:
    _, _, app, *arguments = shlex.split(command)
    done = shell(*arguments, app=app, timeout=1200)
    assert done.returncode == 0, done.stderr
    if app != "src.train":
        return
    jobs = shell.jobs()
    assert [run.info.status for run in jobs] == ["FINISHED"] * 4
    scaled = [run for run in jobs if run.data.params["attention.scale"] == "sqrt"]
    assert all(run.data.metrics["test/bleu"] >= 90 for run in scaled)


@pytest.mark.slow
def test_the_example_of_a_notebook_runs(shell: Any) -> None:
    text = (shell.root / "docs" / "machines.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=shell.path,
        env=shell.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[-2:]] == ["sqrt", "none"]


@pytest.mark.parametrize("example", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_a_python_example_runs(example: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0.5
