"""Going on as if nothing had happened: where in an epoch, and with which random state.

A checkpoint of Lightning's knows its loops in whole batches of Lightning's, here blocks of several,
and no random state. What is added here makes k epochs, a stop anywhere between two steps, and the
rest equal to training straight through, bit for bit on a CPU.

An epoch that was broken off after b batches goes on in the block that holds batch b: the loader
gives what is left of it, which may be nothing, and what follows a block (validation, the end of the
epoch) then comes as it would have.
"""

import math
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch import Tensor

FIT, EPOCH_LOOP = "fit_loop", "epoch_loop."


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the state of all random generators of this process, in plain values and tensors."""
    version, numbers, gauss = random.getstate()
    # The global generator is what libraries may draw from.
    kind, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002
    state: dict[str, Any] = {
        # As tensors: single numbers are pickled one at a time.
        "python": [version, torch.tensor(numbers), gauss],
        "numpy": [
            str(kind),
            torch.from_numpy(np.asarray(keys, dtype=np.int64)),
            position,
            has_gauss,
            cached,
        ],
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def random_states(device: torch.device, n_processes: int) -> list[dict[str, Any]]:
    """Return :func:`random_state` of each process of the run; all of them ask."""
    own = random_state(device)
    states = [own] * n_processes
    if n_processes > 1:
        torch.distributed.all_gather_object(states, own)
    return states


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Set all random generators of this process as :func:`random_state` found them."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers.tolist()), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.cpu().numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(_bytes(state["torch"]))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(_bytes(state["cuda"]), device)


def _bytes(state: Tensor) -> Tensor:
    # Loading may have moved it to the device of the weights.
    return state.cpu().to(torch.uint8)


def rewind(loops: dict[str, Any], batches_done: int, block: int) -> None:
    """Let Lightning begin with the block that holds a batch of an epoch that was broken off.

    Args:
        loops: The section ``loops`` of a checkpoint; changed in place.
        batches_done: Batches of the epoch that were trained on, at least 1.
        block: Batches of a block.
    """
    fit = loops[FIT]
    before = math.ceil(batches_done / block) - 1
    epoch, batch = fit["epoch_progress"], fit[f"{EPOCH_LOOP}batch_progress"]
    for counts in (epoch["total"], epoch["current"]):
        counts["started"] = counts["ready"]
        counts["processed"] = counts["completed"] = counts["ready"] - 1
    batch["current"] = dict.fromkeys(("ready", "started"), before + 1)
    batch["current"] |= dict.fromkeys(("processed", "completed"), before)
    total = batch["total"]
    total["started"] = total["ready"]
    total["processed"] = total["completed"] = total["ready"] - 1
    batch["is_last_batch"] = False
    validation = fit[f"{EPOCH_LOOP}val_loop.batch_progress"]
    for counts in (validation["total"], validation["current"]):
        for name in counts:
            counts[name] = 0
