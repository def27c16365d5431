"""The doctor on a command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from attnscale.cli.doctor import main

SOURCE = """
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Linear(60, 60) for _ in range(3))

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (5, 12)).transpose(1, 2) for p in (self.q, self.k, self.v))
        return scaled_dot_product_attention(q * 12**-0.5, k, v)

def batch():
    return torch.randn(2, 20, 60)

def nothing():
    return nn.Linear(60, 60)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "somebody.py").write_text(SOURCE)
    return tmp_path / "somebody.py"


@pytest.mark.parametrize(
    ("model", "more", "status", "words"),
    [
        ("Twice", ["expect=sqrt"], 1, "1/d_k: scaled twice"),
        ("Twice", ["expect=0.0833333"], 0, "1 attention, 0 not visible"),
        ("Twice", [], 0, "WARN (model): scale 0.08333"),
        ("nothing", [], 2, "0 attentions"),
        ("Twice", ["dtype=bfloat16", "expect=none"], 1, "expected 1"),
    ],
)
def test_the_status_says_how_it_is(  # noqa: PLR0917 -- a row of the table each
    model: str,
    more: list[str],
    status: int,
    words: str,
    file: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([f"model={file}:{model}", f"batch={file}:batch", *more]) == status
    assert words in capsys.readouterr().out


def test_files_are_written_where_asked(file: Path, tmp_path: Path) -> None:
    files = (tmp_path / "r.json", tmp_path / "r.html")
    keys = (f"json={files[0]}", f"page={files[1]}")
    main([f"model={file}:Twice", f"batch={file}:batch", *keys])
    assert json.loads(files[0].read_text())["model"] == "Twice"
    assert "Twice" in files[1].read_text()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["modle=a"], "modle=a: allowed are model="),
        ([], "give one of model=, hf= and checkpoint="),
        (["model=a:b"], "batch is missing"),
        (["model=a:b", "batch=a:b", "dtype=int8"], "dtype=int8: allowed are float32"),
        (["model=json:b", "batch=a:b"], "model=json:b: module 'json' has no attribute 'b'"),
        (["model=nowhere:b", "batch=a:b"], "model=nowhere:b: No module named 'nowhere'"),
        (["model=b", "batch=a:b"], "model=b: must be module:name"),
        (["model=a:b", "batch=a:b", "expect=root"], "expect=root: must be sqrt, none or a number"),
    ],
)
def test_a_wrong_call_is_one_line(words: list[str], line: str) -> None:
    with pytest.raises(ValueError, match=f"^{line}"):
        main(words)


def test_it_imports_none_of_the_frameworks() -> None:
    probe = (
        "import sys, attnscale.doctor, attnscale.cli.doctor; heavy = {'hydra', 'omegaconf', "
        "'mlflow', 'pytorch_lightning', 'scipy', 'jinja2'}; print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
@pytest.mark.parametrize("module", ["attnscale.doctor", "src.doctor"])
def test_without_words_it_says_how(module: str) -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-m", module], capture_output=True, text=True, check=False, cwd=root
    )
    assert done.returncode == 3
    assert "batch=module:function" in done.stdout
    wrong = subprocess.run(
        [sys.executable, "-m", module, "x=1"], capture_output=True, text=True, check=False, cwd=root
    )
    assert (wrong.returncode, wrong.stderr.count("\n")) == (3, 1)
