"""Types of the roots of the apps beside ``train``; see ``schema.py``."""

from dataclasses import dataclass, field
from typing import Any

from attnscale.config.choice_schema import AttentionConfig
from attnscale.config.limits import MISSING, at_least
from attnscale.config.schema import TrackingConfig


@dataclass
class CurvesConfig:
    """The root of ``python -m src.curves``."""

    sweep: str = MISSING
    metrics: list[str] = MISSING
    file: str = MISSING
    tracking: TrackingConfig = MISSING


@dataclass
class TranslateConfig:
    """The root of ``python -m src.translate``."""

    checkpoint: str | None = MISSING
    input: str = MISSING
    output: str = MISSING
    batch_sentences: int = at_least(1)
    device: str = MISSING
    allow: list[str] = field(default_factory=list)


@dataclass
class EvaluateDataConfig:
    """``data`` of ``python -m src.evaluate``."""

    split: str | None = MISSING
    dir: str | None = MISSING


@dataclass
class EvaluateTaskConfig:
    """``task`` of ``python -m src.evaluate``."""

    bleu_tokenizer: str | None = MISSING


@dataclass
class EvaluateTrainerConfig:
    """``trainer`` of ``python -m src.evaluate``."""

    accelerator: str | None = MISSING
    devices: Any = MISSING
    strategy: str | None = MISSING


@dataclass
class EvaluateConfig:
    """The root of ``python -m src.evaluate``."""

    checkpoint: str | None = MISSING
    data: EvaluateDataConfig = MISSING
    task: EvaluateTaskConfig = MISSING
    trainer: EvaluateTrainerConfig = MISSING
    tracking: TrackingConfig = MISSING
    folder: str = MISSING
    allow: list[str] = field(default_factory=list)


@dataclass
class ReportConfig:
    """The root of ``python -m src.report``."""

    tracking: TrackingConfig = MISSING
    sweep: str = MISSING
    runs: list[str] = MISSING
    filter: str | None = MISSING
    points: int = at_least(2)
    folder: str = MISSING


@dataclass
class SweepsConfig:
    """The root of ``python -m src.sweeps``."""

    tracking: TrackingConfig = MISSING
    newest: int = MISSING


@dataclass
class TheoryConfig:
    """The root of ``python -m src.theory``."""

    attention: AttentionConfig = MISSING
    tracking: TrackingConfig = MISSING
    seed: int = MISSING
    threads: int | None = at_least(1, ", or null")
    n: int = at_least(2)
    draws: int = at_least(2)
    pairs: int = at_least(2)
    replicates: int = at_least(2)
    models: int = at_least(2)
    results: str = MISSING
    docs: str | None = MISSING
    folder: str = MISSING


@dataclass
class TheorySchema(TheoryConfig):
    """The same while it is composed, where the choice of the group brings the type."""

    attention: Any = MISSING


APP_GROUPS: dict[tuple[str, str], type] = {
    ("schema", "curves"): CurvesConfig,
    ("schema", "translate"): TranslateConfig,
    ("schema", "evaluate"): EvaluateConfig,
    ("schema", "theory"): TheorySchema,
    ("schema", "report"): ReportConfig,
    ("schema", "sweeps"): SweepsConfig,
}
"""(group, name) of each type in Hydra's ConfigStore."""
