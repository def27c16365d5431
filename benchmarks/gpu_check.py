"""What a CPU cannot show, in under 4 minutes on one GPU; says why where there is none.

``--device cpu`` runs the same code with small sizes, to see that it runs at all.
"""

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from attnscale.attention import SCALES, MultiHeadAttention, attend, choose_scale, padding_keep
from attnscale.config.build import compose
from attnscale.experiment import run
from attnscale.tracking.history import History
from attnscale.tracking.store import find_store

STATISTICS = {"length_p97_5": 26.0}
TOLERANCE = {torch.float32: 2e-3, torch.float16: 1e-2, torch.bfloat16: 6e-2}


@dataclass(frozen=True)
class Place:
    """Where the checks run, and how much there is to do.

    Attributes:
        device: As torch names it.
        trainer: The choice of ``trainer``.
        half: Half precision that scales the loss, where the device has one.
        corpus: Overrides of the run on the bundled corpus.
        min_bleu: What that run must reach on the test set.
    """

    device: str
    trainer: str
    half: str
    corpus: tuple[str, ...]
    min_bleu: float


CUDA = Place("cuda", "gpu", "16-mixed", ("trainer.max_epochs=8",), 60.0)
CPU = Place(
    "cpu",
    "cpu",
    "bf16-mixed",
    (
        *("trainer.max_steps=2", "data.n_train=64", "data.n_val=8", "data.n_test=8"),
        *("model.d_model=16", "model.d_k=4", "model.d_v=4", "model.feed_forward=16"),
        *("callbacks.pictures=null", "threads=1"),
    ),
    0.0,
)


def attention_for(name: str, place: Place) -> MultiHeadAttention:
    """Build an attention with a scale mode, its options as they are by default."""
    scale = choose_scale(name, statistics=STATISTICS)
    attention = MultiHeadAttention(d_model=96, n_heads=4, d_k=24, d_v=16, scale=scale)
    return attention.to(place.device)


def _vectors(place: Place, dtype: torch.dtype, size: int = 64) -> list[torch.Tensor]:
    return [
        torch.randn(3, 4, 37, size, device=place.device, dtype=dtype, requires_grad=True)
        for _ in range(3)
    ]


def masks_in_half_precision(place: Place) -> str:
    """Padding, causal and empty rows, scores around ±30: finite, and like fp32."""
    keep = padding_keep(torch.tensor([37, 20, 0], device=place.device), 37)
    worst = 0.0
    for dtype in (torch.float16, torch.bfloat16):
        for scale in (0.125, 0.5):
            q, k, v = _vectors(place, dtype)
            wide = attend(q.float(), k.float(), v.float(), scale=scale, keep=keep, causal=True)
            for backend in ("explicit", "fused"):
                out = attend(q, k, v, scale=scale, keep=keep, causal=True, backend=backend)
                out.sum().backward()  # type: ignore[no-untyped-call]
                assert out.isfinite().all()
                assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))
                assert not out[2].any()
                gap = float((out.float() - wide).detach().abs().max())
                assert gap < TOLERANCE[dtype], (dtype, backend, gap)
                worst = max(worst, gap)
    q, k, v = _vectors(place, torch.float16, size=1024)
    big = attend(q * 16, k * 16, v, scale="none", backend="explicit")
    assert big.isfinite().all()
    return f"largest gap to fp32 {worst:.1e}"


def fused_equals_explicit(place: Place) -> str:
    """Both backends, forward and gradients, every mode that may be fused."""
    worst, compared = 0.0, 0
    for name, mode in SCALES.items():
        if not mode.fusible:
            continue
        torch.manual_seed(0)
        module = attention_for(name, place)
        x = torch.randn(3, 37, 96, device=place.device)
        keep = padding_keep(torch.tensor([37, 20, 5], device=place.device), 37)
        results = []
        for backend in ("explicit", "fused"):
            module.backend = backend
            module.zero_grad()
            out = module(x, keep=keep, causal=True)
            out.square().mean().backward()
            assert module.q.weight.grad is not None
            results.append((out.detach(), module.q.weight.grad.clone()))
        for one, two in zip(*results, strict=True):
            gap = float((one - two).abs().max() / one.abs().max())
            assert gap < TOLERANCE[torch.float32], (name, gap)
            worst = max(worst, gap)
        compared += 1
    return f"{compared} modes, largest relative gap {worst:.1e}"


def norms_under_loss_scaling(place: Place) -> str:
    """The first gradient norm of a run in half precision is that of a 32-true run."""
    firsts = []
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/mlflow.db"
        for precision in ("32-true", place.half):
            result = run(
                compose(
                    [
                        *(f"trainer={place.trainer}", f"trainer.precision={precision}"),
                        *("trainer.max_steps=2", "callbacks.pictures=null", "threads=1"),
                        *(f"tracking.uri={store}", "trainer.enable_progress_bar=false"),
                    ],
                    folder=Path(folder, precision),
                )
            )
            history = History(find_store(store, Path(folder)), "attnscale")
            assert result.run_id is not None
            firsts.append(history.curve(result.run_id, "grad_norm/q")[0][1])
    ratio = firsts[1] / firsts[0]
    assert 0.95 < ratio < 1.05, firsts
    return f"{place.half} ÷ 32-true {ratio:.4f}"


def a_run_on_the_bundled_corpus(place: Place) -> str:
    """The Transformer learns the bundled corpus."""
    with tempfile.TemporaryDirectory() as folder:
        result = run(
            compose(
                [
                    *("model=transformer", f"trainer={place.trainer}", *place.corpus),
                    *("trainer.precision=bf16-mixed", f"tracking.uri=sqlite:///{folder}/mlflow.db"),
                    "trainer.enable_progress_bar=false",
                ],
                folder=Path(folder),
            )
        )
    bleu = result.metrics["test/bleu"]
    assert bleu >= place.min_bleu, bleu
    return (
        f"test BLEU {bleu:.1f}, {result.steps_per_second:.1f} steps/s, "
        f"peak memory {result.peak_memory_mib:.0f} MiB"
    )


CHECKS: tuple[Callable[[Place], str], ...] = (
    masks_in_half_precision,
    fused_equals_explicit,
    norms_under_loss_scaling,
    a_run_on_the_bundled_corpus,
)


def main(arguments: list[str] | None = None) -> int:
    """Run the checks and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    place = {"cuda": CUDA, "cpu": CPU}[parser.parse_args(arguments).device]
    if place is CUDA and not torch.cuda.is_available():
        print("gpu-check: skipped, PyTorch finds no CUDA device here")
        return 0
    name = torch.cuda.get_device_name() if place is CUDA else "the CPU, small sizes"
    print(f"gpu-check on {name}, torch {torch.__version__}")
    failed = 0
    for check in CHECKS:
        started = time.perf_counter()
        try:
            outcome = f"ok      {check(place)}"
        except Exception as error:
            # The other checks say something all the same.
            traceback.print_exc()
            outcome, failed = f"FAILED  {type(error).__name__}: {error}", failed + 1
        print(f"{check.__name__:30}{outcome}  ({time.perf_counter() - started:.0f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
