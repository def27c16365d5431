"""The scales of 22 settings of decoders of transformers 5.24, against its modeling_*.py."""

import math

import pytest

from tests.doctor_zoo.case import NORMALISED, RAW, Case, check
from tests.doctor_zoo.transformers_settings import (
    D_K,
    D_MODEL,
    EAGER,
    ENCODER,
    N_HEADS,
    SQRT,
    each_way,
    settings,
)

DECODER = {
    "hidden_size": D_MODEL,
    "head_dim": D_K,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 40,
    "vocab_size": 99,
    "pad_token_id": 0,
}
GPT2 = {"n_embd": D_MODEL, "n_head": N_HEADS, "n_layer": 2, "vocab_size": 99}
MLA = {
    **ENCODER,
    "num_key_value_heads": N_HEADS,
    "q_lora_rank": 20,
    "kv_lora_rank": 18,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
    "first_k_dense_replace": 2,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "original_max_position_embeddings": 64}
AHEAD = ("rescaled", "raw")

CASES = {
    # Where nothing else is said: self.scaling = self.head_dim**-0.5, given to either way.
    "llama, shared keys": settings("llama", DECODER, SQRT, SQRT, origins=RAW),
    # `self.scaling = config.query_pre_attn_scalar**-0.5`
    "gemma2": settings(
        "gemma2",
        {**DECODER, "query_pre_attn_scalar": 24},
        *(24**-0.5, 24**-0.5),
        ways=EAGER,
        origins=RAW,
    ),
    "gemma3": settings(
        "gemma3_text",
        {**DECODER, "query_pre_attn_scalar": 24},
        *(24**-0.5, 24**-0.5),
        origins=NORMALISED,
    ),
    "qwen3": settings("qwen3", DECODER, SQRT, SQRT, origins=NORMALISED),
    # q_norm over all heads together.
    "olmo2": settings(
        "olmo2",
        {**ENCODER, "num_key_value_heads": N_HEADS},
        *(SQRT, SQRT),
        origins=NORMALISED,
    ),
    # `self.scaling = config.attention_multiplier`
    "granite": settings(
        "granite", {**DECODER, "attention_multiplier": 0.0078}, 0.0078, 0.0078, origins=RAW
    ),
    "cohere2": settings("cohere2", DECODER, SQRT, SQRT, origins=RAW),
    # cos and sin of q and of k × 0.1 ln(factor) + 1, and the scale besides.
    "gpt_oss, its YaRN": settings(
        "gpt_oss",
        {
            **DECODER,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "rope_parameters": {**YARN, "factor": 32.0},
        },
        *[SQRT * (0.1 * math.log(32) + 1) ** 2] * 2,
        ways=EAGER,
        origins=("rescaled", "rescaled"),
    ),
    "gpt_oss": settings(
        "gpt_oss",
        {
            **DECODER,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
        *(SQRT, SQRT),
        ways=EAGER,
        origins=RAW,
    ),
    "llama4": settings(
        "llama4_text",
        {
            **DECODER,
            "intermediate_size_mlp": 40,
            "num_local_experts": 2,
            "use_qk_norm": False,
            "attn_temperature_tuning": False,
        },
        *(SQRT, SQRT),
    ),
    # self.qk_head_dim ** (-0.5), of both parts of a key; k is put together of two projections.
    "deepseek_v3": settings("deepseek_v3", MLA, SQRT, SQRT),
    # yarn_apply_mscale: × mscale², mscale = 0.1 · mscale_all_dim · ln(factor) + 1
    "deepseek_v3, YaRN": settings(
        "deepseek_v3",
        {
            **MLA,
            "rope_parameters": {**YARN, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
        *[SQRT * (0.1 * math.log(40) + 1) ** 2] * 2,
    ),
    "gpt2": settings("gpt2", GPT2, SQRT, SQRT, origins=RAW),
    # if self.scale_attn_weights: …, else 1.0
    "gpt2, no scale": settings("gpt2", {**GPT2, "scale_attn_weights": False}, 1.0, 1.0),
    # `self.scaling /= float(self.layer_idx + 1)`
    "gpt2, by layer": settings(
        "gpt2", {**GPT2, "scale_attn_by_inverse_layer_idx": True}, SQRT, SQRT / 2
    ),
    # attn_weights = torch.matmul(query, key.transpose(-1, -2)), and no more.
    "gpt_neo": settings(
        "gpt_neo",
        {
            "hidden_size": D_MODEL,
            "num_heads": N_HEADS,
            "num_layers": 2,
            "attention_types": [[["global", "local"], 1]],
            "vocab_size": 99,
        },
        *(1.0, 1.0),
        ways=EAGER,
        origins=RAW,
    ),
    "gptj": settings("gptj", {**GPT2, "rotary_dim": 4}, SQRT, SQRT, origins=RAW),
    # query_states = self.q_proj(hidden_states) * self.scaling; then scaling=1.0
    "opt": settings(
        "opt",
        {**ENCODER, "ffn_dim": 40, "word_embed_proj_dim": D_MODEL},
        *(SQRT, SQRT),
        origins=AHEAD,
    ),
    # alibi.baddbmm(…, alpha=self.inv_norm_factor)
    "bloom": settings(
        "bloom",
        {"hidden_size": D_MODEL, "n_head": N_HEADS, "n_layer": 2, "vocab_size": 99},
        *(SQRT, SQRT),
        ways=EAGER,
        origins=RAW,
    ),
    # `self.softmax_scale = 1 / math.sqrt(self.hidden_size / self.n_heads)`
    "mpt": settings(
        "mpt",
        {"d_model": D_MODEL, "n_heads": N_HEADS, "n_layers": 2, "vocab_size": 99},
        *(SQRT, SQRT),
        ways=EAGER,
        origins=RAW,
    ),
    # attention_logits *= self.inv_norm_factor, in place; alibi is divided likewise.
    "falcon, ALiBi": settings(
        "falcon",
        {**ENCODER, "alibi": True, "multi_query": False, "new_decoder_architecture": False},
        *(SQRT, SQRT),
        origins=RAW,
    ),
    # `attention_scores /= math.sqrt(self.head_dim)`
    "falcon, one key for all heads": settings(
        "falcon",
        {**ENCODER, "alibi": False, "multi_query": True, "new_decoder_architecture": False},
        *(SQRT, SQRT),
    ),
}


@pytest.mark.parametrize("case", each_way(CASES))
def test_the_scale_is_that_of_the_source_and_the_output_is_the_same(case: Case) -> None:
    check(case)
