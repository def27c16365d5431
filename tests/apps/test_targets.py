"""Targets that a command may not name: one line, status 1, and nothing is called."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from attnscale.config.build import compose
from attnscale.config.section import plain
from tests.config.files import FILES, touch, with_call

OWN = """
import os
from pathlib import Path

import pytorch_lightning as pl


class Toy(pl.Callback):
    def on_train_start(self, trainer, pl_module):
        rank = os.environ.get("RANK", "0")
        Path(os.environ["TOY_FILE"] + "-" + rank).touch()
"""
TOY = "+callbacks.toy._target_=ownpackage.Toy"
SHORT = ("trainer=smoke", "threads=1")


@pytest.fixture
def toy(tmp_path: Path) -> dict[str, str]:
    """Return the environment in which a person's own package can be imported."""
    package = tmp_path / "packages" / "ownpackage.py"
    package.parent.mkdir()
    package.write_text(OWN)
    path = os.pathsep.join((str(package.parent), os.environ.get("PYTHONPATH", "")))
    return {"PYTHONPATH": path, "TOY_FILE": str(tmp_path / "toy")}


def assert_refused(shell: Any, done: Any, *words: str) -> None:
    assert done.returncode == 1, done.stdout + done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert "Traceback" not in done.stdout
    assert not (shell.path / "called").exists(), "it was called"
    assert shell.runs() == [], "a run was recorded"


@pytest.mark.parametrize("many", [(), ("-m", "model.d_k=8,16")], ids=["run", "sweep"])
def test_from_the_command_line(shell: Any, many: tuple[str, ...]) -> None:
    node = f"{{_target_: pathlib.Path.touch, self: {{_target_: x.Path, p: {shell.path}/called}}}}"
    done = shell(*many, *SHORT, f"callbacks.attention_stats.statistics={node}")
    key = "callbacks.attention_stats.statistics._target_=pathlib.Path.touch: allowed are classes in"
    assert_refused(shell, done, key)


QUICK = ("a node", "allow", "allow of a sweep", "a callback of Hydra")
CASES = [c if c in QUICK else pytest.param(c, marks=pytest.mark.slow) for c in FILES]


@pytest.mark.parametrize("case", CASES)
def test_from_an_experiment_file(shell: Any, case: str, toy: dict[str, str]) -> None:
    content, words = FILES[case]
    folder = shell.path / "conf" / "experiment"
    folder.mkdir(parents=True)
    text = yaml.safe_dump(with_call(content, shell.path / "called"))
    (folder / "attack.yaml").write_text(f"# @package _global_\n{text}")
    many = ["-m"] if "sweep" in case else []
    # Hydra wants its own options before the overrides.
    given = [*many, "--config-dir", str(folder.parent), "experiment=attack", *SHORT]
    assert_refused(shell, shell(*given, extra=toy), words)


@pytest.mark.parametrize(
    "app",
    [
        "src.train",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("src.translate", "src.evaluate")),
    ],
)
@pytest.mark.parametrize("allow", [False, True], ids=["a node", "allow"])
def test_from_a_checkpoint(shell: Any, app: str, allow: bool) -> None:
    config = plain(compose(["model=transformer"], folder=shell.path))
    if allow:
        config["allow"] = ["ownpackage"]
    else:
        config["callbacks"]["attention_stats"]["statistics"] = touch(shell.path / "called")
    path = shell.path / "attack.ckpt"
    torch.save({"attnscale": {"config": config, "data": {}}, "state_dict": {}}, path)
    done = shell(f"checkpoint={path}", app=app, where=app == "src.train")
    words = "counts on the command line only" if allow else "pathlib.Path.touch: allowed are"
    assert_refused(shell, done, f"checkpoint={path}: ", words)


@pytest.mark.parametrize("value", ["[ownpackage],[os]", "[a b]", "[os.]"])
def test_allow_is_one_list_of_packages(shell: Any, value: str) -> None:
    assert_refused(shell, shell("-m", *SHORT, f"allow={value}"), "allow=")


@pytest.mark.slow
def test_own_classes_are_refused_and_then_allowed(shell: Any, toy: dict[str, str]) -> None:
    refused = shell(*SHORT, TOY, extra=toy)
    assert_refused(shell, refused, "ownpackage.Toy", "if it is your own: allow=[ownpackage]")
    done = shell(*SHORT, TOY, "allow=[ownpackage]", extra=toy)
    assert done.returncode == 0, done.stderr
    assert Path(toy["TOY_FILE"] + "-0").exists()
    checkpoint = f"checkpoint={shell.result()['last_checkpoint']}"
    on = shell(checkpoint, "trainer.max_epochs=2", extra=toy)
    assert on.returncode == 1
    assert "if it is your own: allow=[ownpackage]" in on.stderr
    assert len(shell.runs()) == 1
    on = shell(checkpoint, "trainer.max_epochs=2", "allow=[ownpackage]", extra=toy)
    assert on.returncode == 0, on.stderr


@pytest.mark.slow
def test_own_classes_in_the_jobs_and_processes_of_a_sweep(shell: Any, toy: dict[str, str]) -> None:
    jobs = ("-m", "trainer=ddp_cpu", "task.max_epochs=1", "model.d_k=8,16", "data.n_train=40")
    done = shell(*jobs, TOY, "allow=[ownpackage]", extra=toy)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [run.info.status for run in shell.jobs()] == ["FINISHED"] * 2
    assert all(Path(f"{toy['TOY_FILE']}-{rank}").exists() for rank in (0, 1))
    (written,) = shell.path.glob("multirun/*/0/processes.json")
    assert '"allow"' not in written.read_text()
