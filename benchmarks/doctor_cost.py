"""What a watched pass costs, fused and eager: 12 layers, 768 wide, 512 tokens; and a long input.

Alternating with unwatched passes, on a quiet machine: python -m benchmarks.doctor_cost. Each peak
is of a process of its own.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import time

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from attnscale.doctor import examine

WIDTH, N_HEADS, N_LAYERS = 768, 12, 12
ROUNDS = 5


class Layer(nn.Module):
    """A pre-norm layer of an encoder."""

    def __init__(self, *, eager: bool) -> None:
        """Make the weights."""
        super().__init__()
        self.eager = eager
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.o = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output, (batch, token, width)."""
        projected = self.qkv(self.norm(x)).unflatten(-1, (3, N_HEADS, -1))
        q, k, v = projected.permute(2, 0, 3, 1, 4)
        if self.eager:
            y = (q @ k.mT * q.shape[-1] ** -0.5).softmax(dim=-1) @ v
        else:
            y = scaled_dot_product_attention(q, k, v)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        output: Tensor = x + self.down(torch.relu(self.up(self.norm2(x))))
        return output


def model(*, eager: bool, layers: int = N_LAYERS) -> nn.Module:
    """Return a model with weights that are always the same."""
    torch.manual_seed(0)
    return nn.Sequential(*(Layer(eager=eager) for _ in range(layers))).eval()


def seconds(run: object) -> float:
    """Return the seconds of a call."""
    started = time.perf_counter()
    assert callable(run)
    run()
    return time.perf_counter() - started


def peak_mib() -> float:
    """Return the largest memory of this process so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@torch.no_grad()
def peak_of(*, eager: bool, tokens: int, layers: int, watched: bool) -> float:
    """Return the peak of a process that ran one pass, MiB."""
    network, x = model(eager=eager, layers=layers), torch.randn(1, tokens, WIDTH)
    if watched:
        examine(network, x)
    else:
        network(x)
    return peak_mib()


def _peak(*words: str) -> float:
    command = [sys.executable, "-m", "benchmarks.doctor_cost", "--peak", *words]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@torch.no_grad()
def main() -> None:
    """Print ratios of medians, and peaks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peak", nargs=4, metavar=("way", "tokens", "layers", "watched"))
    peak = parser.parse_args().peak
    if peak:
        way, tokens, layers, watched = peak
        sizes = {"tokens": int(tokens), "layers": int(layers)}
        print(peak_of(eager=way == "eager", watched=watched == "yes", **sizes))
        return
    for way in ("fused", "eager"):
        network, x = model(eager=way == "eager"), torch.randn(1, 512, WIDTH)
        plain, watched = [], []
        for _ in range(ROUNDS + 1):
            plain.append(seconds(lambda network=network, x=x: network(x)))
            watched.append(seconds(lambda network=network, x=x: examine(network, x)))
        ratio = statistics.median(watched[1:]) / statistics.median(plain[1:])
        peaks = [_peak(way, "512", str(N_LAYERS), answer) for answer in ("no", "yes")]
        print(
            f"{way}: {ratio:.2f} × the time of a pass (target 3), "
            f"{peaks[1] / peaks[0]:.2f} × its peak of {peaks[0]:.0f} MiB (target 1.3)"
        )
    peaks = [_peak("fused", "16384", "1", answer) for answer in ("no", "yes")]
    square = 16384**2 * 4 / 2**20
    print(
        f"16,384 tokens, fused, a layer: {peaks[1] - peaks[0]:.0f} MiB more than a pass; one n² "
        f"array of a head has {square:.0f} MiB"
    )


if __name__ == "__main__":
    main()
