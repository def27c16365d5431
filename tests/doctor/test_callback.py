"""The doctor as a callback of a LightningModule that knows nothing of it."""

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader

import attnscale.callbacks
from tests.doctor.attention import D_K, D_MODEL, WAYS, Block, Core, N


class Strange(pl.LightningModule):
    """Somebody's module, with dropout."""

    def __init__(self, core: Core) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.block, self.drop = Block(core), nn.Dropout(0.1)

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        return (self.drop(self.block(batch)) - batch).square().mean()

    def validation_step(self, batch: Tensor, index: int) -> None:
        self.log("val_loss", (self.block(batch) - batch).square().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 1e-3)


def trained(core: Core, folder: Path, *callbacks: pl.Callback, **options: Any) -> Strange:
    data = torch.randn(24, N, D_MODEL, generator=torch.Generator().manual_seed(1))
    module = Strange(core)
    torch.manual_seed(2)
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=CSVLogger(folder, name="", version=""),
        callbacks=list(callbacks),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        **options,
    )
    rows: Any = data
    trainer.fit(module, DataLoader(rows, 4), DataLoader(rows[:4], 4))
    return module


pytestmark = pytest.mark.filterwarnings("ignore")


def test_training_is_the_same_to_the_bit_and_the_points_are_in_the_logger(tmp_path: Path) -> None:
    core = WAYS["eager"][0]
    doctor = attnscale.callbacks.Doctor(every=2, expect="sqrt")
    watched = trained(core, tmp_path / "a", doctor)
    plain = trained(core, tmp_path / "b")
    for one, other in zip(watched.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)
    header, *rows = (tmp_path / "a" / "metrics.csv").read_text().splitlines()
    column = header.split(",").index("attention/block.attention/scale")
    scales = [float(row.split(",")[column]) for row in rows if row.split(",")[column]]
    # Steps 0, 2 and 4 of six.
    assert scales == pytest.approx([D_K**-0.5] * 3, rel=1e-6)
    for name in ("entropy_norm", "logit_std_row", "logit_std_predicted", "head3/p_max"):
        assert f"attention/block.attention/{name}" in header.split(",")
    assert doctor.alarms == []


def test_a_scale_that_is_not_the_expected_one_is_an_alarm_once(tmp_path: Path) -> None:
    doctor = attnscale.callbacks.Doctor(every=1, expect="sqrt")
    trained(WAYS["eager, no factor"][0], tmp_path, doctor)
    (alarm,) = doctor.alarms
    assert alarm.startswith("FAIL block.attention: scale 1,")
    assert alarm.endswith("at step 0")


def test_accumulated_batches_are_looked_at_once_a_step(tmp_path: Path) -> None:
    doctor = attnscale.callbacks.Doctor(every=1, heads=False)
    trained(WAYS["eager"][0], tmp_path, doctor, accumulate_grad_batches=3)
    header, *rows = (tmp_path / "metrics.csv").read_text().splitlines()
    assert not any("/head" in name for name in header.split(","))
    column = header.split(",").index("attention/block.attention/scale")
    assert sum(bool(row.split(",")[column]) for row in rows) == 2


def test_an_interval_of_no_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="every=0"):
        attnscale.callbacks.Doctor(every=0)
