"""Types of the configuration: what composition checks, and what the program reads by attribute.

Values live in ``conf/`` only, so nothing here has a default, but for ``allow``, which no file may
set.

A misspelt key or a wrong type ends composition, before any job of a sweep starts.
"""

from dataclasses import dataclass, field
from typing import Any

from attnscale.config.section import DataNode, ModelNode, OptimizerNode, TaskNode

MISSING: Any = "???"
"""What OmegaConf reads as a value that must come from a file or the command line."""


@dataclass
class AttentionConfig:
    """``attention``: the scale, its options, the backend, methods on the weights."""

    scale: str | int | float | None = MISSING
    backend: str | None = MISSING
    options: dict[str, dict[str, float]] = MISSING
    qk_clip: float | None = MISSING
    qk_clip_alpha: float = MISSING
    sigma_reparam: str | None = MISSING


@dataclass
class AutoencoderConfig:
    """``model=autoencoder``."""

    _target_: str = MISSING
    d_model: int = MISSING
    d_k: int = MISSING
    d_v: int | None = MISSING
    n_heads: int = MISSING
    n_layers: int = MISSING
    residual: bool = MISSING
    norm: str | None = MISSING
    feed_forward: int | None = MISSING
    bias: bool = MISSING
    dropout: float = MISSING
    init: str | None = MISSING


@dataclass
class TransformerConfig:
    """``model=transformer``."""

    _target_: str = MISSING
    d_model: int = MISSING
    d_k: int = MISSING
    d_v: int | None = MISSING
    n_heads: int = MISSING
    n_layers: int = MISSING
    feed_forward: int = MISSING
    norm: str | None = MISSING
    positions: str | None = MISSING
    max_length: int = MISSING
    tied: bool = MISSING
    scaled_embeddings: bool = MISSING
    bias: bool = MISSING
    dropout: float = MISSING
    attention_dropout: float | None = MISSING
    init: str | None = MISSING


@dataclass
class TranslationDataConfig:
    """What every translation corpus has."""

    _target_: str = MISSING
    source: str = MISSING
    target: str = MISSING
    test: str | None = MISSING
    tokenizer: str | None = MISSING
    lowercase: bool = MISSING
    min_frequency: int = MISSING
    max_length: int = MISSING
    too_long: str | None = MISSING
    batch_tokens: int | None = MISSING
    batch_sentences: int | None = MISSING
    eval_batch_sentences: int = MISSING
    seed: int = MISSING


@dataclass
class ToyTranslationConfig(TranslationDataConfig):
    """``data=toy_translation``."""

    n_train: int = MISSING
    n_val: int = MISSING
    n_test: int = MISSING
    corpus_seed: int = MISSING
    max_words: int | None = MISSING


@dataclass
class ParallelConfig(TranslationDataConfig):
    """``data=parallel``."""

    dir: str | None = MISSING


@dataclass
class Multi30kConfig(ParallelConfig):
    """``data=multi30k``."""

    form: str | None = MISSING
    address: str | None = MISSING
    cache: str = MISSING


@dataclass
class GaussianConfig:
    """``data=gaussian``."""

    _target_: str = MISSING
    n_train: int = MISSING
    n_val: int = MISSING
    n_test: int = MISSING
    length: int = MISSING
    d_model: int = MISSING
    batch_size: int = MISSING
    eval_batch_size: int = MISSING
    shuffle: bool = MISSING
    seed: int = MISSING


@dataclass
class OptimizerConfig:
    """``optimizer``: what every optimizer has; its other keys are those of its class."""

    _target_: str = MISSING
    lr: float = MISSING
    weight_decay: float = MISSING
    fused: bool | None = MISSING
    schedule: str | None = MISSING
    warmup_steps: int = MISSING


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
    num_nodes: int = MISSING
    precision: Any = MISSING
    logger: Any = MISSING
    callbacks: Any = MISSING
    fast_dev_run: Any = MISSING
    max_epochs: int | None = MISSING
    min_epochs: int | None = MISSING
    max_steps: int = MISSING
    min_steps: int | None = MISSING
    max_time: Any = MISSING
    limit_train_batches: int | float | None = MISSING
    limit_val_batches: int | float | None = MISSING
    limit_test_batches: int | float | None = MISSING
    limit_predict_batches: int | float | None = MISSING
    overfit_batches: int | float = MISSING
    val_check_interval: int | float | None = MISSING
    check_val_every_n_epoch: int | None = MISSING
    num_sanity_val_steps: int | None = MISSING
    log_every_n_steps: int | None = MISSING
    enable_checkpointing: bool = MISSING
    enable_progress_bar: bool = MISSING
    enable_model_summary: bool = MISSING
    accumulate_grad_batches: int = MISSING
    gradient_clip_val: int | float | None = MISSING
    gradient_clip_algorithm: str | None = MISSING
    deterministic: Any = MISSING
    benchmark: bool | None = MISSING
    inference_mode: bool = MISSING
    use_distributed_sampler: bool = MISSING
    profiler: Any = MISSING
    detect_anomaly: bool = MISSING
    barebones: bool = MISSING
    plugins: Any = MISSING
    sync_batchnorm: bool = MISSING
    reload_dataloaders_every_n_epochs: int = MISSING
    default_root_dir: str | None = MISSING
    enable_autolog_hparams: bool = MISSING
    model_registry: str | None = MISSING


@dataclass
class TaskConfig:
    """``task``: which LightningModule, and how many batches Lightning gets at a time."""

    _target_: str = MISSING
    block: int = MISSING
    max_epochs: int = MISSING
    margin: float = MISSING


@dataclass
class TranslationTaskConfig(TaskConfig):
    """``task=translation``."""

    label_smoothing: float = MISSING
    length_edges: list[int] = MISSING


@dataclass
class TrackingConfig:
    """``tracking``: where runs are recorded, and under which names."""

    uri: str | None = MISSING
    experiment: str = MISSING
    run_name: str | None = MISSING


@dataclass
class MarginConfig:
    """``margin``: what is a difference in loss that matters."""

    relative: float = MISSING
    absolute: float = MISSING


@dataclass
class TrainConfig:
    """What a run is made from: the root of ``python -m src.train``, composed."""

    attention: AttentionConfig = MISSING
    model: ModelNode = MISSING
    task: TaskNode = MISSING
    data: DataNode = MISSING
    optimizer: OptimizerNode = MISSING
    callbacks: dict[str, Any] = MISSING
    tracking: TrackingConfig = MISSING
    trainer: TrainerConfig = MISSING
    budget: str | None = MISSING
    margin: MarginConfig = MISSING
    seed: int = MISSING
    threads: int | None = MISSING
    allocator: str | None = MISSING
    checkpoint: str | None = MISSING
    folder: str = MISSING
    report: bool = MISSING
    tags: dict[str, Any] = MISSING


@dataclass
class TrainSchema(TrainConfig):
    """The same while it is composed, where each choice brings the type of its own keys."""

    attention: Any = MISSING
    model: Any = MISSING
    task: Any = MISSING
    data: Any = MISSING
    optimizer: Any = MISSING
    tracking: Any = MISSING
    trainer: Any = MISSING
    budgets: dict[str, Any] = MISSING
    # With its value here and not in conf/: a file that sets it is then seen, and refused.
    allow: list[str] = field(default_factory=list)


GROUPS: dict[tuple[str, str], type] = {
    ("schema/model", "autoencoder"): AutoencoderConfig,
    ("schema/data", "gaussian"): GaussianConfig,
    ("schema/model", "transformer"): TransformerConfig,
    ("schema/data", "toy_translation"): ToyTranslationConfig,
    ("schema/data", "parallel"): ParallelConfig,
    ("schema/data", "multi30k"): Multi30kConfig,
    ("schema/task", "translation"): TranslationTaskConfig,
    ("schema/optimizer", "adam"): AdamConfig,
    ("schema/optimizer", "sgd"): SGDConfig,
    ("schema/task", "default"): TaskConfig,
    ("schema/tracking", "default"): TrackingConfig,
    ("schema/trainer", "default"): TrainerConfig,
    ("schema", "train"): TrainSchema,
}
"""(group, name) of each type in Hydra's ConfigStore."""
