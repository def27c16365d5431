"""The scales of 12 models of timm 1.0, fused and eager, against its source (models/*.py)."""

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from timm.layers import set_fused_attn
from timm.models import VisionTransformer
from torch import nn

from tests.doctor_zoo.case import Batch, Case, check

D_MODEL, N_HEADS, D_K = 60, 5, 12
SQRT = D_K**-0.5

SMALL = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": D_MODEL,
    "num_heads": N_HEADS,
    "depth": 2,
    "num_classes": 7,
}
WINDOWS = {
    "img_size": 32,
    "patch_size": 2,
    "window_size": 4,
    "embed_dim": 24,
    "depths": (2,),
    "num_heads": (2,),
}


def vit(**settings: Any) -> Callable[[], nn.Module]:
    return lambda: VisionTransformer(**SMALL, **settings)


def named(name: str, settings: dict[str, Any] = SMALL) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, **settings)


# 1/√d_k where no more is said: q = q * self.scale, self.scale = head_dim ** -0.5, then matmul, or a
# fused kernel without a scale.
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[float, ...]]] = {
    "vit": (vit(), (SQRT, SQRT)),
    # q_norm and k_norm: LayerNorm of each head
    "vit, qk_norm": (vit(qk_norm=True), (SQRT, SQRT)),
    # AttentionPoolLatent: q of one learned token
    "vit, pooled": (vit(global_pool="map"), (SQRT, SQRT, SQRT)),
    # The second block's windows are shifted: a mask of -100.
    "swin": (named("swin_tiny_patch4_window7_224", WINDOWS), (SQRT, SQRT)),
    # F.normalize of both × exp(logit_scale), which starts at ln 10; eager always
    "swinv2": (named("swinv2_tiny_window8_256", WINDOWS), (10.0, 10.0)),
    "beit": (named("beit_base_patch16_224"), (SQRT, SQRT)),
    # TalkingHeadAttn: proj_l mixes heads, none has a scale of its own. The two ClassAttn have.
    "cait": (named("cait_xxs24_224"), (SQRT, SQRT)),
    # XCA: F.normalize of channels over positions × temperature, which starts at 1; two ClassAttn
    "xcit": (named("xcit_nano_12_p16_224"), (1.0, 1.0, SQRT, SQRT)),
    "deit3": (named("deit3_small_patch16_224"), (SQRT, SQRT)),
    "eva02": (named("eva02_tiny_patch14_224"), (SQRT, SQRT)),
    "vit, averaged": (named("vit_medium_patch16_gap_240"), (SQRT, SQRT)),
    "dinov3": (named("vit_small_plus_patch16_dinov3"), (SQRT, SQRT)),
}
HIDDEN = {"cait": ("blocks.0.attn", "blocks.1.attn")}
NORMALISED = ("vit, qk_norm", "swinv2")


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_the_scale_is_that_of_the_source_and_the_output_is_the_same(name: str, fused: bool) -> None:
    model, scales = MODELS[name]

    def build() -> tuple[nn.Module, Batch]:
        set_fused_attn(fused, experimental=fused)
        return model(), torch.randn(2, 3, 32, 32)

    for one in check(Case(build, scales, HIDDEN.get(name, ()))):
        if name in NORMALISED:
            assert (one.origin_q, one.origin_k) == ("normalised", "normalised"), one
        elif one.d_k == D_K:
            ways = ("fused", "raw") if fused else ("eager", "rescaled")
            assert (one.how, one.origin_q, one.origin_k) == (*ways, "raw"), one
