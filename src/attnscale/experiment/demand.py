"""What a run needs of its machine, told from its configuration alone, before anything is built."""

from dataclasses import dataclass

from attnscale.config.choice_schema import TrainerConfig
from attnscale.config.schema import TrainConfig
from attnscale.config.section import ModelNode

WEIGHTS_OF_TWO_THREADS = 1 << 20
MAX_THREADS = 8


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What a run needs.

    Attributes:
        threads: Torch's threads of a process.
        processes: Processes that train together.
        gpus: How many GPUs; 0 on the CPU, None for all that are there.
        work: How long it takes beside others of its kind, in no unit.
    """

    threads: int
    processes: int
    gpus: int | None
    work: float


def layer_weights(model: ModelNode) -> int:
    """Return the weights of the matrices of a model's layers, of one stack where there are two.

    W_q, W_k: d_model × n_heads·d_k; W_v, W_o: d_model × n_heads·d_v; two of d_model × feed_forward.
    Of a model without these keys 0.
    """
    d_model, d_k = int(model.get("d_model") or 0), int(model.get("d_k") or 0)
    d_v, heads = int(model.get("d_v") or d_k), int(model.get("n_heads") or 1)
    attention = 2 * d_model * heads * (d_k + d_v)
    return int(model.get("n_layers") or 1) * (
        attention + 2 * d_model * int(model.get("feed_forward") or 0)
    )


def threads_for(model: ModelNode, cores: int) -> int:
    """Return torch's threads for a model: more for a larger one, and no more than there are cores.

    One below 2²⁰ weights in its layers, twice as many for each factor 4, eight at most. What else
    runs on the machine does not count, so that a run has the same threads, and so the same last
    digits, alone and beside others.
    """
    threads, weights = 1, layer_weights(model)
    while threads < MAX_THREADS and weights >= WEIGHTS_OF_TWO_THREADS * threads**2:
        threads *= 2
    return max(1, min(threads, cores))


def _devices(trainer: TrainerConfig) -> int | None:
    """Return how many devices are asked for; None for all."""
    if isinstance(trainer.devices, list):
        return len(trainer.devices)
    try:
        count = int(trainer.devices)
    except (TypeError, ValueError):
        return None
    return count if count > 0 else None


def demand(config: TrainConfig, *, cores: int, n_gpus: int) -> Demand:
    """Return what a run needs on a machine.

    Args:
        config: Its configuration.
        cores: Cores of the machine.
        n_gpus: GPUs of the machine.
    """
    trainer = config.trainer
    on_gpu = trainer.accelerator in ("gpu", "cuda") or (trainer.accelerator == "auto" and n_gpus)
    devices = _devices(trainer)
    epochs = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else 1
    return Demand(
        threads=config.threads or threads_for(config.model, cores),
        processes=(devices or max(1, n_gpus if on_gpu else 1)),
        gpus=devices if on_gpu else 0,
        work=float(epochs) * max(1, layer_weights(config.model)),
    )
