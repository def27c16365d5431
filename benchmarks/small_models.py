"""A small model with random weights of each type of transformers, and batches that it may take."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

D_MODEL, N_HEADS, D_K, N_LAYERS, N = 60, 5, 12, 2, 16
"""Sizes without coincidences: no scale of theirs could be another's."""

MAX_PARAMETERS = 30_000_000
"""A model with more is not small: some size of it has a name that is not known here."""

HEADS = (
    *("num_attention_heads", "num_heads", "n_head", "n_heads", "nhead", "attention_heads"),
    *("encoder_attention_heads", "decoder_attention_heads", "encoder_num_attention_heads"),
    *("decoder_num_attention_heads", "num_key_value_heads", "encoder_num_key_value_heads"),
    *("decoder_num_key_value_heads", "num_encoder_attention_heads"),
    *("num_decoder_attention_heads", "n_kv_heads", "num_kv_heads"),
)
SIZES = {
    **dict.fromkeys(HEADS, N_HEADS),
    **dict.fromkeys(
        (
            *("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "emb_dim", "model_dim"),
            *("word_embed_proj_dim", "decoder_hidden_size", "embedding_size"),
            *("encoder_hidden_size", "axial_pos_embds_dim"),
        ),
        D_MODEL,
    ),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_size", "kv_channels", "d_head"), D_K),
    **dict.fromkeys(
        (
            *("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "depth"),
            *("decoder_layers", "num_decoder_layers", "num_encoder_layers"),
            *("encoder_num_hidden_layers", "decoder_num_hidden_layers"),
        ),
        N_LAYERS,
    ),
    **dict.fromkeys(
        (
            *("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff"),
            *("d_inner", "n_inner", "hidden_dim", "moe_intermediate_size", "ffn_hidden_size"),
            *("intermediate_size_mlp", "shared_expert_intermediate_size", "feed_forward_size"),
        ),
        40,
    ),
    **dict.fromkeys(("vocab_size", "decoder_vocab_size"), 99),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 64),
    **dict.fromkeys(("image_size", "img_size"), 64),
    **dict.fromkeys(("patch_size", "num_mel_bins", "qk_nope_head_dim"), 8),
    **dict.fromkeys(
        (
            *("num_local_experts", "num_experts", "n_routed_experts", "qk_rope_head_dim"),
            *("rotary_dim", "window_size", "num_conv_pos_embedding_groups"),
        ),
        4,
    ),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk"), 2),
    **dict.fromkeys(("n_group", "topk_group"), 1),
    **{"q_lora_rank": 20, "kv_lora_rank": 18, "v_head_dim": 10, "pad_token_id": 0},
}
"""What sizes are called in configurations, and what they are here."""


def small_config(model_type: str) -> Any:
    """Return a type's configuration with each size that has a known name small.

    Raises:
        Exception: Whatever a configuration finds wrong with these sizes.
    """
    from transformers import AutoConfig

    default = AutoConfig.for_model(model_type)
    values = default.to_dict()
    known: dict[str, Any] = {}
    for name, size in SIZES.items():
        own_name = default.attribute_map.get(name, name)
        value = values.get(own_name, "")
        if value is None or type(value) is int:
            # A default that is smaller has its reasons.
            smaller = value is not None and value < size and name not in HEADS
            known[own_name] = value if smaller or value == 1 else size
    if "qk_rope_head_dim" in known:
        # What is rotated is then as wide as that says.
        known.pop("head_dim", None)
    if isinstance(values.get("image_size"), list):
        known["image_size"] = [SIZES["image_size"]] * 2
    kinds = values.get("layer_types")
    if isinstance(kinds, list) and "num_hidden_layers" in known:
        # One layer of each kind, at least two.
        distinct = list(dict.fromkeys(kinds))
        known["layer_types"] = distinct if len(distinct) > 1 else distinct * N_LAYERS
        known["num_hidden_layers"] = n_layers = len(known["layer_types"])
        feed_forward = values.get("mlp_layer_types")
        if isinstance(feed_forward, list):
            known["mlp_layer_types"] = feed_forward[-n_layers:]
    rope = values.get("rope_parameters")
    if isinstance(rope, dict) and "mrope_section" in rope:
        known["rope_parameters"] = {**rope, "mrope_section": [D_K // 6] * 3}
    return AutoConfig.for_model(model_type, **known)


def small_model(config: Any, way: str) -> nn.Module:
    """Return a model in evaluation whose attention is computed one way.

    Raises:
        ValueError: If it is not small, or has no such way.
        Exception: Whatever a model finds wrong with its sizes.
    """
    from transformers import AutoModel

    with torch.device("meta"):
        count = sum(p.numel() for p in AutoModel.from_config(config).parameters())
    if count > MAX_PARAMETERS:
        raise ValueError(f"{count:,} parameters")
    torch.manual_seed(0)
    model: nn.Module = AutoModel.from_config(config, attn_implementation=way)
    return model.eval()


def batches(model: Any) -> Iterator[dict[str, Tensor]]:
    """Yield what a model may be called with, the likeliest first."""
    config = model.config
    ids = torch.randint(3, 99, (2, N))
    name = model.main_input_name
    size = getattr(config, "image_size", 32)
    height, width = (size, size) if isinstance(size, int) else tuple(size)[:2]
    channels = getattr(config, "num_channels", 3)
    if name == "input_ids":
        yield {"input_ids": ids}
        yield {"input_ids": ids, "decoder_input_ids": ids[:, :9]}
        yield {"input_ids": ids, "bbox": torch.zeros(2, N, 4, dtype=torch.long)}
    elif name in ("pixel_values", "pixel_values_videos"):
        frames = getattr(config, "num_frames", getattr(config, "frames_per_clip", 2))
        yield {name: torch.randn(2, channels, height, width)}
        yield {name: torch.randn(2, frames, channels, height, width)}
        yield {name: torch.randn(2, channels, 2 * height, 2 * width)}
    else:
        mels = getattr(config, "num_mel_bins", 8)
        positions = 2 * getattr(config, "max_source_positions", N)
        for shape in ((2, mels, positions), (2, 4000), (2, 64, mels), (2, 1, 4000), (2, mels, 64)):
            for more in ({}, {"decoder_input_ids": ids[:, :9]}):
                yield {name: torch.randn(shape), **more}
