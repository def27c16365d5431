"""Types of the sections that a choice of ``conf/`` brings, with the bounds of their values.

As in ``schema.py`` the values themselves live in ``conf/`` only.
"""

from dataclasses import dataclass
from typing import Any

from attnscale.checks import check_finite, check_share
from attnscale.config.limits import (
    MISSING,
    at_least,
    check_batches,
    check_deterministic,
    check_dev_run,
    check_duration,
    check_interval,
    check_profiler,
    checked,
    one_of,
    without_effect,
)


@dataclass
class AttentionConfig:
    """``attention``: the scale, its options, the backend, methods on the weights."""

    scale: str | int | float | None = MISSING
    backend: str | None = one_of("auto", "explicit", "fused")
    options: dict[str, dict[str, float]] = MISSING
    qk_clip: float | None = MISSING
    qk_clip_alpha: float = MISSING
    sigma_reparam: str | None = one_of("none", "qk", "all")


@dataclass
class AutoencoderConfig:
    """``model=autoencoder``."""

    _target_: str = MISSING
    d_model: int = at_least(1)
    d_k: int = at_least(1)
    d_v: int | None = at_least(1)
    n_heads: int = at_least(1)
    n_layers: int = at_least(1)
    residual: bool = MISSING
    norm: str | None = one_of("none", "pre", "post")
    feed_forward: int | None = at_least(1, ", or null for none")
    bias: bool = MISSING
    dropout: float = checked(check_share)
    init: str | None = one_of("torch", "xavier", "kaiming", "unit")


@dataclass
class TransformerConfig:
    """``model=transformer``."""

    _target_: str = MISSING
    d_model: int = at_least(1)
    d_k: int = at_least(1)
    d_v: int | None = at_least(1)
    n_heads: int = at_least(1)
    n_layers: int = at_least(1)
    feed_forward: int = at_least(1, ", or null for none")
    norm: str | None = one_of("pre", "post")
    positions: str | None = one_of("sinusoidal", "learned")
    max_length: int = at_least(1)
    tied: bool = MISSING
    scaled_embeddings: bool = MISSING
    bias: bool = MISSING
    dropout: float = checked(check_share)
    attention_dropout: float | None = checked(check_share)
    init: str | None = one_of("torch", "xavier", "kaiming", "unit")


@dataclass
class TranslationDataConfig:
    """What every translation corpus has."""

    _target_: str = MISSING
    source: str = MISSING
    target: str = MISSING
    test: str | None = MISSING
    tokenizer: str | None = one_of("moses", "basic_english", "split", "char")
    lowercase: bool = MISSING
    min_frequency: int = at_least(1)
    max_length: int = at_least(1)
    too_long: str | None = one_of("skip", "cut")
    batch_tokens: int | None = at_least(1)
    batch_sentences: int | None = at_least(1)
    eval_batch_sentences: int = at_least(1)
    seed: int = MISSING


@dataclass
class ToyTranslationConfig(TranslationDataConfig):
    """``data=toy_translation``."""

    n_train: int = at_least(1)
    n_val: int = at_least(1)
    n_test: int = at_least(1)
    corpus_seed: int = MISSING
    max_words: int | None = at_least(1)


@dataclass
class ParallelConfig(TranslationDataConfig):
    """``data=parallel``."""

    dir: str | None = MISSING


@dataclass
class Multi30kConfig(ParallelConfig):
    """``data=multi30k``."""

    form: str | None = one_of("auto", "raw", "tok")
    address: str | None = MISSING
    cache: str = MISSING


@dataclass
class GaussianConfig:
    """``data=gaussian``."""

    _target_: str = MISSING
    n_train: int = at_least(1)
    n_val: int = at_least(1)
    n_test: int = at_least(1)
    length: int = at_least(1)
    d_model: int = at_least(1)
    batch_size: int = at_least(1)
    eval_batch_size: int = at_least(1)
    shuffle: bool = MISSING
    seed: int = MISSING


@dataclass
class OptimizerConfig:
    """``optimizer``: what every optimizer has; its other keys are those of its class."""

    _target_: str = MISSING
    lr: float = checked(check_finite)
    weight_decay: float = checked(check_finite)
    fused: bool | None = MISSING
    schedule: str | None = one_of("constant", "cosine", "inverse_sqrt")
    warmup_steps: int = at_least(0)


@dataclass
class AdamConfig(OptimizerConfig):
    """``optimizer=adam`` and ``optimizer=adamw``."""

    betas: list[float] = MISSING
    eps: float = MISSING


@dataclass
class SGDConfig(OptimizerConfig):
    """``optimizer=sgd``."""

    momentum: float = MISSING
    nesterov: bool = MISSING


@dataclass
class TrainerConfig:
    """``trainer``: every argument of Lightning's Trainer under its own name."""

    accelerator: str = MISSING
    strategy: Any = MISSING
    devices: Any = MISSING
    num_nodes: int = at_least(1)
    precision: Any = MISSING
    logger: Any = MISSING
    callbacks: Any = MISSING
    fast_dev_run: Any = checked(check_dev_run)
    max_epochs: int | None = at_least(-1)
    min_epochs: int | None = at_least(0)
    max_steps: int = at_least(-1)
    min_steps: int | None = at_least(0)
    max_time: Any = checked(check_duration)
    limit_train_batches: int | float | None = checked(check_batches)
    limit_val_batches: int | float | None = checked(check_batches)
    limit_test_batches: int | float | None = checked(check_batches)
    limit_predict_batches: int | float | None = without_effect(1.0, "no app predicts")
    overfit_batches: int | float = checked(check_batches)
    val_check_interval: int | float | None = checked(check_interval)
    check_val_every_n_epoch: int | None = at_least(1)
    num_sanity_val_steps: int | None = at_least(-1)
    log_every_n_steps: int | None = at_least(1)
    enable_checkpointing: bool = MISSING
    enable_progress_bar: bool = MISSING
    enable_model_summary: bool = MISSING
    accumulate_grad_batches: int = at_least(1)
    gradient_clip_val: int | float | None = at_least(0)
    gradient_clip_algorithm: str | None = one_of("norm", "value", None)
    deterministic: Any = checked(check_deterministic)
    benchmark: bool | None = MISSING
    inference_mode: bool = MISSING
    use_distributed_sampler: bool = without_effect(False, "the data share themselves out")
    profiler: Any = checked(check_profiler)
    detect_anomaly: bool = MISSING
    barebones: bool = MISSING
    plugins: Any = MISSING
    sync_batchnorm: bool = MISSING
    reload_dataloaders_every_n_epochs: int = at_least(0)
    default_root_dir: str | None = MISSING
    enable_autolog_hparams: bool = without_effect(False, "the whole configuration is recorded")
    model_registry: str | None = without_effect(None, "no app uploads a model")


@dataclass
class TaskConfig:
    """``task``: which LightningModule, and how many batches Lightning gets at a time."""

    _target_: str = MISSING
    block: int = at_least(1)
    max_epochs: int = MISSING
    margin: float = MISSING


@dataclass
class TranslationTaskConfig(TaskConfig):
    """``task=translation``."""

    label_smoothing: float = checked(check_share)
    length_edges: list[int] = MISSING
    bleu_tokenizer: str | None = MISSING
