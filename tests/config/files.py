"""Experiment files that reach for more than they may, and the words that refuse each."""

from pathlib import Path
from typing import Any


def touch(file: Path) -> dict[str, Any]:
    path = {"_target_": "pathlib.Path", "_args_": [str(file)]}
    return {"_target_": "pathlib.Path.touch", "self": path}


FILES: dict[str, tuple[dict[str, Any], str]] = {
    "a node": (
        {"callbacks": {"attention_stats": {"statistics": "CALL"}}},
        "callbacks.attention_stats.statistics._target_=pathlib.Path.touch",
    ),
    "allow": ({"allow": ["ownpackage"]}, "allow=[ownpackage]: counts on the command line only"),
    "allow of a sweep": (
        {"hydra": {"sweeper": {"params": {"allow": "[ownpackage]"}}}},
        "hydra.sweeper.params.allow: counts on the command line only",
    ),
    "a command line": (
        {"allow": ["ownpackage"], "hydra": {"overrides": {"task": ["allow=[ownpackage]"]}}},
        "hydra.overrides: are those of the command line",
    ),
    "a callback of Hydra": (
        {"hydra": {"callbacks": {"x": "CALL"}}},
        "hydra.callbacks.x._target_=pathlib.Path.touch: allowed in this section is",
    ),
    "a callback of Hydra by reference": (
        {"tags": {"x": 1}, "hydra": {"callbacks": {"x": "${callbacks.curves}"}}},
        "hydra.callbacks.x=${callbacks.curves}: stands for a section",
    ),
    "inside the sweeper": (
        {"hydra": {"sweeper": {"params": {"x": "CALL"}}}},
        "hydra.sweeper.params.x._target_=pathlib.Path.touch",
    ),
    "a factory of logging": (
        {"hydra": {"job_logging": {"filters": {"x": {"()": "pathlib.Path.touch"}}}}},
        "hydra.job_logging.filters.x.()=pathlib.Path.touch: allowed in this section is",
    ),
    "a class of logging": (
        {"hydra": {"job_logging": {"handlers": {"console": {"class": "os.system"}}}}},
        "hydra.job_logging.handlers.console.class=os.system",
    ),
    "an import of logging": (
        {"hydra": {"hydra_logging": {"handlers": {"console": {"stream": "ext://antigravity"}}}}},
        "stream=ext://antigravity: allowed are ext://sys.stdout",
    ),
}


def with_call(value: Any, file: Path) -> Any:
    """Return a content with a target that would make the file in place of CALL."""
    if isinstance(value, dict):
        return {key: with_call(inner, file) for key, inner in value.items()}
    return touch(file) if value == "CALL" else value
