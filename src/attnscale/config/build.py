"""From configuration to objects: composition types, bounded ``_target_``, project paths.

Hydra's ``instantiate`` calls whatever a configuration names, and a test on the name alone is walked
around by a path through a module's imports. :func:`build` therefore checks the name, then where the
object that it resolves to was defined, then the arguments, and only then calls it.
"""

import inspect
import json
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from hydra.utils import get_object
from hydra.utils import instantiate as hydra_instantiate  # noqa: TID251 -- the one place
from omegaconf import DictConfig, OmegaConf

from attnscale.config.app_schema import APP_GROUPS
from attnscale.config.schema import GROUPS, AttentionConfig

ALLOWED_TARGETS = ("attnscale", "torch", "pytorch_lightning", "torchmetrics")


def project_root() -> Path:
    """Return the checkout that this package comes from, or the current folder for a wheel."""
    checkout = Path(__file__).resolve().parents[3]
    return checkout if (checkout / "conf" / "train.yaml").is_file() else Path.cwd()


def _inside(module: str) -> bool:
    return any(module == top or module.startswith(f"{top}.") for top in ALLOWED_TARGETS)


def build(node: Mapping[str, Any], **arguments: Any) -> Any:
    """Call what ``node["_target_"]`` names, with the node's other keys and ``arguments``.

    Args:
        node: A plain mapping with ``_target_`` and keyword arguments.
        arguments: Further keyword arguments, such as objects that a configuration cannot hold.

    Raises:
        ValueError: If the target is missing, unknown, defined outside the packages of
            :data:`ALLOWED_TARGETS`, or called with arguments that it does not have.
    """
    target = node.get("_target_")
    if not isinstance(target, str):
        raise ValueError(f"_target_ is missing in {dict(node)}")
    allowed = ", ".join(ALLOWED_TARGETS)
    if not _inside(target.rpartition(".")[0]):
        raise ValueError(f"_target_={target}: allowed are names in {allowed}")
    try:
        found = get_object(target)
    except (HydraException, ImportError, ValueError, AttributeError) as error:
        raise ValueError(f"_target_={target}: cannot be found: {error}") from error
    if not callable(found) or not _inside(getattr(found, "__module__", "") or ""):
        raise ValueError(f"_target_={target}: leads out of {allowed}")
    keys = {key: value for key, value in node.items() if key != "_target_"}
    try:
        inspect.signature(found).bind(**keys, **arguments)
    except TypeError as error:
        raise ValueError(f"_target_={target}: {error}") from error
    made = hydra_instantiate({"_target_": target, "_partial_": True, "_convert_": "all", **keys})
    return made(**arguments)


def plain(config: DictConfig) -> dict[str, Any]:
    """Resolve a composed configuration into plain dictionaries, lists and values.

    Raises:
        ValueError: If a value is missing or an interpolation leads nowhere.
    """
    made = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(made, dict)
    return {str(key): value for key, value in made.items()}


def compose(overrides: Sequence[str], *, folder: Path, root: str = "train") -> dict[str, Any]:
    """Compose a plain configuration without Hydra's command line.

    Args:
        overrides: As on the command line, such as ``["attention.scale=none", "model.d_k=16"]``.
        folder: Where the run writes.
        root: File in ``conf/`` to start from.

    Raises:
        HydraException: If an override does not fit.
    """
    register()
    with initialize_config_dir(str(project_root() / "conf"), version_base="1.3"):
        made = hydra_compose(root, [*overrides, f"folder={json.dumps(str(folder))}"])
    return plain(made)


def scale_modes() -> str:
    """Return the names that ``attention.scale`` takes, for the help text."""
    from attnscale.attention.scale import SCALES

    return ", ".join(SCALES)


def choices() -> str:
    """Return a line for each group of ``conf/`` with its choices, for the help text."""
    lines = []
    for folder in sorted((project_root() / "conf").iterdir()):
        names = sorted(file.stem for file in folder.glob("*.yaml")) if folder.is_dir() else []
        if names:
            lines.append(f"  {folder.name + '=':14}{', '.join(names)}")
    return "\n".join(lines).strip()


def register() -> None:
    """Register types and resolvers; may be called repeatedly."""
    from attnscale.attention.scale import all_options

    store = ConfigStore.instance()
    for (group, name), node in {**GROUPS, **APP_GROUPS}.items():
        store.store(group=group, name=name, node=node)
    # The options of the scale modes have their defaults in the modes' classes.
    options = AttentionConfig(options=all_options())
    store.store(group="schema/attention", name="default", node=options)
    OmegaConf.register_new_resolver("project", lambda: str(project_root()), replace=True)
    OmegaConf.register_new_resolver("scale_modes", scale_modes, replace=True)
    OmegaConf.register_new_resolver("choices", choices, replace=True)
    # One id per launch: Hydra copies the cache from the sweep to its jobs.
    OmegaConf.register_new_resolver(
        "launch_id",
        lambda: f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{os.getpid():x}{uuid.uuid4().hex[:4]}",
        replace=True,
        use_cache=True,
    )
