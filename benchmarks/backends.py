"""Explicit against fused attention, forward and backward, by length, type and mask."""

import argparse
import statistics
import time
from functools import partial

import torch
from torch import Tensor

from attnscale.attention import attend, padding_keep

LENGTHS = (8, 16, 32, 64, 128, 256, 512)


def _step(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, backend: str) -> None:
    attend(q, k, v, keep=keep, backend=backend).sum().backward()  # type: ignore[no-untyped-call]


def main() -> None:
    """Time both in turn and print the ratio of the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    print("explicit ÷ fused, time of forward and backward (above 1: fused is faster)")
    print(
        f"{'length':>6}  "
        + "  ".join(f"{c:>12}" for c in ("fp32", "fp32 padded", "bf16", "bf16 padded"))
    )
    for length in LENGTHS:
        batch = max(1, 4096 // length)
        ratios = []
        for dtype in (torch.float32, torch.bfloat16):
            q, k, v = (
                torch.randn(
                    batch, 8, length, 32, dtype=dtype, device=options.device, requires_grad=True
                )
                for _ in range(3)
            )
            lengths = torch.randint(length // 2, length + 1, (batch,), device=options.device)
            for keep in (None, padding_keep(lengths, length)):
                seconds: dict[str, list[float]] = {"explicit": [], "fused": []}
                for _ in range(options.rounds):
                    for backend, times in seconds.items():
                        work = partial(_step, q, k, v, keep, backend)
                        started = time.perf_counter()
                        work()
                        if options.device != "cpu":
                            torch.cuda.synchronize()
                        times.append(time.perf_counter() - started)
                ratios.append(
                    statistics.median(seconds["explicit"]) / statistics.median(seconds["fused"])
                )
        print(f"{length:6}  " + "  ".join(f"{ratio:12.2f}" for ratio in ratios))


if __name__ == "__main__":
    main()
