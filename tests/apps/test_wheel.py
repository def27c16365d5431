"""The package as somebody installs it, beside a foreign package called src."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROBE = """
import attnscale, src, sys
from attnscale.attention import MultiHeadAttention
import torch
assert "site-packages" in attnscale.__file__, attnscale.__file__
assert src.FOREIGN
x = torch.randn(2, 5, 8)
made = MultiHeadAttention(d_model=8, n_heads=2, d_k=3, d_v=5, scale="sqrt")
print(made(x).shape)
import attnscale.experiment, attnscale.cli.app
"""


def built_wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    built = subprocess.run(
        [*command, "--outdir", str(folder), str(ROOT)], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.mark.slow
def test_the_wheel_installs_clean(tmp_path: Path) -> None:
    wheel = built_wheel(tmp_path)
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"attnscale"}
    assert "attnscale/py.typed" in names
    templates = ("page.css", "page.html.j2", "page.js", "table.html.j2")
    assert {f"attnscale/figures/templates/{name}" for name in templates} <= set(names)
    # A clean environment that sees these libraries, but not the editable install: that is found
    # through a .pth file, and those are read in an environment's own folder only.
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    site = next((tmp_path / "env" / "lib").glob("python*")) / "site-packages"
    install = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        str(wheel),
    ]
    subprocess.run(install, check=True, capture_output=True)
    (site / "libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    foreign = tmp_path / "foreign" / "src"
    foreign.mkdir(parents=True)
    (foreign / "__init__.py").write_text("FOREIGN = True\n")
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    probe = subprocess.run(
        [str(python), "-c", PROBE],
        cwd=tmp_path,
        env={**kept, "PYTHONPATH": str(foreign.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert probe.returncode == 0, probe.stderr
    assert "torch.Size([2, 5, 8])" in probe.stdout


PLANTED = """
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
"""


@pytest.mark.slow
def test_the_doctor_of_the_wheel_needs_torch_and_jaxtyping_alone(tmp_path: Path) -> None:
    wheel = built_wheel(tmp_path)
    venv.create(tmp_path / "env", with_pip=True)
    binaries = tmp_path / "env" / "bin"
    install = [str(binaries / "python"), "-m", "pip", "install", "--quiet"]
    constraints = ("-c", str(ROOT / "constraints.txt"))
    bare = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    for words in ([*constraints, "torch", "jaxtyping"], ["--no-deps", str(wheel)]):
        subprocess.run([*install, *words], check=True, capture_output=True, env=bare)
    (tmp_path / "mine.py").write_text(PLANTED)
    done = subprocess.run(
        [
            str(binaries / "attnscale-doctor"),
            "model=mine.py:Twice",
            "batch=mine.py:batch",
            "expect=sqrt",
        ],
        cwd=tmp_path,
        env=bare,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "1/d_k: scaled twice" in done.stdout) == (1, True), done.stderr
