"""Errors of Hydra and OmegaConf in a line for the person who made the mistake."""

import difflib
import re
from collections.abc import Iterator

from hydra.errors import OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from attnscale.sweep.overrides import in_words


def _chain(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _of_a_key(error: BaseException) -> str | None:
    """Return an error that OmegaConf has with a key in a line, or None if it is none."""
    for cause in _chain(error):
        if not isinstance(cause, OmegaConfBaseException) or not cause.full_key:
            continue
        key = cause.full_key
        if isinstance(cause, ConfigKeyError | ConfigAttributeError):
            return f"{key}: no such key{_known(cause)}"
        return f"{key}: {str(cause.msg or cause).splitlines()[0]}"
    return None


def explain(error: BaseException) -> str:
    """Return an error of Hydra's or OmegaConf's in a line: the key, the value, what is allowed."""
    if words := _of_a_key(error):
        return words
    if isinstance(error, OverrideParseException):
        return in_words(error)
    if "'hydra/launcher/submitit_slurm'" in str(error):
        return "hydra/launcher=slurm: not installed; pip install 'attnscale[slurm]'"
    missing = re.search(r"Could not find '([^']+)/([^'/]+)'", str(error))
    if missing:
        listed = str(error).partition("Available options in")[2].partition("Config search path")[0]
        names = ", ".join(line.strip() for line in listed.splitlines()[1:] if line.strip())
        return f"{missing[1]}={missing[2]}: no such choice. Allowed: {names}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[:1] + [line for line in lines[1:] if not line.startswith("full_key")])


def _known(error: OmegaConfBaseException) -> str:
    parent = error.parent_node
    if not isinstance(parent, DictConfig):
        return ""
    names = [str(name) for name in parent if not str(name).startswith("_")]
    near = difflib.get_close_matches(str(error.key).lower(), names, n=1)
    hint = f". Did you mean {near[0]!r}?" if near else "."
    if not names or str(error.full_key).startswith("tags."):
        return f"; +{error.full_key}=… adds it"
    return f"{hint} Allowed: {', '.join(names)}"
