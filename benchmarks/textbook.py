"""The textbook experiment as public tutorials write it: DataLoader, Adam, nothing recorded.

The gradient norm of every parameter is read back each step. Prints seconds per step.
"""

import argparse
import json
import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Autoencoder(nn.Module):
    """Single-head self-attention and an output projection."""

    def __init__(self, d_model: int, d_k: int) -> None:
        super().__init__()
        self.query = nn.Linear(d_model, d_k, bias=False)
        self.key = nn.Linear(d_model, d_k, bias=False)
        self.value = nn.Linear(d_model, d_k, bias=False)
        self.output = nn.Linear(d_k, d_model, bias=False)
        self.d_k = d_k

    def forward(self, x: Tensor) -> Tensor:
        """Reconstruct x."""
        scores = self.query(x) @ self.key(x).transpose(-2, -1) / self.d_k**0.5
        reconstructed: Tensor = self.output(scores.softmax(dim=-1) @ self.value(x))
        return reconstructed


def train(*, epochs: int, d_model: int, d_k: int) -> dict[str, float]:
    """Train, and return seconds per step and the last loss."""
    torch.manual_seed(0)
    data = DataLoader(TensorDataset(torch.randn(500, 8, d_model)), batch_size=32, shuffle=True)
    model = Autoencoder(d_model, d_k)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.MSELoss()
    losses, norms = [], []
    started = time.perf_counter()
    for _ in range(epochs):
        for (x,) in data:
            optimizer.zero_grad()
            loss = criterion(model(x), x)
            loss.backward()
            norms.append([p.grad.norm().item() for p in model.parameters() if p.grad is not None])
            optimizer.step()
            losses.append(loss.item())
    return {"seconds_per_step": (time.perf_counter() - started) / len(losses), "loss": losses[-1]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--d-model", type=int, default=128)
    parser.add_argument("--d-k", type=int, default=64)
    options = parser.parse_args()
    print(json.dumps(train(epochs=options.epochs, d_model=options.d_model, d_k=options.d_k)))
