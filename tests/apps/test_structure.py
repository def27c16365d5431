"""Rules of the house that no linter knows."""

import ast
import inspect
from pathlib import Path

import pytest
import pytorch_lightning as pl
import yaml
from hydra.utils import get_object

ROOT = Path(__file__).resolve().parents[2]
APPS = sorted(path for path in (ROOT / "src").glob("*.py") if path.name != "__init__.py")
BUILT = sorted(
    p
    for p in (ROOT / "conf").rglob("*.yaml")
    # Hydra makes its plugins itself, from names of its own.
    if "_target_:" in p.read_text() and "launcher" not in p.parts
)


@pytest.mark.parametrize("path", APPS, ids=lambda p: p.name)
def test_an_app_holds_only_main(path: Path) -> None:
    """A file in src/ can be imported under two names, so state in it would exist twice."""
    tree = ast.parse(path.read_text())
    allowed = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.If, ast.Expr)
    assert all(isinstance(node, allowed) for node in tree.body)
    assert [n.name for n in tree.body if isinstance(n, ast.FunctionDef)] == ["main"]
    assert len(path.read_text().splitlines()) < 40


def test_the_trainer_has_every_key_of_lightnings() -> None:
    keys = set(yaml.safe_load((ROOT / "conf/trainer/default.yaml").read_text())) - {"defaults"}
    assert keys == set(inspect.signature(pl.Trainer.__init__).parameters) - {"self"}


@pytest.mark.parametrize("path", BUILT, ids=lambda p: str(p.relative_to(ROOT / "conf")))
def test_every_key_is_a_parameter(path: Path) -> None:
    """No value that nobody reads, and no knob that no file shows."""
    read_elsewhere = {"schedule", "warmup_steps", "block", "max_epochs"}
    nodes = [yaml.safe_load(path.read_text())]
    while nodes:
        node = nodes.pop()
        if not isinstance(node, dict):
            continue
        nodes += list(node.values())
        if "_target_" not in node:
            continue
        signature = inspect.signature(get_object(node["_target_"]))
        keys = set(node) - {"_target_", "defaults"} - read_elsewhere
        names = set(signature.parameters)
        takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
        assert keys <= names or takes_any, keys - names


def test_a_folder_in_conf_has_its_package() -> None:
    own = {"attention", "model", "task", "data", "callbacks", "tracking", "experiment"}
    folders = {p.name for p in (ROOT / "conf").iterdir() if p.is_dir()}
    assert own <= folders
    assert all((ROOT / "src/attnscale" / name).is_dir() for name in own)


def test_a_text_file_has_its_encoding() -> None:
    """What is left to the system is another one on Windows."""
    calls = [
        (str(path), node.lineno)
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("read_text", "write_text")
        and not any(keyword.arg == "encoding" for keyword in node.keywords)
    ]
    assert calls == []


def test_no_file_is_long() -> None:
    lengths = {p: len(p.read_text().splitlines()) for p in (ROOT / "src").rglob("*.py")}
    assert {str(p): n for p, n in lengths.items() if n > 300} == {}
