"""The scales of vit-pytorch 1.26 and open_clip 3.3, against their source."""

from collections.abc import Callable

import pytest
import torch
from open_clip.transformer import VisionTransformer
from torch import nn
from vit_pytorch import SimpleViT, ViT, cait, simple_vit_with_qk_norm, vit_for_small_dataset

from tests.doctor_zoo.case import NORMALISED, RAW, Batch, Case, check

D_MODEL, N_HEADS, D_K = 60, 5, 12
SQRT = D_K**-0.5

VIT = {
    "image_size": 32,
    "patch_size": 8,
    "num_classes": 7,
    "dim": D_MODEL,
    "depth": 2,
    "heads": N_HEADS,
    "mlp_dim": 40,
    "dim_head": D_K,
}


def of_pictures(model: Callable[[], nn.Module]) -> Callable[[], tuple[nn.Module, Batch]]:
    return lambda: (model(), torch.randn(2, 3, 32, 32))


CASES = {
    # dots = torch.matmul(q, k.transpose(-1, -2)) * self.scale, self.scale = dim_head ** -0.5
    "ViT": Case(of_pictures(lambda: ViT(**VIT)), (SQRT, SQRT), origins=RAW),
    "SimpleViT": Case(of_pictures(lambda: SimpleViT(**VIT)), (SQRT, SQRT), origins=RAW),
    # × self.temperature.exp(), which starts at dim_head ** -0.5; no token sees itself
    "learned temperature": Case(
        of_pictures(lambda: vit_for_small_dataset.ViT(**VIT)), (SQRT, SQRT), origins=RAW
    ),
    # einsum('b h i j, h g -> b g i j', dots, mix_heads_pre_attn) before the softmax
    "heads mixed": Case(
        of_pictures(lambda: cait.CaiT(**VIT, cls_depth=1)),
        (),
        hidden=(
            "patch_transformer.layers.0.0.fn.attend",
            "patch_transformer.layers.1.0.fn.attend",
            "cls_transformer.layers.0.0.fn.attend",
        ),
    ),
    # F.normalize × √dim_head × gamma, which starts at 1/√dim_head, and no factor
    "qk_norm": Case(
        of_pictures(lambda: simple_vit_with_qk_norm.SimpleViT(**VIT)),
        (1.0, 1.0),
        origins=NORMALISED,
    ),
    # nn.MultiheadAttention
    "open_clip": Case(
        of_pictures(
            lambda: VisionTransformer(
                image_size=32,
                patch_size=8,
                width=D_MODEL,
                layers=2,
                heads=N_HEADS,
                mlp_ratio=1.0,
                output_dim=7,
            )
        ),
        (SQRT, SQRT),
        origins=RAW,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_scale_is_that_of_the_source_and_the_output_is_the_same(name: str) -> None:
    check(CASES[name])
