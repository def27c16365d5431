"""Scales that released packages have otherwise than they say, as the doctor tells them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from denoising_diffusion_pytorch.attend import Attend
from diffusers.models.attention_processor import Attention, AttnProcessor, AttnProcessor2_0
from timm.layers import set_fused_attn
from timm.models import VisionTransformer
from torch import Tensor, nn
from transformers import CvtConfig, CvtModel
from x_transformers import Encoder

from attnscale.doctor import Comparison, compare, examine

pytestmark = pytest.mark.slow

D_MODEL, N_HEADS, D_K, N = 60, 5, 12, 14


class Projected(nn.Module):
    """A function of q, k and v, between projections."""

    def __init__(self, core: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.core = core
        self.qkv = nn.Linear(D_MODEL, 3 * D_MODEL)

    def forward(self, x: Tensor) -> Any:
        q, k, v = self.qkv(x).unflatten(-1, (3, N_HEADS, D_K)).permute(2, 0, 3, 1, 4)
        return self.core(q, k, v)


def states() -> Tensor:
    return torch.randn(2, N, D_MODEL)


def compared(fused: nn.Module, eager: nn.Module, batch: Tensor) -> Comparison:
    eager.load_state_dict(fused.state_dict())
    return compare(fused.eval(), eager.eval(), batch, names=("fused", "eager"))


def lost(comparison: Comparison, fused: float, eager: float) -> None:
    """Check that each attention has one scale fused and another one eager, and that it is told."""
    for one in comparison.first.attentions:
        assert one.scales == pytest.approx([fused] * N_HEADS, rel=1e-6)
    for one in comparison.second.attentions:
        assert one.scales == pytest.approx([eager] * N_HEADS, rel=1e-6)
    assert not comparison.equal
    words = f"scale {fused:.4g} in fused, {eager:.4g} in eager: lost in the fused path"
    assert [one.words for one in comparison.differences] == [words] * len(
        comparison.first.attentions
    )


def test_denoising_diffusion_pytorch_divides_a_scale_by_d_where_it_is_fused() -> None:
    # q = q * (self.scale / default_scale), default_scale = q.shape[-1]; then 1/√d of the kernel.
    fused, eager = (Projected(Attend(flash=flash, scale=10)) for flash in (True, False))
    lost(compared(fused, eager, states()), 10 / D_K * D_K**-0.5, 10.0)


def test_diffusers_scales_by_its_fused_processor_what_is_not_to_be_scaled() -> None:
    fused, eager = (
        Attention(D_MODEL, heads=N_HEADS, dim_head=D_K, scale_qk=False, processor=processor)
        for processor in (AttnProcessor2_0(), AttnProcessor())
    )
    lost(compared(fused, eager, states()), D_K**-0.5, 1.0)


def test_timm_reads_the_scale_of_an_attention_where_it_is_eager_alone() -> None:
    def model(fuses: bool) -> Any:
        set_fused_attn(fuses)
        vit = VisionTransformer(
            img_size=32, patch_size=8, embed_dim=D_MODEL, num_heads=N_HEADS, depth=2, num_classes=7
        )
        for block in vit.blocks:
            block.attn.scale = 0.7
        return vit

    lost(compared(model(True), model(False), torch.randn(2, 3, 32, 32)), D_K**-0.5, 0.7)


def test_the_talking_heads_of_x_transformers_start_at_twice_the_scale() -> None:
    layers = Encoder(
        dim=D_MODEL, depth=1, heads=N_HEADS, attn_dim_head=D_K, attn_pre_talking_heads=True
    )
    report = examine(layers.eval(), states())
    (one,) = report.attentions
    assert one.scales == pytest.approx([2 * D_K**-0.5] * N_HEADS, rel=1e-6)
    (finding,) = [one for one in report.findings if one.level == "WARN"]
    assert finding.words.startswith("scale 0.5774, 2 times 1/√d_k")


def test_cvt_divides_by_the_width_of_the_model() -> None:
    # `self.scale = embed_dim**-0.5`
    config = CvtConfig(
        embed_dim=[24, D_MODEL, 84],
        num_heads=[2, N_HEADS, 7],
        depth=[1, 2, 3],
        mlp_ratio=[1.0, 1.0, 1.0],
    )
    report = examine(CvtModel(config).eval(), torch.randn(2, 3, 64, 64))
    scales = [one.scale for one in report.attentions]
    wanted = [24**-0.5, *[D_MODEL**-0.5] * 2, *[84**-0.5] * 3]
    assert scales == pytest.approx(wanted, rel=1e-6)
    words = [one.words for one in report.findings if one.level == "WARN"]
    assert len(words) == len(wanted)
    assert all("1/√d_model: by model width" in one for one in words)
