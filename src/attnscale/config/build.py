"""From the command line to the configuration's objects: composition types, project paths.

What a ``_target_`` in it may be, and how it is called, is in ``config/targets.py``.
"""

import os
import re
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.version import VersionBase
from omegaconf import DictConfig, OmegaConf

from attnscale.config.app_schema import APP_GROUPS
from attnscale.config.choice_schema import AttentionConfig
from attnscale.config.schema import GROUPS, TrainConfig
from attnscale.config.section import typed
from attnscale.config.targets import NO_ALLOWANCE, Targets
from attnscale.system import expand_home
from attnscale.tracking.address import public

T = TypeVar("T")

LAUNCH_FILES = {"outputs": "job.json", "multirun": "sweep.json"}
"""The file that makes a folder one of a launch."""

RUN_ID_FILES = ("sweep.json", "run.json")
_COMPOSING = threading.Lock()

PATHS = frozenset(
    {
        *("cache", "checkpoint", "default_root_dir", "dir", "dirpath", "docs", "file", "filename"),
        *("folder", "input", "output", "path", "root", "save_dir"),
    }
)
"""Last words of the keys that are paths, of the apps and of classes that they may name."""


def project_root() -> Path:
    """Return the checkout that this package comes from, or the current folder for a wheel."""
    checkout = Path(__file__).resolve().parents[3]
    return checkout if (checkout / "conf" / "train.yaml").is_file() else Path.cwd()


def shown_path(path: str | Path) -> str:
    """Return a path as it can be pasted: relative to the current folder where that is shorter."""
    relative, whole = os.path.relpath(path), str(Path(path))
    return whole if relative.startswith("..") else min(whole, relative, key=len)


def shortened(text: str, length: int) -> str:
    """Return a text cut to a length, with a mark where it was cut."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def check_budget(config: DictConfig) -> None:
    """Check that a budget was chosen where an experiment has them, and nowhere else.

    Args:
        config: As composed; interpolations of a budget's values lead nowhere if this fails.

    Raises:
        ValueError: Naming what is allowed.
    """
    budget, budgets = config.get("budget"), config.get("budgets") or {}
    if budgets and budget not in budgets:
        raise ValueError(f"budget={budget}: this experiment has {', '.join(map(str, budgets))}")
    if budget is not None and not budgets:
        files = sorted((project_root() / "conf" / "experiment").glob("claim_*.yaml"))
        raise ValueError(
            f"budget={budget}: allowed with an experiment that has budgets: "
            f"{', '.join(file.stem for file in files)}"
        )


def with_homes(value: Any, place: str = "") -> Any:
    """Return a plain configuration with ``~`` expanded in every path; ``tags`` are free text.

    Args:
        value: The configuration, or what stands at a place in it.
        place: Dotted key.

    Raises:
        ValueError: Naming the key, if there is no such home folder.
    """
    if isinstance(value, dict) and place != "tags":
        return {k: with_homes(v, f"{place}.{k}" if place else str(k)) for k, v in value.items()}
    if isinstance(value, list):
        return [with_homes(inner, place) for inner in value]
    is_path = isinstance(value, str) and place.rpartition(".")[2] in PATHS
    return expand_home(place, value) if is_path else value


def resolve(config: DictConfig, targets: Targets = NO_ALLOWANCE) -> dict[str, Any]:
    """Resolve a composed configuration without ``hydra`` into plain dictionaries, lists and values.

    The names of its targets are checked, without importing anything; a login in ``tracking.uri``
    goes into the environment. ``allow`` and ``budgets`` are
    left out: they are not part of what a run is.

    Raises:
        ValueError: If a target is not allowed, if ``allow`` was set anywhere but on the command
            line, or as :func:`check_budget` and :func:`with_homes`.
        OmegaConfBaseException: If a value is missing or an interpolation leads nowhere.
    """
    check_budget(config)
    container = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(container, dict)
    values: dict[str, Any] = with_homes({str(key): value for key, value in container.items()})
    values.pop("budgets", None)
    composed = values.pop("allow", [])
    if list(composed) != list(targets.allow):
        raise ValueError(
            f"allow=[{', '.join(map(str, composed))}]: counts on the command line only, which says "
            f"allow=[{', '.join(targets.allow)}]"
        )
    targets.check_names(values)
    if (tracking := values.get("tracking")) and tracking["uri"] is not None:
        tracking["uri"] = public(tracking["uri"])
    return values


def to_object(config: DictConfig, kind: type[T], targets: Targets = NO_ALLOWANCE) -> T:
    """Return a composed configuration as the object that the program reads; see `resolve`."""
    return typed(kind, resolve(config, targets))


def compose(overrides: Sequence[str], *, folder: Path, allow: Sequence[str] = ()) -> TrainConfig:
    """Compose the configuration of a run without Hydra's command line.

    For programs, notebooks and threads: as often as wanted, whatever state Hydra is in, which is
    left as it was.

    Args:
        overrides: As on the command line, such as ``["attention.scale=none", "model.d_k=16"]``.
        folder: Where the run writes.
        allow: Packages whose classes it may name; :func:`attnscale.experiment.run` wants them too.

    Raises:
        HydraException: If an override does not fit.
        ValueError: If a target is not allowed.
    """
    register()
    targets = Targets(tuple(allow))
    own = [f"allow=[{','.join(targets.allow)}]"] if targets.allow else []
    with _COMPOSING:
        # Hydra composes for one program at a time: what an earlier cell initialised is put aside.
        instances: dict[type, Any] = Singleton._instances
        earlier = {kind: instances.pop(kind, None) for kind in (GlobalHydra, VersionBase)}
        try:
            with initialize_config_dir(str(project_root() / "conf"), version_base="1.3"):
                composed = hydra_compose("train", [*overrides, *own])
        finally:
            for kind, instance in earlier.items():
                instances.pop(kind, None)
                instances |= {} if instance is None else {kind: instance}
    # As it stands, without Hydra's grammar of values.
    composed.folder = str(folder)
    return to_object(composed, TrainConfig, targets)


def choices_of(group: str) -> list[str]:
    """Return the choices of a group of ``conf/``; none for what is no group."""
    return sorted(file.stem for file in (project_root() / "conf" / group).glob("*.yaml"))


def choices() -> str:
    """Return a line for each group of ``conf/`` with its choices, for the help text."""
    lines = [
        f"  {folder.name + '=':14}{', '.join(names)}"
        for folder in sorted((project_root() / "conf").iterdir())
        if (names := choices_of(folder.name))
    ]
    return "\n".join(lines).strip()


def _output_folder() -> str:
    """Return the folder that Hydra has made for a job of the command line."""
    if not HydraConfig.initialized():
        raise ValueError(
            "folder is missing: give folder=FOLDER, or let attnscale.config.build.compose"
            "(overrides, folder=FOLDER) compose"
        )
    return HydraConfig.get().runtime.output_dir


def register() -> None:
    """Register types and resolvers; may be called repeatedly."""
    from attnscale.attention.scale import SCALES, all_options

    store = ConfigStore.instance()
    for (group, name), node in {**GROUPS, **APP_GROUPS}.items():
        store.store(group=group, name=name, node=node)
    # The options of the scale modes have their defaults in the modes' classes.
    options = AttentionConfig(options=all_options())
    store.store(group="schema/attention", name="default", node=options)
    OmegaConf.register_new_resolver("output_folder", _output_folder, replace=True)
    OmegaConf.register_new_resolver("project", lambda: str(project_root()), replace=True)
    OmegaConf.register_new_resolver("scale_modes", lambda: ", ".join(SCALES), replace=True)
    OmegaConf.register_new_resolver("choices", choices, replace=True)
    OmegaConf.register_new_resolver(
        "variable", lambda name, other: os.environ.get(name) or other, replace=True
    )
    # One id per launch: Hydra copies the cache from the sweep to its jobs.
    OmegaConf.register_new_resolver("launch_id", launch_id, replace=True, use_cache=True)
    OmegaConf.register_new_resolver("launch_folder", launch_folder, replace=True, use_cache=True)
    OmegaConf.register_new_resolver("hydra_folder", hydra_folder, replace=True, use_cache=True)


def launch_id() -> str:
    """Return a name for a launch: when, and a mark that no other has."""
    return f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{os.getpid():x}{uuid.uuid4().hex[:4]}"


def hydra_folder(resume: str | None) -> str:
    """Return the folder of Hydra's own files of a run: one that goes on keeps those there are."""
    name, attempt = ".hydra", 1
    try:
        folder = Path(launch_folder("outputs", resume))
    except ValueError:
        # It is a sweep, whose jobs have folders of their own.
        return name
    while (folder / name).exists():
        attempt += 1
        name = f".hydra_{attempt}"
    return name


def launch_folder(kind: str, resume: str | None) -> str:
    """Return the folder of a launch: a new one, or that of the launch that goes on.

    Args:
        kind: "outputs" for single runs, "multirun" for sweeps.
        resume: None; "last" for the newest; or its name, folder, or the id of one of its runs.

    Raises:
        ValueError: If there is none.
    """
    root = project_root() / kind
    if resume is None:
        return str(root / launch_id())
    if resume == "last":
        files = root.glob(f"*/{LAUNCH_FILES[kind]}")
        newest = max(files, key=lambda file: file.stat().st_mtime, default=None)
        if newest is None:
            raise ValueError(f"resume=last: there is nothing in {root}")
        return str(newest.parent)
    for folder in (root / resume, Path(resume)):
        if (folder / LAUNCH_FILES[kind]).is_file():
            return str(folder.resolve())
    if re.fullmatch("[0-9a-f]{32}", resume):
        for file in root.rglob("*.json"):
            if file.name in RUN_ID_FILES and resume in file.read_text(encoding="utf-8"):
                return str(root / file.relative_to(root).parts[0])
    raise ValueError(f"resume={resume}: no such {'sweep' if kind == 'multirun' else 'run'}")
