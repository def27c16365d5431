"""The scales of diffusers 0.42, against its source (models/attention_processor.py)."""

from typing import Any

import pytest
import torch
from diffusers import FluxTransformer2DModel, UNet2DConditionModel
from diffusers.models.attention_processor import Attention, AttnProcessor, AttnProcessor2_0
from diffusers.models.transformers.t5_film_transformer import T5FilmDecoder
from torch import nn

from tests.doctor_zoo.case import NORMALISED, RAW, Batch, Case, check

D_MODEL, N_HEADS, D_K = 60, 5, 12
SQRT = D_K**-0.5


def attention(**settings: Any) -> tuple[nn.Module, Batch]:
    model = Attention(query_dim=D_MODEL, heads=N_HEADS, dim_head=D_K, **settings)
    return model, torch.randn(2, 14, D_MODEL)


def unet() -> tuple[nn.Module, Batch]:
    model = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(24, 48),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=20,
        attention_head_dim=4,  # which is how many heads there are
        norm_num_groups=4,
    )
    return model, (torch.randn(2, 4, 8, 8), torch.tensor(3), torch.randn(2, 7, 20))


def flux() -> tuple[nn.Module, Batch]:
    model = FluxTransformer2DModel(
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=D_K,
        num_attention_heads=N_HEADS,
        joint_attention_dim=20,
        pooled_projection_dim=10,
        axes_dims_rope=(4, 4, 4),
    )
    return model, {
        "hidden_states": torch.randn(2, 16, 4),
        "encoder_hidden_states": torch.randn(2, 7, 20),
        "pooled_projections": torch.randn(2, 10),
        "timestep": torch.tensor([0.3, 0.7]),
        "img_ids": torch.randn(16, 3),
        "txt_ids": torch.zeros(7, 3),
    }


def film() -> tuple[nn.Module, Batch]:
    model = T5FilmDecoder(
        input_dims=8,
        targets_length=14,
        d_model=D_MODEL,
        num_layers=1,
        num_heads=N_HEADS,
        d_kv=D_K,
        d_ff=40,
    )
    encodings = [(torch.randn(2, 9, D_MODEL), torch.ones(2, 9))]
    return model, (encodings, torch.randn(2, 14, 8), torch.tensor([0.3, 0.7]))


CASES = {
    # torch.baddbmm(…, alpha=self.scale), self.scale = dim_head**-0.5
    "eager": Case(lambda: attention(processor=AttnProcessor()), (SQRT,), origins=RAW),
    # F.scaled_dot_product_attention without a scale
    "fused": Case(lambda: attention(processor=AttnProcessor2_0()), (SQRT,), origins=RAW),
    # self.scale = … if self.scale_qk else 1.0; AttnProcessor is then the default
    "no scale": Case(lambda: attention(scale_qk=False), (1.0,), origins=RAW),
    # Of itself and of the text: of one block down, of the middle, and of two blocks up.
    "UNet2DCondition": Case(unet, (SQRT,) * 8, origins=RAW),
    # norm_q and norm_k: RMSNorm of each head
    "Flux": Case(flux, (SQRT, SQRT), origins=NORMALISED),
    # Attention(…, scale_qk=False)
    "T5Film": Case(film, (1.0, 1.0), origins=RAW),
}


@pytest.mark.parametrize("name", CASES)
def test_the_scale_is_that_of_the_source_and_the_output_is_the_same(name: str) -> None:
    check(CASES[name])
