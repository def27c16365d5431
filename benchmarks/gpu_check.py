"""What a CPU cannot show, in under 4 minutes on one GPU; says why where there is none."""

import sys
import tempfile
import time
from pathlib import Path

import torch

from attnscale.attention import SCALE_MODES, MultiHeadAttention, attend, padding_keep
from attnscale.config.build import compose
from attnscale.experiment import run
from attnscale.tracking.history import History
from attnscale.tracking.store import find_store

MODES: dict[str, dict[str, float]] = {"softcap": {"cap": 50.0}}
TOLERANCE = {torch.float32: 2e-3, torch.float16: 1e-2, torch.bfloat16: 6e-2}


def _vectors(dtype: torch.dtype, size: int = 64) -> list[torch.Tensor]:
    return [
        torch.randn(3, 4, 37, size, device="cuda", dtype=dtype, requires_grad=True)
        for _ in range(3)
    ]


def masks_in_half_precision() -> str:
    """Padding, causal and empty rows, scores around ±30: finite, and like fp32."""
    keep = padding_keep(torch.tensor([37, 20, 0], device="cuda"), 37)
    worst = 0.0
    for dtype in (torch.float16, torch.bfloat16):
        for scale in (0.125, 0.5):
            q, k, v = _vectors(dtype)
            wide = attend(q.float(), k.float(), v.float(), scale=scale, keep=keep, causal=True)
            for backend in ("explicit", "fused"):
                out = attend(q, k, v, scale=scale, keep=keep, causal=True, backend=backend)
                out.sum().backward()  # type: ignore[no-untyped-call]
                assert out.isfinite().all()
                assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))
                assert not out[2].any()
                gap = float((out.float() - wide).abs().max())
                assert gap < TOLERANCE[dtype], (dtype, backend, gap)
                worst = max(worst, gap)
    q, k, v = _vectors(torch.float16, size=1024)
    big = attend(q * 16, k * 16, v, scale="none", backend="explicit")
    assert big.isfinite().all()
    return f"largest gap to fp32 {worst:.1e}"


def fused_equals_explicit() -> str:
    """Both backends, forward and gradients, every mode that may be fused."""
    worst = 0.0
    for name, mode in SCALE_MODES.items():
        if not mode.fusible:
            continue
        torch.manual_seed(0)
        module = MultiHeadAttention(
            d_model=96, n_heads=4, d_k=24, d_v=16, scale=name, options=MODES.get(name)
        ).cuda()
        x = torch.randn(3, 37, 96, device="cuda")
        keep = padding_keep(torch.tensor([37, 20, 5], device="cuda"), 37)
        found = []
        for backend in ("explicit", "fused"):
            module.backend = backend
            module.zero_grad()
            out = module(x, keep=keep, causal=True)
            out.square().mean().backward()
            assert module.q.weight.grad is not None
            found.append((out.detach(), module.q.weight.grad.clone()))
        for one, two in zip(*found, strict=True):
            gap = float((one - two).abs().max() / one.abs().max())
            assert gap < TOLERANCE[torch.float32], (name, gap)
            worst = max(worst, gap)
    return f"largest relative gap {worst:.1e}"


def norms_under_loss_scaling() -> str:
    """The first gradient norm of a 16-mixed run is that of a 32-true run."""
    firsts = []
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/mlflow.db"
        for precision in ("32-true", "16-mixed"):
            result = run(
                compose(
                    [
                        *("trainer=gpu", f"trainer.precision={precision}", "trainer.max_steps=2"),
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
    return f"16-mixed ÷ 32-true {ratio:.4f}"


def a_run_on_the_bundled_corpus() -> str:
    """The Transformer learns the bundled corpus on the GPU."""
    with tempfile.TemporaryDirectory() as folder:
        result = run(
            compose(
                [
                    *("model=transformer", "trainer=gpu", "trainer.max_epochs=8"),
                    *("trainer.precision=bf16-mixed", f"tracking.uri=sqlite:///{folder}/mlflow.db"),
                    "trainer.enable_progress_bar=false",
                ],
                folder=Path(folder),
            )
        )
    bleu = result.metrics["test/bleu"]
    assert bleu > 60, bleu
    return (
        f"test BLEU {bleu:.1f}, {result.steps_per_second:.1f} steps/s, "
        f"peak memory {result.peak_memory_mib:.0f} MiB"
    )


def main() -> int:
    """Run the checks and print a line for each."""
    if not torch.cuda.is_available():
        print("gpu-check: skipped, PyTorch finds no CUDA device here")
        return 0
    print(f"gpu-check on {torch.cuda.get_device_name()}, torch {torch.__version__}")
    failed = 0
    for check in (
        masks_in_half_precision,
        fused_equals_explicit,
        norms_under_loss_scaling,
        a_run_on_the_bundled_corpus,
    ):
        started = time.perf_counter()
        try:
            outcome = f"ok      {check()}"
        except AssertionError as error:
            outcome, failed = f"FAILED  {error}", failed + 1
        print(f"{check.__name__:30}{outcome}  ({time.perf_counter() - started:.0f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
