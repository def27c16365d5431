"""Mistakes on the command line: one line that names the key, and before anything heavy is imported.

Those of ``HEAVY`` need what takes seconds to import, the store or a file of somebody's data.
"""

import resource
from typing import Any

import pytest

TRAIN, TRANSLATE, EVALUATE = "src.train", "src.translate", "src.evaluate"
REPORT, CURVES, THEORY = "src.report", "src.curves", "src.theory"
TRANSFORMER = "model=transformer"

MISTAKES: dict[tuple[str, ...], str] = {
    # Keys that there are not.
    (TRAIN, "model.dk=3"): "model.dk: no such key. Did you mean 'd_k'?",
    (TRAIN, "modle.d_k=3"): "modle",
    (TRAIN, "trainer.max_epoch=3"): "trainer.max_epoch: no such key. Did you mean 'max_epochs'?",
    (TRAIN, "optimizer.momentum=0.9"): "optimizer.momentum: no such key",
    (TRAIN, "callbacks.watchdogs.stop=false"): "callbacks.watchdogs",
    (TRAIN, TRANSFORMER, "model.residual=true"): "model.residual: no such key",
    (TRAIN, "data.batch_tokens=100"): "data.batch_tokens: no such key",
    (TRANSLATE, "checkpiont=a"): "checkpiont: no such key. Did you mean 'checkpoint'?",
    (EVALUATE, "split=val"): "split: no such key",
    (REPORT, "sweeep=a"): "sweeep: no such key. Did you mean 'sweep'?",
    (CURVES, "metric=[train/loss]"): "metric: no such key. Did you mean 'metrics'?",
    (THEORY, "draw=3"): "draw: no such key. Did you mean 'draws'?",
    # Types.
    (TRAIN, "model.d_k=abc"): "model.d_k: Value 'abc'",
    (TRAIN, "model.residual=3.5"): "model.residual: Value '3.5'",
    (TRAIN, "seed=null"): "seed: field 'seed' is not Optional",
    (TRAIN, "trainer.max_epochs=ten"): "trainer.max_epochs: Value 'ten'",
    (TRAIN, "optimizer.betas=0.9"): "optimizer.betas",
    (TRAIN, "trainer.fast_dev_run=yes_please"): "trainer.fast_dev_run=yes_please: must be",
    (TRAIN, "trainer.fast_dev_run=0.5"): "trainer.fast_dev_run=0.5: must be",
    (TRAIN, "trainer.max_time=soon"): "trainer.max_time=soon: must be DD:HH:MM:SS",
    (TRAIN, "trainer.deterministic=maybe"): "trainer.deterministic=maybe: allowed are",
    (TRAIN, "trainer.devices=all"): "trainer.devices=all: allowed is",
    (TRAIN, "allow=mypackage"): "allow=mypackage: must be",
    (REPORT, "points=many"): "points: Value 'many'",
    (THEORY, "n=1.5"): "n: Value '1.5'",
    # Choices.
    (TRAIN, "attention.scale=sqtr"): "attention.scale=sqtr",
    (TRAIN, "attention.backend=quick"): "attention.backend=quick: allowed are auto, explicit",
    (TRAIN, "attention.sigma_reparam=v"): "attention.sigma_reparam=v: allowed are none, qk, all",
    (TRAIN, "model=perceptron"): "model=perceptron: no such choice. Allowed: autoencoder",
    (TRAIN, "optimizer=lion"): "optimizer=lion: no such choice. Allowed: adam",
    (TRAIN, "experiment=claim_none"): "experiment=claim_none: no such choice",
    (TRAIN, "budget=night"): "budget=night: allowed with an experiment",
    (TRAIN, "model.norm=layer"): "model.norm=layer: allowed are none, pre, post",
    (TRAIN, "model.init=zeros"): "model.init=zeros: allowed are torch",
    (TRAIN, "optimizer.schedule=linear"): "optimizer.schedule=linear: allowed are constant",
    (TRAIN, "allocator=fast"): "allocator=fast: allowed are keep, system",
    (
        *(TRAIN, "trainer.gradient_clip_val=1", "trainer.gradient_clip_algorithm=l1"),
    ): "trainer.gradient_clip_algorithm=l1: allowed",
    (TRAIN, "trainer.profiler=loud"): "trainer.profiler=loud: allowed are simple",
    (TRAIN, "trainer.profiler=xla"): "trainer.profiler=xla: allowed are simple",
    (TRAIN, TRANSFORMER, "data.tokenizer=bpe"): "data.tokenizer=bpe: allowed are moses",
    (TRAIN, TRANSFORMER, "data.too_long=drop"): "data.too_long=drop: allowed are skip, cut",
    (TRAIN, TRANSFORMER, "model.positions=rotary"): "model.positions=rotary: allowed are",
    # Sizes.
    (TRAIN, "model.d_k=0"): "model.d_k=0: must be at least 1",
    (TRAIN, "model.n_heads=-1"): "model.n_heads=-1: must be at least 1",
    (TRAIN, "model.dropout=1"): "model.dropout=1.0: must be at least 0 and below 1",
    (TRAIN, "data.n_train=0"): "data.n_train=0: must be at least 1",
    (TRAIN, "data.batch_size=0"): "data.batch_size=0: must be at least 1",
    (TRAIN, "optimizer.lr=-1e-3"): "optimizer.lr=-0.001: must be finite and at least 0",
    (TRAIN, "optimizer.warmup_steps=-5"): "optimizer.warmup_steps=-5: must be at least 0",
    (TRAIN, "task.block=0"): "task.block=0: must be at least 1",
    (TRAIN, "threads=0"): "threads=0: must be at least 1, or null",
    (TRAIN, "trainer.max_epochs=-2"): "trainer.max_epochs=-2: must be at least -1",
    (TRAIN, "trainer.limit_val_batches=1.5"): "trainer.limit_val_batches=1.5: must be an integer",
    (TRAIN, "trainer.val_check_interval=0"): "trainer.val_check_interval=0: must be above 0",
    (TRAIN, "trainer.check_val_every_n_epoch=0"): "trainer.check_val_every_n_epoch=0: must be",
    (TRAIN, "trainer.accumulate_grad_batches=0"): "trainer.accumulate_grad_batches=0: must be",
    (TRAIN, TRANSFORMER, "task.label_smoothing=1"): "task.label_smoothing=1.0: must be",
    (TRANSLATE, "batch_sentences=0"): "batch_sentences=0: must be at least 1",
    (REPORT, "points=1"): "points=1: must be at least 2",
    (THEORY, "draws=1"): "draws=1: must be at least 2",
    # Files.
    (TRAIN, "checkpoint=nowhere.ckpt"): "checkpoint=nowhere.ckpt: no such file",
    (TRAIN, "checkpoint=pyproject.toml"): "checkpoint=pyproject.toml: no checkpoint",
    (TRANSLATE,): "checkpoint is missing: give checkpoint=PATH",
    (TRANSLATE, "checkpoint=nowhere.ckpt"): "checkpoint=nowhere.ckpt: no such file",
    (TRANSLATE, "checkpoint=pyproject.toml"): "checkpoint=pyproject.toml: no checkpoint",
    (TRANSLATE, "checkpoint=a", "input=nowhere.de"): "input=nowhere.de: no such file",
    (EVALUATE,): "checkpoint is missing: give checkpoint=PATH",
    (EVALUATE, "checkpoint=nowhere.ckpt"): "checkpoint=nowhere.ckpt: no such file",
    # Values that contradict each other, or have no effect.
    (TRAIN, "data.d_model=64"): "data.d_model=64: must be model.d_model=128",
    (TRAIN, TRANSFORMER, "data.batch_sentences=8"): "data.batch_sentences=8: set one",
    (TRAIN, TRANSFORMER, "model.max_length=64"): "model.max_length=64: a sentence of 201",
    (TRAIN, "attention.qk_clip=9", "attention.sigma_reparam=qk"): "attention.qk_clip=9",
    (TRAIN, "attention.options.softcap.cap=3"): "attention.options.softcap.cap=3: has no effect",
    (TRAIN, "optimizer.schedule=cosine", "trainer.max_epochs=-1"): "optimizer.schedule=cosine",
    (TRAIN, "attention.qk_clip_alpha=1"): "attention.qk_clip_alpha=1: has no effect while",
    (TRAIN, "trainer.gradient_clip_algorithm=value"): "algorithm=value: has no effect while",
    (TRAIN, "trainer.use_distributed_sampler=true"): "trainer.use_distributed_sampler=True: has",
    (TRAIN, "trainer.limit_predict_batches=2"): "trainer.limit_predict_batches=2: has no effect",
    (TRAIN, "trainer.model_registry=mine"): "trainer.model_registry=mine: has no effect",
    # Of a sweep.
    (TRAIN, "-m", "model.dk=16,32"): "model.dk",
    (TRAIN, "-m", "model.d_k=16,abc"): "model.d_k: Value 'abc'",
    (TRAIN, "-m", "attention.scale=sqrt,sqtr"): "attention.scale=sqtr",
    (TRAIN, "-m", "seed=0,1", "model.n_layers=0"): "model.n_layers=0: must be at least 1",
    (TRAIN, "-m", "seed=0,1", "trainer.min_epochs=-1"): "trainer.min_epochs=-1: must be",
    (TRAIN, "-m", "attention.options.softcap.cap=3,4"): "has no effect",
    (THEORY, "-m", "seed=0,1", "draws=0"): "draws=0: must be at least 2",
}
"""App and its arguments, to what the line begins with or has in it."""

HEAVY: dict[tuple[str, ...], str] = {
    (TRAIN, "trainer.precision=48"): "trainer.precision=48",
    (TRAIN, "trainer.accelerator=abacus"): "trainer.accelerator=abacus",
    (TRAIN, "trainer.strategy=chess"): "trainer.strategy=chess",
    (TRAIN, "trainer.strategy=deepspeed"): "trainer.strategy=deepspeed",
    (TRAIN, "trainer.logger=loud"): "trainer.logger=loud",
    (TRAIN, "trainer.callbacks=true"): "trainer.callbacks=True",
    (TRAIN, "trainer.precision=transformer-engine"): "trainer.precision=transformer-engine",
    (TRAIN, "trainer.val_check_interval=1000"): "trainer.val_check_interval=1000",
    (TRAIN, "trainer.limit_val_batches=0.01"): "trainer.limit_val_batches=0.01",
    (TRAIN, "trainer.limit_train_batches=0.01"): "trainer.limit_train_batches=0.01",
    (TRAIN, "trainer.sync_batchnorm=true"): "trainer.sync_batchnorm=True",
    (TRAIN, "+callbacks.x._target_=os.system"): "callbacks.x._target_=os.system",
    (TRAIN, "+callbacks.x._target_=pytorch_lightning.callbacks.Nobody"): "callbacks.x._target_",
    (TRAIN, "callbacks.attention_stats.every=0"): "callbacks.attention_stats.every=0",
    (TRAIN, "callbacks.pictures.examples=0"): "callbacks.pictures.examples=0",
    (TRAIN, "attention.backend=fused", "attention.scale=softcap"): "attention.backend=fused",
    (TRAIN, "optimizer=sgd", "optimizer.nesterov=true"): "optimizer: Nesterov",
    (TRAIN, "optimizer.betas=[0.9,1.5]"): "optimizer: Invalid beta",
    (TRAIN, "attention.qk_clip=-1"): "attention.qk_clip=-1",
    (TRAIN, TRANSFORMER, "data.source=en"): "data.source=en",
    (TRAIN, TRANSFORMER, "data.test=none"): "data.test=none",
    (TRAIN, TRANSFORMER, "task.length_edges=[9,3]"): "task.length_edges=[9, 3]",
    (TRAIN, TRANSFORMER, "data=parallel"): "data.dir is missing",
    (TRAIN, TRANSFORMER, "data=parallel", "data.dir=/nowhere"): "data.dir=/nowhere: no such folder",
    (TRAIN, TRANSFORMER, "data=multi30k", "data.dir=/nowhere"): "data.dir=/nowhere",
    (TRAIN, "data=toy_translation"): "model._target_=",
    (TRAIN, TRANSFORMER, "data=gaussian"): "model._target_=",
    (TRAIN, "folder=/proc/nowhere"): "folder=/proc/nowhere: cannot be written",
    (TRAIN, "tracking.uri=file:/tmp/mlruns"): "tracking.uri=file:/tmp/mlruns",
    (EVALUATE, "checkpoint=a.ckpt", "data.split=dev"): "checkpoint=a.ckpt: no such file",
    (REPORT, "sweep=none"): "tracking.experiment=attnscale: no such",
    (REPORT, "runs=[none]"): "runs: no run none",
    (CURVES, "sweep=none"): "tracking.experiment=attnscale: no such",
    (THEORY, "tracking.uri=file:/tmp/mlruns"): "tracking.uri=file:/tmp/mlruns",
}
"""As :data:`MISTAKES`; these are told a few seconds later."""

FAST = (
    *((TRAIN, "model.n_heads=-1"), (TRAIN, "trainer.fast_dev_run=0.5")),
    *(
        (TRAIN, "-m", "seed=0,1", "model.n_layers=0"),
        (TRAIN, "attention.qk_clip_alpha=1"),
        (TRANSLATE, "checkpoint=a", "input=nowhere.de"),
    ),
)
"""Those that ``make test`` tries too; the others are slow."""


def cases(mistakes: dict[tuple[str, ...], str]) -> list[Any]:
    return [
        pytest.param(
            *(app, arguments, words),
            id=" ".join((app.removeprefix("src."), *arguments)),
            marks=() if (app, *arguments) in FAST else pytest.mark.slow,
        )
        for (app, *arguments), words in mistakes.items()
    ]


@pytest.mark.parametrize(("app", "arguments", "words"), cases({**MISTAKES, **HEAVY}))
def test_a_mistake_is_one_line(shell: Any, app: str, arguments: list[str], words: str) -> None:
    done = shell(*arguments, app=app, where=app == TRAIN)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def processor_seconds(shell: Any, *arguments: str, app: str) -> float:
    """Return what a fresh interpreter spends on a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    shell(*arguments, app=app, where=False, fresh=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.slow
@pytest.mark.parametrize(("app", "arguments", "words"), cases(MISTAKES))
def test_a_mistake_is_told_before_anything_heavy_is_imported(
    shell: Any, app: str, arguments: list[str], words: str
) -> None:
    composing = processor_seconds(shell, "--cfg", "job", app=app)
    assert processor_seconds(shell, *arguments, app=app) < 1.5 * composing
