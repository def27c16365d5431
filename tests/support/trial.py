"""A short run of either model by Lightning, with what was so inside it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attnscale.experiment import train
from attnscale.experiment.assemble import Parts, assemble

N_STEPS = 8  # two epochs of four batches
MODELS = {
    "autoencoder": ("data.n_train=200", "data.n_val=20", "data.n_test=20", "data.batch_size=10"),
    "transformer": (
        *("model=transformer", "model.d_model=16", "model.n_layers=1", "model.feed_forward=16"),
        *("model.n_heads=2", "data.n_train=200", "data.n_val=20", "data.n_test=20"),
        *("data.batch_tokens=null", "data.batch_sentences=10", "data.eval_batch_sentences=10"),
    ),
}
SMALL = (
    *("model.d_k=8", "callbacks.pictures=null", "callbacks.attention_stats=null"),
    *("callbacks.gradient_stats=null", "callbacks.watchdog=null", "threads=1"),
    *("trainer.max_epochs=2", "trainer.limit_train_batches=4", "trainer.limit_val_batches=2"),
)
LIGHTNING = "pytorch_lightning.callbacks"
STOP = (
    f"+callbacks.x._target_={LIGHTNING}.EarlyStopping",
    *("+callbacks.x.monitor=val/loss", "+callbacks.x.stopping_threshold=1e9"),
    "trainer.max_epochs=5",
)
"""Ends training after the first epoch."""


@dataclass
class Outcome:
    """What a run did, and what was so inside it."""

    start: dict[str, Tensor] = field(default_factory=dict)
    inside: set[str] = field(default_factory=set)
    n_loaders: int = 0

    lab: Any = None
    parts: Any = None
    result: Any = None
    screen: str = ""

    @property
    def trainer(self) -> Any:
        return self.parts.trainer

    def steps_of(self, metric: str) -> list[int]:
        return [step for step, _ in self.lab.curve(self.lab.last().info.run_id, metric)]

    def steps_starting(self, beginning: str) -> list[int]:
        """Return the steps of the first metric whose name starts so."""
        names = [name for name in self.lab.last().data.metrics if name.startswith(beginning)]
        return self.steps_of(names[0]) if names else []

    def files(self) -> list[str]:
        files = Path(self.result.folder).rglob("*.ckpt")
        return sorted(path.name for path in files if path.name != "previous.ckpt")

    def moved(self) -> float:
        """Return the furthest that a weight went."""
        weights = self.parts.module.state_dict()
        return max(float((weights[name] - at).abs().max()) for name, at in self.start.items())

    def averages(self) -> int:
        state = torch.load(self.result.last_checkpoint, weights_only=False)
        return int(state["averaging_state"]["n_averaged"])

    def has(self, kind: type) -> bool:
        return any(isinstance(callback, kind) for callback in self.trainer.callbacks)


Run = Callable[..., Outcome]


@pytest.fixture
def trial(
    lab: Any, monkeypatch: pytest.MonkeyPatch, capfd: Any, caplog: pytest.LogCaptureFixture
) -> Run:
    """Return a function that trains and looks on."""
    outcome = Outcome(lab=lab)

    def watched(*arguments: Any) -> Parts:
        parts = outcome.parts = assemble(*arguments)
        outcome.start = {k: v.clone() for k, v in parts.module.state_dict().items()}
        flags = {
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "benchmark": torch.backends.cudnn.benchmark,
        }
        outcome.inside |= {name for name, is_set in flags.items() if is_set}
        loss, evaluate, loader = parts.module.loss, parts.module.evaluate, parts.data

        def looking_loss(batch: Any) -> Tensor:
            outcome.inside |= {"anomaly"} if torch.is_anomaly_enabled() else set()
            return loss(batch)

        def looking_evaluate(split: str, block: list[Any]) -> None:
            outcome.inside |= {"inference"} if torch.is_inference_mode_enabled() else set()
            evaluate(split, block)

        load = loader.train_dataloader

        def counted() -> Any:
            outcome.n_loaders += 1
            return load()

        monkeypatch.setattr(parts.module, "loss", looking_loss)
        monkeypatch.setattr(parts.module, "evaluate", looking_evaluate)
        monkeypatch.setattr(loader, "train_dataloader", counted)
        return parts

    def trial(model: str, *overrides: str) -> Outcome:
        outcome.result = lab.run(*MODELS[model], *SMALL, *overrides)
        streams = capfd.readouterr()
        outcome.screen = streams.out + streams.err + caplog.text
        return outcome

    monkeypatch.setattr(train, "assemble", watched)
    return trial


Expected = str | Callable[[Outcome], bool]
"""What refuses a run, or what is to be so of it."""


def steps(n: int) -> Callable[[Outcome], bool]:
    return lambda run: run.result.steps == n


def named(target: str, **options: Any) -> str:
    words = ", ".join([f"_target_: {target}", *(f"{k}: {v}" for k, v in options.items())])
    return f"{{{words}}}"
