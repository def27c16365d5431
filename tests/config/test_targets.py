"""Bounded targets: what is built, of which kind, and how a mistake reads."""

import re
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import nn

from attnscale.callbacks.attention_stats import AttentionStats
from attnscale.callbacks.curves import Curves
from attnscale.config.targets import MODULES, NO_ALLOWANCE, Targets
from attnscale.experiment import run
from attnscale.experiment.checkpoints import load_checkpoint
from tests.config.conftest import Bench, Own

CURVES = {"_target_": "attnscale.callbacks.curves.Curves", "per_attention": True}


def test_a_class_is_called_with_its_keys_and_the_arguments() -> None:
    weight = nn.Parameter(torch.ones(2))
    node = {"_target_": "torch.optim.SGD", "lr": 0.25}
    optimizer = NO_ALLOWANCE.build(node, torch.optim.Optimizer, params=[weight])
    assert isinstance(optimizer, torch.optim.SGD)
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert optimizer.param_groups[0]["params"] == [weight]
    assert node == {"_target_": "torch.optim.SGD", "lr": 0.25}


def test_an_object_shares_no_list_with_the_configuration() -> None:
    names = ["entropy"]
    node = {
        "_target_": "attnscale.callbacks.attention_stats.AttentionStats",
        **{"every": 1, "heads_every": 1, "statistics": names},
    }
    config = {"callbacks": {"stats": node}}
    built = NO_ALLOWANCE.build(config["callbacks"]["stats"], AttentionStats)
    assert isinstance(built, pl.Callback)
    assert not any(value is names for value in vars(built).values())


@pytest.mark.parametrize(
    ("node", "kind", "words"),
    [
        ({"a": 1}, pl.Callback, "callbacks.x: _target_ is missing in {'a': 1}"),
        ("text", pl.Callback, "callbacks.x: 'text' is no mapping with _target_"),
        (CURVES | {"per_head": 1}, pl.Callback, "got an unexpected keyword argument 'per_head'"),
        (
            {"_target_": CURVES["_target_"]},
            pl.Callback,
            "callbacks.x._target_=attnscale.callbacks.curves.Curves: missing a required argument: "
            "'per_attention'",
        ),
        (CURVES, nn.Module, "callbacks.x._target_=attnscale.callbacks.curves.Curves: is no Module"),
        (CURVES | {1: 2}, pl.Callback, "keywords must be strings"),
    ],
)
def test_a_mistake_names_its_key(node: Any, kind: type, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        NO_ALLOWANCE.build(node, kind, "callbacks.x")


def test_a_node_inside_a_node_is_built(own: Own) -> None:
    targets = Targets((own.name,))
    inner = {"_target_": f"{own.name}.Inner", "words": [{"a": 1}, "b"]}
    node = {"_target_": f"{own.name}.Toy", "inner": [{"deep": inner}], "allow": 1}
    toy: Any = targets.build(node, pl.Callback)
    assert toy.inner[0]["deep"].words == [{"a": 1}, "b"]
    assert toy.allow == 1, "an argument of a class may have any name"


def test_nothing_is_called_if_an_inner_node_is_mistaken(
    own: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = Targets((own.name,))
    built: list[Any] = []
    module: Any = __import__(own.name)
    monkeypatch.setattr(module.Inner, "__init__", lambda self, *, words: built.append(words))
    right = {"_target_": f"{own.name}.Inner", "words": 1}
    for wrong in ({"_target_": f"{own.name}.Inner", "word": 1}, {"_target_": "os.system"}):
        with pytest.raises(ValueError, match=r"c\.inner\[1\]\._target_="):
            targets.build(
                {"_target_": f"{own.name}.Toy", "inner": [right, wrong]}, pl.Callback, "c"
            )
    assert built == []
    targets.build({"_target_": f"{own.name}.Toy", "inner": [right]}, pl.Callback, "c")
    assert built == [1]


@pytest.mark.parametrize("module", [name for name in MODULES if not name.startswith("attnscale")])
def test_the_libraries_define_classes_there(module: str) -> None:
    """Where a library moves its classes elsewhere, every target of it would be refused."""
    names = {
        "pytorch_lightning.callbacks": "EarlyStopping",
        "pytorch_lightning.loggers": "CSVLogger",
        "pytorch_lightning.plugins": "MixedPrecision",
        "pytorch_lightning.profilers": "SimpleProfiler",
        "pytorch_lightning.strategies": "DDPStrategy",
        "torch.optim": "RMSprop",
    }
    NO_ALLOWANCE.check({"x": {"_target_": f"{module}.{names[module]}"}})


@pytest.mark.parametrize("package", ["", "a b", "a-b", ".a", "a.", "os;", "a,b", 3])
def test_allow_takes_names_of_packages_only(package: Any) -> None:
    with pytest.raises(ValueError, match="must be names of packages"):
        Targets((package,))


def test_allow_is_no_prefix_of_a_name(own: Own) -> None:
    with pytest.raises(ValueError, match="allowed are classes in"):
        Targets((own.name[:-1],)).check({"x": {"_target_": f"{own.name}.Toy"}})
    assert not own.imported.exists()


def test_a_broken_module_is_one_line(own: Own) -> None:
    own.imported.parent.joinpath("packages", own.name, "__init__.py").write_text("1 / 0")
    with pytest.raises(ValueError, match="cannot be found: division by zero"):
        Targets((own.name,)).check({"x": {"_target_": f"{own.name}.Toy"}})


def test_targets_cannot_be_widened() -> None:
    with pytest.raises(AttributeError):
        NO_ALLOWANCE.allow = ("os",)  # type: ignore[misc]


def test_a_run_takes_an_own_callback_and_stores_no_allowance(bench: Bench, own: Own) -> None:
    config = bench.compose(
        *(f"+callbacks.toy._target_={own.name}.Toy", "callbacks.pictures=null"),
        *("trainer.enable_progress_bar=false", "data.n_train=40"),
        allow=(own.name,),
    )
    result = run(config, allow=(own.name,))
    assert own.started.exists()
    path = str(result.last_checkpoint)
    with pytest.raises(ValueError, match=rf"checkpoint=.*callbacks\.toy.*allow=\[{own.name}\]"):
        load_checkpoint(path)
    stored = load_checkpoint(path, Targets((own.name,))).config
    assert not hasattr(stored, "allow")
    assert stored.callbacks["toy"] == {"_target_": f"{own.name}.Toy"}


def test_lightnings_own_classes_can_be_configured(bench: Bench) -> None:
    folder = bench.path / "csv"
    config = bench.compose(
        "callbacks.pictures=null",
        *("trainer.enable_progress_bar=false", "data.n_train=40"),
        f"trainer.logger=[{{_target_: pytorch_lightning.loggers.CSVLogger, save_dir: {folder}}}]",
        "trainer.profiler={_target_: pytorch_lightning.profilers.SimpleProfiler}",
        "trainer.strategy={_target_: pytorch_lightning.strategies.SingleDeviceStrategy}",
        "trainer.callbacks=[{_target_: pytorch_lightning.callbacks.Timer}]",
    )
    assert run(config).steps == 2
    assert list(folder.rglob("metrics.csv"))


def test_a_kind_is_what_mypy_knows() -> None:
    curves = NO_ALLOWANCE.build(CURVES, Curves)
    assert curves.per_attention is True
