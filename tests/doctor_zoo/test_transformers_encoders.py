"""The scales of 18 settings of encoders of transformers 5.24, against its modeling_*.py."""

import pytest
import torch
from torch import nn

from tests.doctor_zoo.case import NORMALISED, RAW, Batch, Case, check
from tests.doctor_zoo.transformers_settings import (
    D_K,
    D_MODEL,
    EAGER,
    ENCODER,
    N_HEADS,
    SQRT,
    N,
    each_way,
    settings,
    tokens,
)

BOTH_SIDES = {
    "d_model": D_MODEL,
    "encoder_attention_heads": N_HEADS,
    "decoder_attention_heads": N_HEADS,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "vocab_size": 99,
    "pad_token_id": 0,
    "decoder_start_token_id": 1,
}
VISION = {
    "hidden_size": D_MODEL,
    "num_attention_heads": N_HEADS,
    "num_hidden_layers": 2,
    "intermediate_size": 40,
    "image_size": 16,
    "patch_size": 4,
}
SWIN = {"image_size": 16, "patch_size": 2, "embed_dim": 24, "depths": (1, 1), "num_heads": (2, 4)}
AHEAD = ("rescaled", "raw")


def pair() -> Batch:
    return {"input_ids": tokens(), "decoder_input_ids": tokens(9)}


def picture() -> Batch:
    return {"pixel_values": torch.randn(2, 3, 16, 16)}


CASES = {
    "bert": settings("bert", ENCODER, SQRT, SQRT, origins=RAW),
    "distilbert": settings(
        "distilbert",
        {"dim": D_MODEL, "n_heads": N_HEADS, "n_layers": 2, "hidden_dim": 40, "vocab_size": 99},
        *(SQRT, SQRT),
        origins=RAW,
    ),
    # scale = torch.sqrt(query_layer.size(-1) * scale_factor), three terms.
    "deberta_v2, three terms": settings(
        "deberta-v2",
        {**ENCODER, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        *[(3 * D_K) ** -0.5] * 2,
        ways=EAGER,
        origins=("raw", "rescaled"),
        further=((3 * D_K) ** -0.5, (3 * D_K) ** -0.5),
    ),
    # query_layer = query_layer * self.attention_head_size**-0.5, then rotated; scaling is 1.0
    "esm": settings(
        "esm",
        {**ENCODER, "position_embedding_type": "rotary", "mask_token_id": 1},
        *(SQRT, SQRT),
        origins=AHEAD,
    ),
    # Chunks that overlap: no product of queries and keys is whole.
    "longformer": settings(
        "longformer",
        {**ENCODER, "attention_window": [4, 4], "max_position_embeddings": 64},
        batch=lambda: {"input_ids": tokens(16)},
        ways=EAGER,
        hidden=("encoder.layer.0", "encoder.layer.1"),
    ),
    # attn_score = (ac + bd + ef) * self.scale, of contents and of positions
    "xlnet": settings(
        "xlnet",
        {"d_model": D_MODEL, "n_head": N_HEADS, "n_layer": 2, "d_inner": 40, "vocab_size": 99},
        *(SQRT, SQRT),
        ways=EAGER,
        origins=RAW,
        further=(SQRT,),
    ),
    # key_vectors / np.sqrt(self.attention_head_size); of the other, _len_and_dim_norm: keys of
    # length √d_k by a normalisation, and the same.
    "reformer": settings(
        "reformer",
        {
            "hidden_size": D_MODEL,
            "num_attention_heads": N_HEADS,
            "attention_head_size": D_K,
            "attn_layers": ["local", "lsh"],
            "feed_forward_size": 40,
            "axial_pos_embds": False,
            "max_position_embeddings": 64,
            "num_buckets": 4,
            "vocab_size": 99,
            "hash_seed": 3,
        },
        *(SQRT, SQRT),
        batch=lambda: {"input_ids": tokens(16)},
        ways=EAGER,
    ),
    # self.scaling = 1.0: the factor is in the weights' standard deviation.
    "t5": settings(
        "t5",
        {
            "d_model": D_MODEL,
            "d_kv": D_K,
            "num_heads": N_HEADS,
            "num_layers": 1,
            "d_ff": 40,
            "vocab_size": 99,
        },
        *(1.0, 1.0, 1.0),
        batch=pair,
        origins=RAW,
    ),
    "bart": settings("bart", BOTH_SIDES, SQRT, SQRT, SQRT, batch=pair, origins=RAW),
    "marian": settings("marian", BOTH_SIDES, SQRT, SQRT, SQRT, batch=pair, origins=RAW),
    # query_states = (self.q_proj(hidden_states) * self.scaling); then scaling=1.0
    "whisper": settings(
        "whisper",
        {**BOTH_SIDES, "num_mel_bins": 8, "max_source_positions": N, "bos_token_id": 1},
        *(SQRT, SQRT, SQRT),
        batch=lambda: {
            "input_features": torch.randn(2, 8, 2 * N),
            "decoder_input_ids": tokens(9),
        },
        origins=AHEAD,
    ),
    "vit": settings("vit", VISION, SQRT, SQRT, batch=picture, origins=RAW),
    "clip": settings(
        "clip",
        {
            "text_config": {**ENCODER, "num_hidden_layers": 1, "eos_token_id": 1},
            "vision_config": VISION,
        },
        *(SQRT, SQRT, SQRT),
        batch=lambda: {"input_ids": tokens(), "pixel_values": torch.randn(2, 3, 16, 16)},
        origins=RAW,
    ),
    "swin": settings("swin", {**SWIN, "window_size": 4}, SQRT, SQRT, batch=picture, origins=RAW),
    # F.normalize of both; logit_scale starts at ln 10
    "swinv2": settings(
        "swinv2",
        {**SWIN, "window_size": 4},
        *(10.0, 10.0),
        batch=picture,
        ways=EAGER,
        origins=NORMALISED,
    ),
    "wav2vec2": settings(
        "wav2vec2",
        {
            **ENCODER,
            "num_hidden_layers": 1,
            "conv_dim": (8, 8),
            "conv_kernel": (10, 4),
            "conv_stride": (5, 4),
            "num_feat_extract_layers": 2,
            "feat_extract_norm": "layer",
            "num_conv_pos_embeddings": 8,
            "num_conv_pos_embedding_groups": 2,
        },
        SQRT,
        batch=lambda: {"input_values": torch.randn(2, 400)},
        origins=RAW,
    ),
    # `attention_scores = attention_scores / math.sqrt(self.attention_head_size)`
    "big_bird, full": settings(
        "big_bird",
        {**ENCODER, "attention_type": "original_full"},
        *(SQRT, SQRT),
        ways=EAGER,
        origins=RAW,
    ),
    # Heads are padded from 12 to 16, and the factor is that of 12.
    "moonshine": settings(
        "moonshine",
        {
            "hidden_size": D_MODEL,
            "encoder_num_attention_heads": N_HEADS,
            "decoder_num_attention_heads": N_HEADS,
            "encoder_num_key_value_heads": N_HEADS,
            "decoder_num_key_value_heads": N_HEADS,
            "encoder_num_hidden_layers": 1,
            "decoder_num_hidden_layers": 1,
            "intermediate_size": 40,
            "vocab_size": 99,
            "pad_head_dim_to_multiple_of": 16,
        },
        *(SQRT, SQRT, SQRT),
        batch=lambda: {
            "input_values": torch.randn(2, 6000),
            "decoder_input_ids": tokens(9),
        },
    ),
}


@pytest.mark.parametrize("case", each_way(CASES))
def test_the_scale_is_that_of_the_source_and_the_output_is_the_same(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("name", ["bert", "t5", "whisper", "swinv2"])
def test_a_scale_is_read_to_a_hundredth_in_bf16(name: str) -> None:
    for case, _ in CASES[name]:

        def build(case: Case = case) -> tuple[nn.Module, Batch]:
            model, batch = case.build()
            assert isinstance(batch, dict)
            halves = {k: v.bfloat16() if v.is_floating_point() else v for k, v in batch.items()}
            return model.bfloat16(), halves

        check(Case(build, case.scales), tolerance=1e-2)
