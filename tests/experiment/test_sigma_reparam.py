"""σReparam in a run, and in what uses its checkpoint."""

from pathlib import Path
from typing import Any

import pytest
import torch

from attnscale.data.toy_translation import draw_pairs
from attnscale.experiment.checkpoints import load_checkpoint
from attnscale.experiment.translator import Translator

pytestmark = pytest.mark.slow

SHORT = (
    "trainer.max_epochs=2",
    "data.n_train=100",
    "data.n_val=30",
    "data.n_test=30",
    "model.feed_forward=16",
)
SMALL = (
    "model=transformer",
    "model.d_model=16",
    "model.d_k=8",
    "model.d_v=8",
    "model.n_heads=2",
    "model.n_layers=1",
    "model.feed_forward=16",
    "data.n_train=150",
    "data.n_val=31",
    "data.n_test=33",
    "trainer.max_epochs=2",
    "optimizer.lr=1e-2",
)


@pytest.mark.parametrize("which", ["qk", "all"])
def test_a_run_trains_and_resumes(lab: Any, which: str) -> None:
    changed = (*SHORT, f"attention.sigma_reparam={which}")
    plain, whole = lab.run(*SHORT), lab.run(*changed)
    first, second = (lab.curve(r.run_id, "train/loss") for r in (plain, whole))
    # The first steps start from the same function.
    assert second[0][1] == pytest.approx(first[0][1], rel=1e-5)
    assert [v for _, v in second[1:]] != pytest.approx([v for _, v in first[1:]], rel=1e-5)
    half = lab.run(*changed, "trainer.max_epochs=1")
    rest = lab.run(*changed, f"checkpoint={half.last_checkpoint}")
    assert lab.curve(rest.run_id, "train/loss") == second[4:]
    states = [load_checkpoint(str(r.last_checkpoint)).tensors for r in (whole, rest)]
    assert all(torch.equal(v, states[1][k]) for k, v in states[0].items())
    assert {k.split(".")[-1] for k in states[0]} >= {"gamma", "u", "v", "original"}


@pytest.mark.parametrize("tied", ["false", "true"])
@pytest.mark.parametrize("which", ["qk", "all"])
def test_a_checkpoint_translates(lab: Any, which: str, tied: str) -> None:
    result = lab.run(*SMALL, f"attention.sigma_reparam={which}", f"model.tied={tied}")
    translator = Translator(str(result.last_checkpoint))
    kept = load_checkpoint(str(result.last_checkpoint)).tensors
    for name, value in translator.model.state_dict().items():
        assert torch.equal(kept[f"model.{name}"], value), name
    # What the run translated at its end, from the checkpoint alone.
    sources = [a for a, _ in draw_pairs(150 + 31 + 33, 0)[-33:]]
    best = Translator(str(result.best_checkpoint))
    last, first = (list(t.lines(sources, 33)) for t in (translator, best))
    made = Path(result.folder, "test.en").read_text().splitlines()
    assert made in (first, last)
    assert len(set(made)) > 1


def test_half_precision_trains_like_full(lab: Any) -> None:
    changed = (*SHORT, "attention.sigma_reparam=all")
    full, half = (lab.run(*changed, f"trainer.precision={p}") for p in ("32-true", "bf16-mixed"))
    assert half.metrics["val/loss"] == pytest.approx(full.metrics["val/loss"], rel=0.02)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("attention.sigma_reparam=some",), r"attention\.sigma_reparam=some: allowed are"),
        (
            ("attention.sigma_reparam=qk", "attention.scale=none_equiv"),
            r"attention\.sigma_reparam=qk: the control none_equiv",
        ),
    ],
)
def test_a_mistake_names_its_key(lab: Any, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lab.run(*SHORT, *overrides)
