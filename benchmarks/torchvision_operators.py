"""Lets torchvision be imported beside a torch without CUDA."""

import torch

SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def complete_torchvision() -> None:
    """Import torchvision, and give it the operators that it wants at import if it has none.

    Its wheel for Linux is built for CUDA. Beside a torch for CPUs its operators cannot be loaded,
    and it then fails at the two that it describes whether they are there or not. No attention
    calls them.
    """
    try:
        import torchvision  # noqa: F401
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        for operator in ("nms", "qnms"):
            torch.library.define(f"torchvision::{operator}", SCHEMA)
