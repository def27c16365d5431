"""The textbook experiment as a plain LightningModule, Lightning's MLFlowLogger at every step."""

import argparse
import json
import tempfile
import time
import warnings
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import MLFlowLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.textbook import Autoencoder


class Plain(pl.LightningModule):
    """Logs the loss and five gradient norms of each step."""

    def __init__(self, d_model: int, d_k: int) -> None:
        super().__init__()
        self.model = Autoencoder(d_model, d_k)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        """Return the loss."""
        (x,) = batch
        loss = nn.functional.mse_loss(self.model(x), x)
        self.log("train/loss", loss)
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Log the norms."""
        norms = {name: p.grad.norm() for name, p in self.named_parameters() if p.grad is not None}
        total = torch.stack(list(norms.values())).norm()
        self.log_dict({f"grad_norm/{name}": norm for name, norm in norms.items()})
        self.log("grad_norm/total", total)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def train(*, epochs: int, d_model: int, d_k: int, store: str) -> dict[str, float]:
    """Train, and return seconds per step."""
    torch.manual_seed(0)
    data = DataLoader(TensorDataset(torch.randn(500, 8, d_model)), batch_size=32, shuffle=True)
    with tempfile.TemporaryDirectory() as folder:
        logger = MLFlowLogger(
            "benchmark", tracking_uri=store, artifact_location=f"file://{folder}/artifacts"
        )
        options: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False}
        trainer = pl.Trainer(
            accelerator="cpu",
            max_epochs=epochs,
            logger=logger,
            log_every_n_steps=1,
            enable_checkpointing=False,
            default_root_dir=folder,
            **options,
        )
        _ = logger.experiment
        _ = logger.run_id
        started = time.perf_counter()
        trainer.fit(Plain(d_model, d_k), data)
        seconds = time.perf_counter() - started
    return {"seconds_per_step": seconds / trainer.global_step}


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--d-model", type=int, default=128)
    parser.add_argument("--d-k", type=int, default=64)
    parser.add_argument("--store", required=True)
    options = parser.parse_args()
    figures = train(
        epochs=options.epochs, d_model=options.d_model, d_k=options.d_k, store=options.store
    )
    print(json.dumps(figures))
