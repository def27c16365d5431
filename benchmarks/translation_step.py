"""Time of a training step of the Transformer at the shape of ``experiment=multi30k_word``.

Contestants, each in a process of its own, in turn, on the same batches:

    project      this project: loss and gradient norms of each step in MLflow
    bare         a bare PyTorch loop on the same module, batches and memory settings, no record
    nn           a bare loop on torch.nn.Transformer of the same size, as tutorials write it, in an
                 unchanged process

None validates, saves or draws. Attention health is sampled as in a whole run of the experiment, one
step in 100; left to itself, a run of so few steps would take 15 samples.

The corpus is Multi30k if --dir names it, else sentences of the same lengths made of random words.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from attnscale.config.build import compose
from attnscale.config.schema import TrainConfig
from attnscale.data.translation import TranslationBatch, TranslationData
from attnscale.data.vocabulary import PADDING
from attnscale.experiment import run
from attnscale.experiment.assemble import make_data, make_model
from attnscale.experiment.consistency import scale_factory
from attnscale.experiment.surroundings import allocator
from attnscale.model.cross_entropy import linear_cross_entropy
from attnscale.model.transformer import Transformer

WORDS = {"de": 7859, "en": 5921}


def make_corpus(folder: Path) -> None:
    """Write a corpus with lengths like Multi30k's (mean about 12 tokens)."""
    generator = np.random.default_rng(0)
    for split, n in (("train", 20000), ("val", 50), ("test", 50)):
        lengths = np.clip(generator.lognormal(2.45, 0.32, n).round(), 4, 40).astype(int)
        for language, size in WORDS.items():
            words = generator.zipf(1.3, int(lengths.sum()) + 10 * n) % size
            start, lines = 0, []
            for length in np.maximum(2, lengths + generator.integers(-2, 3, n)):
                lines.append(" ".join(f"w{w}" for w in words[start : start + length]))
                start += length
            every = " ".join(f"w{i}" for i in range(size)) if split == "train" else ""
            text = "\n".join(lines[:-1] + ([every] if every else [lines[-1]]))
            (folder / f"{split}.{language}").write_text(text + "\n")


def overrides(options: argparse.Namespace) -> list[str]:
    """Return the experiment's overrides."""
    precision = "32-true" if options.dtype == "fp32" else "bf16-mixed"
    form = "tok" if (Path(options.dir) / "data").is_dir() else "raw"
    return [
        "experiment=multi30k_word",
        f"data.dir={options.dir}",
        f"data.form={form}",
        f"trainer.precision={precision}",
        f"trainer.max_steps={options.steps}",
        "trainer.enable_progress_bar=false",
    ]


def _batches(config: TrainConfig, steps: int) -> tuple[TranslationData, list[TranslationBatch]]:
    data = make_data(config)
    assert isinstance(data, TranslationData)
    data.setup("fit")
    data.block = 1
    blocks = [block[0] for block in data.train_dataloader()]
    return data, blocks[:steps]


class Textbook(nn.Module):
    """torch.nn.Transformer with embeddings, as tutorials write it."""

    def __init__(self, sizes: dict[str, int], options: dict[str, Any]) -> None:
        """Create the parts."""
        super().__init__()
        d_model = options["d_model"]
        self.source = nn.Embedding(sizes["source_size"], d_model)
        self.target = nn.Embedding(sizes["target_size"], d_model)
        self.positions = nn.ModuleList(
            nn.Embedding(options["max_length"], d_model) for _ in range(2)
        )
        self.dropout = nn.Dropout(options["dropout"])
        self.transformer = nn.Transformer(
            d_model,
            options["n_heads"],
            options["n_layers"],
            options["n_layers"],
            options["feed_forward"],
            options["dropout"],
            batch_first=True,
        )
        self.output = nn.Linear(d_model, sizes["target_size"])
        self.factor = d_model**0.5

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the logits."""
        x, y = (
            self.dropout(table(t) * self.factor + places(torch.arange(t.shape[1])))
            for table, places, t in zip(
                (self.source, self.target), self.positions, (source, target), strict=True
            )
        )
        hidden_source, hidden_target = source == PADDING, target == PADDING
        causal = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        hidden = self.transformer(
            x,
            y,
            tgt_mask=causal,
            src_key_padding_mask=hidden_source,
            tgt_key_padding_mask=hidden_target,
            memory_key_padding_mask=hidden_source,
        )
        logits: Tensor = self.output(hidden)
        return logits


def bare(options: argparse.Namespace, *, textbook: bool) -> float:
    """Return the seconds per step of a loop that records nothing."""
    config = compose(overrides(options), folder=Path(tempfile.mkdtemp()))
    torch.manual_seed(0)
    data, batches = _batches(config, options.steps)
    sizes = data.model_arguments()
    narrow = options.dtype == "bf16"

    def cast() -> Any:
        return torch.autocast("cpu", torch.bfloat16) if narrow else contextlib.nullcontext()

    if textbook:
        model: nn.Module = Textbook(sizes, config.model)
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    else:
        model = make_model(config, scale_factory(config), sizes)
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-4, fused=True)

    def loss_of(batch: TranslationBatch) -> Tensor:
        if textbook:
            logits = model(batch.source, batch.target[:, :-1])
            return functional.cross_entropy(
                logits.flatten(0, 1), batch.target[:, 1:].flatten(), ignore_index=PADDING
            )
        assert isinstance(model, Transformer)
        hidden = model(batch.source, batch.target[:, :-1], PADDING)
        target = batch.target[:, 1:]
        real = (target != PADDING).flatten().nonzero().flatten()
        target = target.flatten().index_select(0, real)
        hidden = hidden.flatten(0, 1).index_select(0, real)
        loss = linear_cross_entropy(hidden, model.output.weight, model.output.bias, target)
        return loss / len(target)

    model.train()
    # The first steps count, as they do in a run.
    started = time.perf_counter()
    for batch in batches:
        optimizer.zero_grad()
        with cast():
            loss = loss_of(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()
    return (time.perf_counter() - started) / len(batches)


def project(options: argparse.Namespace) -> float:
    """Return the seconds per step of a run, until its last point is in the store."""
    with tempfile.TemporaryDirectory() as folder:
        quick = ["trainer.limit_val_batches=0", "trainer.limit_test_batches=0"]
        quick += [f"callbacks.{name}.every=100" for name in ("attention_stats", "gradient_stats")]
        quick += ["callbacks.attention_stats.heads_every=100", "callbacks.pictures=null"]
        result = run(
            compose(
                [
                    *overrides(options),
                    *quick,
                    "trainer.enable_checkpointing=false",
                    f"tracking.uri={options.store}",
                ],
                folder=Path(folder),
            )
        )
    return result.seconds / result.steps


def _measure(options: argparse.Namespace, who: str, dtype: str) -> float:
    command = [sys.executable, "-m", "benchmarks.translation_step", "--who", who, "--dtype", dtype]
    command += ["--dir", options.dir, "--steps", str(options.steps), "--store", options.store]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode != 0:
        raise RuntimeError(process.stderr)
    return float(json.loads(process.stdout.strip().splitlines()[-1]))


def main() -> None:
    """Run the rounds and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--who", choices=("project", "bare", "nn"))
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--dir")
    parser.add_argument("--store", default="")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.who == "project":
        print(json.dumps(project(options)))
        return
    if options.who is not None:
        textbook = options.who == "nn"
        with allocator("system" if textbook else "keep"):
            print(json.dumps(bare(options, textbook=textbook)))
        return
    with tempfile.TemporaryDirectory() as folder:
        options.store = f"sqlite:///{folder}/mlflow.db"
        if options.dir is None:
            options.dir = folder
            make_corpus(Path(folder))
        print(f"load average {os.getloadavg()[0]:.2f}, medians of {options.rounds} rounds, ms/step")
        print(f"{'':6}{'project':>9}{'bare':>9}{'nn':>9}  project÷bare  project÷nn")
        for dtype in options.dtypes:
            seconds: dict[str, list[float]] = {"project": [], "bare": [], "nn": []}
            for _ in range(options.rounds):
                for who, times in seconds.items():
                    times.append(_measure(options, who, dtype))
            middle = {who: statistics.median(times) * 1000 for who, times in seconds.items()}
            ratios = [
                statistics.median(
                    a / b for a, b in zip(seconds["project"], seconds[other], strict=True)
                )
                for other in ("bare", "nn")
            ]
            print(
                f"{dtype:6}"
                + "".join(f"{middle[who]:9.1f}" for who in seconds)
                + f"{ratios[0]:14.2f}{ratios[1]:12.2f}"
            )


if __name__ == "__main__":
    main()
