"""What is no whole checkpoint of this project is refused in words."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attnscale.callbacks.checkpoint import WholeCheckpoints
from attnscale.config.build import compose
from attnscale.experiment import run
from attnscale.experiment.checkpoints import load_checkpoint
from attnscale.experiment.trainer import make_trainer
from tests.support.full_disk import largest_file


def _saved(path: Path, content: object = None) -> bytes:
    torch.save({"state_dict": {"w": torch.ones(1000)}} if content is None else content, path)
    return path.read_bytes()


def _damaged(path: Path) -> None:
    content = _saved(path)
    path.write_bytes(content.replace(torch.ones(1000).numpy().tobytes(), bytes(4000)))


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "half": (
        lambda p: p.write_bytes(_saved(p)[: p.stat().st_size // 2]),
        "not a whole checkpoint: its end is missing",
    ),
    "empty": (lambda p: p.touch(), "no checkpoint: it is empty"),
    "text": (
        lambda p: p.write_text("text\n"),
        "no checkpoint: it does not begin as a file of torch.save does",
    ),
    "folder": (lambda p: p.mkdir(), "is a folder; name the file in it, such as last.ckpt"),
    "other": (
        _saved,
        "no checkpoint of this project: it has not what attnscale keeps beside the weights",
    ),
    "list": (
        lambda p: _saved(p, [1]),
        "no checkpoint of this project: it has not what attnscale keeps beside the weights",
    ),
    "code": (
        lambda p: _saved(p, torch.nn.Linear(2, 2)),
        "not loaded: it holds more than tensors and plain values",
    ),
    "damaged": (_damaged, "damaged: bad/data/0 is not what was saved"),
}


@pytest.mark.parametrize(("write", "words"), BAD.values(), ids=BAD.keys())
def test_a_bad_checkpoint_is_refused_in_words(
    tmp_path: Path, write: Callable[[Path], object], words: str
) -> None:
    path = tmp_path / "bad.ckpt"
    write(path)
    with pytest.raises(ValueError, match="checkpoint=") as refusal:
        load_checkpoint(str(path))
    assert str(refusal.value) == f"checkpoint={path}: {words}"


def test_the_trainer_writes_whole_checkpoints(tmp_path: Path) -> None:
    lightning = make_trainer(compose(["callbacks=none"], folder=tmp_path), None)
    assert isinstance(lightning.strategy.checkpoint_io, WholeCheckpoints)


@pytest.mark.slow
def test_a_run_whose_checkpoint_does_not_fit_is_failed_and_leaves_none(lab: Any) -> None:
    config = lab.config(
        *("model.d_model=256", "model.d_k=256", "trainer.max_epochs=1"),
        *("trainer.limit_train_batches=1", "trainer.limit_val_batches=1"),
    )
    # Two matrices of Adam's and the weights: 3 MB; MLflow's database has 1.7.
    with largest_file(5 << 19), pytest.raises(OSError, match=r"best\.ckpt"):
        run(config)
    assert lab.last().info.status == "FAILED"
    assert "best.ckpt" in lab.last().data.tags["error"]
    assert list((Path(config.folder) / "checkpoints").iterdir()) == []
