"""What Hydra itself builds from a configuration, bounded before Hydra builds it.

``hydra.callbacks``, ``hydra.launcher`` and ``hydra.sweeper`` hold targets, and the two logging
sections name classes and factories in the way of :mod:`logging.config`. Any file that is composed
can set them, and Hydra builds them before an app sees its configuration. Composition is the one
door that all of them come through; Hydra has no hook there, so its method is wrapped.
"""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attnscale.config.build import check_budget, choices_of
from attnscale.config.targets import below
from attnscale.system import expand_home
from attnscale.tracking.address import public, without_secrets

BUILT = ("callbacks", "launcher", "sweeper", "job_logging", "hydra_logging")
"""Sections of ``hydra`` that become objects."""

PLUGINS = ("hydra.launcher._target_", "hydra.sweeper._target_")
"""Hydra itself refuses what is no registered plug-in here."""

NAMED = {
    "_target_": ("attnscale.sweep.hooks.SweepHook",),
    "class": ("logging.StreamHandler", "logging.FileHandler", "logging.NullHandler"),
    "()": ("attnscale.cli.screen.ScreenFilter",),
}
"""Keys that name what is called, with the names that are allowed."""

FOLDERS = (("run", "dir"), ("sweep", "dir"), ("launcher", "submitit_folder"))
"""(section, key) of where Hydra itself writes."""

STREAMS = ("ext://sys.stdout", "ext://sys.stderr")


def _values(
    config: DictConfig | ListConfig, place: str, names: Sequence[str] | None = None
) -> Iterator[tuple[str, str, Any]]:
    """Yield (place, key, value) of each value below a section, or below some of its names."""
    raw: Any = OmegaConf.to_container(config, resolve=False)
    section: Any = config
    keys = range(len(section)) if isinstance(config, ListConfig) else list(section)
    for key in keys if names is None else [name for name in names if name in keys]:
        here, written = f"{place}.{key}", raw[key]
        try:
            value = section[key]
        except OmegaConfBaseException:
            value = written
            if isinstance(value, str) and value.startswith("${") and value.endswith("}"):
                raise ValueError(f"{here}={value}: may stand for a section; write it out") from None
        if isinstance(value, DictConfig | ListConfig):
            if isinstance(written, str):
                raise ValueError(f"{here}={written}: stands for a section; write it out")
            yield from _values(value, here)
        else:
            yield here, str(key), value


def check_hydra(config: DictConfig, n_overrides: int, allow: Sequence[str]) -> None:
    """Check what Hydra will build, and that no file adds to the overrides of composition.

    Raises:
        ValueError: Naming the key and what is allowed.
    """
    check_budget(config)
    hydra = config.hydra
    if hydra.job.chdir:
        raise ValueError(
            "hydra.job.chdir=true: relative paths mean the folder of the command; leave it out, "
            "what a job writes is in its folder all the same"
        )
    if len(hydra.overrides.task) + len(hydra.overrides.hydra) != n_overrides:
        raise ValueError("hydra.overrides: are those of the command line, and not to be set")
    for place, key, value in _values(hydra, "hydra", BUILT):
        mine = any(below(str(value), package) for package in allow)
        if key in NAMED and place not in PLUGINS and value not in NAMED[key] and not mine:
            allowed = ", ".join(NAMED[key])
            raise ValueError(f"{place}={value}: allowed in this section is {allowed}")
        # The scheme imports what it names.
        if isinstance(value, str) and value.startswith("ext://") and value not in STREAMS:
            raise ValueError(f"{place}={value}: allowed are {', '.join(STREAMS)}")


def _shown_address(config: DictConfig) -> str | None:
    """Return the address to write down of a run store, if that differs from ``tracking.uri``."""
    try:
        uri = OmegaConf.select(config, "tracking.uri")
    except OmegaConfBaseException:
        # What a job alone can resolve.
        return None
    address_text = public(uri) if isinstance(uri, str) else uri
    return None if address_text == uri else address_text


def _with_address(text: str, address_text: str) -> str:
    return re.sub(
        r"^(\+{0,2}tracking\.uri=).*", lambda key: key[1] + json.dumps(address_text), text
    )


def cannot_write(error: Exception) -> str | None:
    """Return what a person can do about a folder that Hydra cannot write; None for other errors."""
    if not isinstance(error, OSError) or error.filename is None:
        return None
    return (
        f"{error.filename}: cannot be written: {error.strerror}; hydra.run.dir=FOLDER (of a sweep "
        "hydra.sweep.dir=FOLDER) and tracking.uri=sqlite:////FOLDER/mlflow.db move what is written"
    )


def _expand_homes(config: DictConfig) -> None:
    # As it is written: a path may hold what only a job can resolve.
    written: Any = OmegaConf.to_container(config.hydra, resolve=False)
    for section, name in FOLDERS:
        if path := written[section].get(name):
            config.hydra[section][name] = expand_home(f"hydra.{section}.{name}", path)


@contextmanager
def bounded_hydra(allow: Sequence[str] = ()) -> Iterator[None]:
    """Check the section ``hydra`` of whatever Hydra composes inside the block; see above.

    A login in ``tracking.uri`` goes into the environment, before Hydra writes it down.
    """
    load = ConfigLoaderImpl.load_configuration

    def checked(
        self: ConfigLoaderImpl,
        config_name: str | None,
        overrides: list[str],
        *args: Any,
        **keys: Any,
    ) -> DictConfig:
        for override in overrides:
            group, _, value = override.partition("=")
            if value == "null" and (names := choices_of(group)):
                raise ValueError(f"{override}: allowed are {', '.join(names)}; or leave it out")
        # Hydra adds to the list that it is given.
        n_overrides = len(overrides)
        config = load(self, config_name, overrides, *args, **keys)
        if address_text := _shown_address(config):
            # Composed again, so that Hydra writes down neither the address nor its override.
            for arguments in (overrides, sys.argv):
                arguments[:] = [_with_address(text, address_text) for text in arguments]
            config = load(self, config_name, overrides[:n_overrides], *args, **keys)
            config.tracking.uri = address_text
        address = OmegaConf.select(config, "data.address")
        if isinstance(address, str) and without_secrets(address) != address:
            raise ValueError(
                "data.address: takes no login and no query, which would be written down with the "
                "run; download the files and give data.dir=PATH"
            )
        check_hydra(config, n_overrides, allow)
        _expand_homes(config)
        return config

    ConfigLoaderImpl.load_configuration = checked  # type: ignore[method-assign]
    try:
        yield
    finally:
        ConfigLoaderImpl.load_configuration = load  # type: ignore[method-assign]
