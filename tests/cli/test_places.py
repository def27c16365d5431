"""What an app writes into at its end is looked for before it works."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from attnscale.cli.checkpoint import translate
from attnscale.cli.report import draw_sweep, run_report
from attnscale.cli.theory import _theory
from attnscale.config.build import project_root, register


@pytest.mark.parametrize(
    ("app", "work", "key", "more"),
    [
        ("report", run_report, "folder", ("tracking.uri=http://127.0.0.1:1",)),
        ("curves", draw_sweep, "file", ("tracking.uri=http://127.0.0.1:1",)),
        ("translate", translate, "output", ("checkpoint=none.ckpt",)),
        ("theory", lambda config: _theory(config, None, ""), "docs", ("folder={}",)),
    ],
)
def test_a_place_that_cannot_be_written_is_told_first(
    app: str, work: Callable[[DictConfig], object], key: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    register()
    own = [text.format(tmp_path) for text in more]
    with initialize_config_dir(str(project_root() / "conf"), version_base="1.3"):
        config = compose(app, [f"{key}=/proc/nowhere/x", *own])
    with pytest.raises(ValueError, match=rf"^{key}=/proc/nowhere.*: cannot be written: ") as told:
        work(config)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("app", "work", "place"),
    [("report", run_report, "folder={}"), ("curves", draw_sweep, "file={}/curves.png")],
)
def test_a_store_that_is_not_there_is_told_by_what_reads_it(
    app: str, work: Callable[[DictConfig], object], place: str, tmp_path: Path
) -> None:
    register()
    uri = "http://127.0.0.1:1"
    with initialize_config_dir(str(project_root() / "conf"), version_base="1.3"):
        config = compose(app, [f"tracking.uri={uri}", place.format(tmp_path)])
    with pytest.raises(ValueError, match=f"^tracking.uri={uri}: the run store fails: "):
        work(config)
