"""What a configuration may not name, wherever it comes from: one line, and nothing is called."""

from typing import Any

import pytest

from attnscale.config.section import plain
from attnscale.experiment import run
from tests.config.conftest import WAYS, Bench, Own, every_way

# FILE stands for a path that would exist if the target had been called.
ATTACKS: dict[str, dict[str, Any]] = {
    "method of a foreign class": {
        "_target_": "pathlib.Path.touch",
        "self": {"_target_": "pathlib.Path", "_args_": ["FILE"]},
    },
    "foreign class": {"_target_": "pathlib.Path"},
    "process": {"_target_": "subprocess.Popen", "args": ["touch", "FILE"]},
    "shell": {"_target_": "os.system", "command": "touch FILE"},
    "download": {"_target_": "torch.hub.load", "repo_or_dir": "FILE", "model": "x"},
    "exec": {"_target_": "builtins.exec", "_args_": ["open('FILE', 'w')"]},
    "eval": {"_target_": "builtins.eval", "_args_": ["open('FILE', 'w')"]},
    "method of Lightning": {
        "_target_": "pytorch_lightning.callbacks.ModelCheckpoint.load_state_dict"
    },
    "method of the project": {"_target_": "attnscale.callbacks.curves.Curves.state_dict"},
    "class an allowed module imports": {"_target_": "attnscale.callbacks.pictures.Path"},
    "library an allowed module imports": {"_target_": "attnscale.callbacks.progress.tqdm"},
    "sibling an allowed module imports": {"_target_": "attnscale.callbacks.curves.StepCallback"},
    "module an allowed module imports": {"_target_": "attnscale.callbacks.pictures.json.dumps"},
    "function of the project": {
        "_target_": "attnscale.data.batching.shuffled",
        "n": 3,
        "seed": 0,
        "epoch": 0,
    },
    "constant of the project": {"_target_": "attnscale.callbacks.pictures.BINS"},
    "part of the project that is not configured": {
        "_target_": "attnscale.experiment.lifecycle.run",
        "config": {},
    },
    "private neighbour of an allowed module": {"_target_": "torch.optim.adam.Adam"},
    "prefix of an allowed module": {"_target_": "torch.optimist.Adam"},
    "positional arguments": {"_target_": "torch.optim.Adam", "_args_": [[]]},
    "partial": {"_target_": "torch.optim.Adam", "_partial_": True},
    "not recursive": {"_target_": "torch.optim.Adam", "_recursive_": False},
    "converted": {"_target_": "torch.optim.Adam", "_convert_": "all"},
    "underscore of its own": {"_target_": "torch.optim.Adam", "_other_": 1},
    "underscore without a target": {"inner": {"_args_": [1]}},
    "module": {"_target_": "torch.optim"},
    "no path": {"_target_": "Adam"},
    "relative path": {"_target_": "..optim.Adam"},
    "empty": {"_target_": ""},
    "null": {"_target_": None},
    "list": {"_target_": ["torch.optim.Adam"]},
    "mapping": {"_target_": {"_target_": "torch.optim.Adam"}},
    "misspelt": {"_target_": "torch.optim.Adamm"},
}

OF_EACH_KIND = ("method of a foreign class", "shell", "constant of the project", "partial", "list")
"""The lock is one; what another way brings in is seen by a few."""

PLACES = (
    "callbacks.attention_stats.statistics",
    "callbacks.attack",
    "trainer.logger",
    "trainer.plugins",
    "trainer.profiler",
    "trainer.strategy",
    "trainer.max_time",
    "model.attack",
    "data.attack",
    "task.attack",
    "optimizer.attack",
    "attention.attack",
    "tags.attack",
)
"""Built or not, free or typed."""


def _at(value: Any, text: str) -> Any:
    if isinstance(value, dict):
        return {key: _at(inner, text) for key, inner in value.items()}
    if isinstance(value, list):
        return [_at(inner, text) for inner in value]
    return value.replace("FILE", text) if isinstance(value, str) else value


def refused(bench: Bench, way: str, key: str, node: Any) -> str:
    """Bring a node into a run, and return the one line that refuses it."""
    file = bench.path / "called"
    with pytest.raises(ValueError) as caught:  # noqa: PT011 -- the message is looked at by callers
        bench.bring(way)(key, _at(node, str(file)))
    text = str(caught.value)
    assert "\n" not in text
    assert not file.exists(), "it was called"
    assert not bench.folder.exists(), "a run was begun"
    assert not bench.store.exists(), "a run was recorded"
    return text


@pytest.mark.parametrize(
    ("way", "attack"),
    [
        *(("command line", attack) for attack in ATTACKS),
        *((way, attack) for way in WAYS[1:] for attack in OF_EACH_KIND),
    ],
)
def test_an_attack_is_refused(bench: Bench, way: str, attack: str) -> None:
    node = ATTACKS[attack]
    text = refused(bench, way, "callbacks.attention_stats.statistics", node)
    assert "callbacks.attention_stats.statistics." in text
    target = node.get("_target_")
    assert not isinstance(target, str) or target in text or set(node) - {"_target_"}


# Composition by itself refuses an unknown key of a typed section.
TYPED = {f"{section}.attack" for section in ("model", "data", "task", "optimizer", "attention")}


@pytest.mark.parametrize(
    ("way", "place"),
    [
        (way, place)
        for way in ("file", "resume", "translate")
        for place in PLACES
        if way != "file" or place not in TYPED
    ],
)
def test_every_section_is_bounded_at_every_depth(bench: Bench, way: str, place: str) -> None:
    attack = ATTACKS["method of a foreign class"]
    deep = [1, {"inner": [[attack]]}]
    text = refused(bench, way, place, {"deep": deep} if place.startswith("callbacks") else deep)
    assert f"{place}" in text
    assert "[1].inner[0][0]" in text
    assert "pathlib.Path" in text


@pytest.mark.parametrize("key", ["model", "data", "task", "optimizer"])
@every_way
def test_what_is_built_at_the_top_is_bounded_too(bench: Bench, way: str, key: str) -> None:
    text = refused(bench, way, f"{key}._target_", "torch.hub.load")
    assert f"{key}._target_=torch.hub.load: allowed are classes in attnscale.callbacks" in text


@every_way
def test_nothing_is_imported_that_is_not_allowed(bench: Bench, way: str, own: Own) -> None:
    text = refused(bench, way, "callbacks.toy", {"_target_": f"{own.name}.Toy"})
    assert text.endswith(f"; if it is your own: allow=[{own.name}]")
    assert not own.imported.exists()


@pytest.mark.parametrize("way", ["file", "resume", "translate", "evaluate"])
def test_a_value_of_allow_counts_nowhere_else(bench: Bench, way: str, own: Own) -> None:
    assert "allow=[" in refused(bench, way, "allow", [own.name])


def test_a_run_checks_the_checkpoint_that_it_resumes(bench: Bench) -> None:
    file = bench.path / "called"
    node = _at(ATTACKS["method of a foreign class"], str(file))
    with pytest.raises(ValueError, match=r"checkpoint=.*\._target_=pathlib\.Path\.touch: allowed"):
        bench.train_on("callbacks.attention_stats.statistics", node)
    assert not file.exists()


def test_the_library_reads_no_allow_from_a_configuration(bench: Bench, own: Own) -> None:
    config = plain(bench.compose()) | {"allow": [own.name]}
    config["callbacks"]["toy"] = {"_target_": f"{own.name}.Toy"}
    with pytest.raises(ValueError, match=r"allow=.*counts on the command line only"):
        run(config, allow=(own.name,))
    with pytest.raises(ValueError, match="counts on the command line only"):
        bench.compose(f"allow=[{own.name}]")
    assert not own.imported.exists()


@pytest.mark.parametrize("name", ["function", "Toy.method", "Path", "missing"])
def test_allow_permits_classes_that_the_package_defines(bench: Bench, own: Own, name: str) -> None:
    override = f"+callbacks.toy._target_={own.name}.{name}"
    config = bench.compose(override, allow=(own.name,))
    with pytest.raises(ValueError, match=rf"callbacks\.toy\._target_={own.name}\.{name}: "):
        run(config, allow=(own.name,))
    assert not own.called.exists()
    assert not bench.folder.exists()


def test_allow_of_a_library_permits_no_function(bench: Bench) -> None:
    file = bench.path / "called"
    node = f"{{_target_: os.system, command: 'touch {file}'}}"
    config = bench.compose(f"+callbacks.toy={node}", allow=("os",))
    with pytest.raises(ValueError, match=r"os\.system: is no class"):
        run(config, allow=("os",))
    assert not file.exists()
