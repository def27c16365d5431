"""What docs/extending.md says of adding a thing is true: nothing but what it names is touched.

Its last column names lists that a real addition has an entry in; a toy needs none to train.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
REGISTRY = "src/attnscale/attention/scale/registry.py"
REGISTERED = (('    "sqrt": factor.Sqrt,\n', '    "toy": toy.Toy,\n    "sqrt": factor.Sqrt,\n'),)

SCALE = '''"""A toy: the score to a power, times what is learned."""

import torch
from torch import Tensor, nn

from attnscale.attention.scale.base import Moments, Scale, mean_of, per_head, positive


class Toy(Scale):
    """One learned factor per head in front of a power of d_k."""

    formula = "g_head · r / d_k^power"
    source = "a test"

    def __init__(self, *, n_heads: int, power: float = 0.5) -> None:
        """Set the power."""
        super().__init__()
        self.power = positive("power", power)
        self.gain = nn.Parameter(torch.ones(n_heads))

    def learned_scale(self) -> Tensor:
        """Return g."""
        return self.gain

    def qk(self, q: Tensor, k: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Multiply q."""
        return q * per_head(self.gain) * q.shape[-1] ** -self.power, k

    def predicted_std(self, moments: Moments) -> float:
        """Return that of the scores, scaled."""
        return float(mean_of(self.gain) * moments.d_k**-self.power * moments.score_std)
'''
DATA = '''"""A toy: sequences that count upwards."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attnscale.data.batching import BlockLoader
from attnscale.data.gaussian import SequenceBatch
from attnscale.data.module import DataModule


class Counting(DataModule):
    """Sequences of numbers, one after the other."""

    def __init__(self, *, n: int, length: int, d_model: int) -> None:
        """Take the sizes."""
        super().__init__()
        self.x = torch.linspace(-1, 1, n * length * d_model).view(n, length, d_model)

    def _fetch(self) -> Callable[[Tensor], SequenceBatch]:
        return lambda indices: SequenceBatch(self.x[indices], 1.0)

    def train_dataloader(self) -> BlockLoader[SequenceBatch]:
        """Return the batches, four sequences each."""
        return self._training_blocks(
            lambda epoch: torch.split(torch.arange(len(self.x)), 4), self._fetch()
        )

    def val_dataloader(self) -> BlockLoader[SequenceBatch]:
        """Return all in one batch."""
        return self._evaluation_blocks([torch.arange(len(self.x))], self._fetch())

    test_dataloader = val_dataloader

    def train_lengths(self) -> npt.NDArray[np.int64]:
        """Return the lengths."""
        return np.full(len(self.x), self.x.shape[1], dtype=np.int64)

    def train_tokens(self) -> int:
        """Return the positions."""
        return self.x.shape[0] * self.x.shape[1]
'''
CALLBACK = '''"""A toy: counts the steps that it was shown."""

from pathlib import Path

from attnscale.task.callback import StepCallback


class StepCount(StepCallback):
    """Writes how many steps it has seen into a file."""

    def __init__(self, *, file: str) -> None:
        """Start at 0."""
        self.file, self.count = Path(file), 0

    def after_step(self) -> None:
        """Count."""
        self.count += 1
        self.file.write_text(str(self.count))
'''
TOYS = {
    "scale mode": {
        "src/attnscale/attention/scale/<name>.py": SCALE,
        "tests/attention/test_<name>.py": """from attnscale.attention import SCALES, choose_scale


def test_the_toy_is_a_mode() -> None:
    assert choose_scale("toy")(n_heads=2, d_k=4).learned_scale().tolist() == [1.0, 1.0]
""",
    },
    "data set": {
        "src/attnscale/data/<name>.py": DATA,
        "conf/data/<name>.yaml": (
            "_target_: attnscale.data.toy.Counting\nn: 12\nlength: 5\nd_model: ${model.d_model}\n"
        ),
        "tests/data/test_<name>.py": """from attnscale.data.toy import Counting


def test_the_toy_has_batches() -> None:
    assert Counting(n=8, length=2, d_model=3).train_dataloader().n_batches == 2
""",
    },
    "callback": {
        "src/attnscale/callbacks/<name>.py": CALLBACK,
        "conf/callbacks/<name>.yaml": (
            "toy:\n  _target_: attnscale.callbacks.toy.StepCount\n  file: ${folder}/toy.txt\n"
        ),
        "tests/callbacks/test_<name>.py": """from attnscale.callbacks.toy import StepCount


def test_the_toy_starts_at_zero() -> None:
    assert StepCount(file="x").count == 0
""",
    },
}


def named(kind: str) -> set[str]:
    """Return the paths to write and to touch that the document's row of a kind names."""
    (row,) = [line for line in DOCUMENT.splitlines() if line.startswith(f"| {kind} |")]
    _, _, write, touch, *_ = row.split("|")
    return {path for path in re.findall(r"`([^`]+)`", write + touch) if "/" in path}


def test_what_the_document_names_is_there() -> None:
    folders = ("src/", "conf/", "tests/", "docs/")
    names = {name for name in re.findall(r"`([^`\s]+)`", DOCUMENT) if name.startswith(folders)}
    missing = [n for n in sorted(names) if "<name>" not in n and not (ROOT / n).exists()]
    assert not missing
    # Lists are named in capitals; each is in one of these files.
    lists = set(re.findall(r"`([A-Z_]{4,})`", DOCUMENT))
    text = "".join(
        (ROOT / n).read_text(encoding="utf-8")
        for n in names
        if n.endswith(".py") and "<name>" not in n
    )
    assert {one for one in lists if not re.search(rf"^{one}\b", text, re.MULTILINE)} == set()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the tree with the toys added."""
    copy = tmp_path_factory.mktemp("tree")
    for part in ("src", "conf", "tests"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / part, copy / part, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", copy)
    for files in TOYS.values():
        for path, text in files.items():
            file = copy / path.replace("<name>", "toy")
            assert not file.exists()
            file.write_text(text, encoding="utf-8")
    registry = copy / REGISTRY
    text = registry.read_text(encoding="utf-8")
    for old, new in (("normalisation, scores\n", "normalisation, scores, toy\n"), *REGISTERED):
        assert text.count(old) == 1
        text = text.replace(old, new)
    registry.write_text(text, encoding="utf-8")
    return copy


@pytest.mark.parametrize("kind", TOYS)
def test_only_what_the_document_names_is_touched(kind: str) -> None:
    touched = set(TOYS[kind]) | ({REGISTRY} if kind == "scale mode" else set())
    optional = {"docs/metrics.md"}  # for what records a metric
    assert touched == named(kind) - optional


@pytest.mark.slow
def test_toys_train_a_step_from_the_command_line(tree: Path, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/mlflow.db"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "src.train", "attention.scale=toy"),
            *("attention.options.toy.power=0.4", "data=toy", "callbacks=[default,toy]"),
            *("trainer.max_steps=2", "callbacks.pictures=null", "threads=1"),
            *(f"folder={tmp_path}/run", f"tracking.uri={store}"),
        ],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "toy.txt").read_text() == "2"
    written = json.loads((tmp_path / "run" / "run.json").read_text())
    run = MlflowClient(store).get_run(written["run_id"])
    assert run.data.params["attention.options.toy.power"] == "0.4"
    assert run.data.params["data._target_"] == "attnscale.data.toy.Counting"
    learned = run.data.metrics["attention/layers.0.attention/learned_scale"]
    assert learned == pytest.approx(1.0, abs=0.01)
    assert learned != 1.0, "what the toy learns was not trained"


@pytest.mark.slow
def test_the_toys_own_tests_are_collected_and_pass(tree: Path) -> None:
    files = [path for toy in TOYS.values() for path in toy if path.startswith("tests/")]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *(path.replace("<name>", "toy") for path in files),
        ],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
