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


@pytest.mark.slow
def test_the_wheel_installs_clean(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(tmp_path),
        str(ROOT),
    ]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("*.whl")
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
