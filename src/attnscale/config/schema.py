"""Types of the configuration: what composition checks, and what the program reads by attribute.

Values live in ``conf/`` only, so nothing here has a default, but for ``allow``, which no file may
set.

A misspelt key or a wrong type ends composition, before any job of a sweep starts; values are asked
against the bounds beside them by :func:`attnscale.config.limits.check_limits`.
"""

from dataclasses import dataclass, field
from typing import Any

from attnscale.config.choice_schema import (
    AdamConfig,
    AttentionConfig,
    AutoencoderConfig,
    GaussianConfig,
    Multi30kConfig,
    ParallelConfig,
    SGDConfig,
    TaskConfig,
    ToyTranslationConfig,
    TrainerConfig,
    TransformerConfig,
    TranslationTaskConfig,
)
from attnscale.config.limits import MISSING, at_least, one_of
from attnscale.config.section import DataNode, ModelNode, OptimizerNode, TaskNode


@dataclass
class TrackingConfig:
    """``tracking``: where runs are recorded, and under which names."""

    uri: str | None = MISSING
    experiment: str = MISSING
    run_name: str | None = MISSING


@dataclass
class MarginConfig:
    """``margin``: what is a difference in loss that matters."""

    relative: float = at_least(0)
    absolute: float = at_least(0)


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
    threads: int | None = at_least(1, ", or null")
    allocator: str | None = one_of("keep", "system")
    checkpoint: str | None = MISSING
    resume: str | None = MISSING
    trust: bool = MISSING
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

SECTIONS: dict[str, type] = {
    "attnscale.data.gaussian.GaussianData": GaussianConfig,
    "attnscale.data.multi30k.Multi30k": Multi30kConfig,
    "attnscale.data.parallel.Parallel": ParallelConfig,
    "attnscale.data.toy_translation.ToyTranslation": ToyTranslationConfig,
    "attnscale.model.autoencoder.AttentionAutoencoder": AutoencoderConfig,
    "attnscale.model.transformer.Transformer": TransformerConfig,
    "attnscale.task.reconstruction.Reconstruction": TaskConfig,
    "attnscale.task.translation.Translation": TranslationTaskConfig,
    "torch.optim.Adam": AdamConfig,
    "torch.optim.AdamW": AdamConfig,
    "torch.optim.SGD": SGDConfig,
}
"""``_target_`` of a section to the type of its keys, whose bounds are asked."""
