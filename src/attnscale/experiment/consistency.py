"""Whether values of a configuration are allowed, each and together.

Nothing here imports Lightning or MLflow: a person's mistake is told before that takes its seconds.
"""

from attnscale.attention import ScaleFactory, choose_scale
from attnscale.checks import check_alternative
from attnscale.config.limits import check_limits
from attnscale.config.schema import SECTIONS, TrainConfig
from attnscale.config.section import plain
from attnscale.experiment.processes import processes_wanted
from attnscale.task.settings import StepSettings, make_schedule


def scale_factory(config: TrainConfig) -> ScaleFactory:
    """Return what makes the model's scales, but for the data's statistics.

    Raises:
        ValueError: If the scale mode or one of its options is not allowed.
    """
    scale, options = config.attention.scale, config.attention.options
    return choose_scale(scale, options.get(scale, {}) if isinstance(scale, str) else {})


def step_settings(config: TrainConfig) -> StepSettings:
    """Return how gradients become steps, and when training ends."""
    trainer, optimizer = config.trainer, config.optimizer
    return StepSettings(
        accumulate=trainer.accumulate_grad_batches,
        clip_value=trainer.gradient_clip_val,
        clip_algorithm=trainer.gradient_clip_algorithm,
        max_steps=trainer.max_steps,
        max_epochs=trainer.max_epochs,
        schedule=optimizer.schedule,
        warmup=optimizer.warmup_steps,
    )


def _check_data(config: TrainConfig) -> None:
    """Check that batches have one size, and that sequences fit the model."""
    data, model = config.data, config.model
    if {"batch_tokens", "batch_sentences"} <= data.keys():
        tokens, sentences = data["batch_tokens"], data["batch_sentences"]
        check_alternative("data.batch_tokens", tokens, "data.batch_sentences", sentences)
    width, d_model = data.get("d_model"), model.get("d_model")
    if None not in (width, d_model) and width != d_model:
        raise ValueError(f"data.d_model={width}: must be model.d_model={d_model}; leave it out")
    length, positions = data.get("max_length"), model.get("max_length")
    if length is not None and positions is not None and length + 1 > positions:
        raise ValueError(
            f"model.max_length={positions}: a sentence of {length + 1} tokens is too long; "
            f"raise it, or lower data.max_length={length}"
        )


def check_settings(config: TrainConfig) -> None:
    """Check the values of a run, and those that contradict each other.

    Raises:
        ValueError: Naming the key, its value and what is allowed.
    """
    check_limits(plain(config), TrainConfig, SECTIONS)
    processes_wanted(config.trainer)
    scale_factory(config)
    settings, attention = step_settings(config), config.attention
    make_schedule(settings.schedule, warmup=settings.warmup, total=settings.total_steps(1))
    _check_data(config)
    if attention.qk_clip is not None and attention.sigma_reparam != "none":
        raise ValueError(
            f"attention.qk_clip={attention.qk_clip}: cannot be used together with "
            f"attention.sigma_reparam={attention.sigma_reparam}, which sets the norms anew"
        )
