"""The scales of 18 settings of x-transformers 2.31, against its source (attend.py)."""

from typing import Any

import pytest
import torch
from torch import nn
from x_transformers import Encoder, TransformerWrapper

from tests.doctor_zoo.case import NORMALISED, RAW, Batch, Case, check

D_MODEL, N_HEADS, D_K, N = 60, 5, 12, 14
SQRT = D_K**-0.5


def case(*scales: float, origins: Any = None, hidden: tuple[str, ...] = (), **options: Any) -> Case:
    def build() -> tuple[nn.Module, Batch]:
        values = {"attn_dim_head": D_K, "heads": N_HEADS, "ff_mult": 1, **options}
        layers = Encoder(dim=D_MODEL, depth=2, **values)
        model = TransformerWrapper(num_tokens=99, max_seq_len=32, attn_layers=layers)
        return model, torch.randint(99, (2, N))

    return Case(build, scales, hidden, origins)


CASES = {
    # Where no more is said: sim = sim * scale, scale = default(self.scale, q.shape[-1] ** -0.5)
    "plain": case(SQRT, SQRT, origins=RAW),
    # F.scaled_dot_product_attention without a scale, on q * (self.scale / default_scale)
    "fused": case(SQRT, SQRT, attn_flash=True, origins=RAW),
    # l2norm of both; scale = qk_norm_scale = 10
    "cosine": case(10.0, 10.0, attn_qk_norm=True, origins=NORMALISED),
    "cosine, fused": case(10.0, 10.0, attn_qk_norm=True, attn_flash=True, origins=NORMALISED),
    # × init_scale = dim_head ** 0.25 of both, and qk_norm_scale = dim_head ** -0.5
    "cosine, scaled by component": case(
        *(1.0, 1.0), attn_qk_norm=True, attn_qk_norm_dim_scale=True, origins=NORMALISED
    ),
    # MultiheadRMSNorm: F.normalize × √dim_head of both, and 1/√dim_head
    "RMS norm": case(*[D_K * SQRT] * 2, attn_qk_rmsnorm=True, origins=NORMALISED),
    "rotary": case(SQRT, SQRT, rotary_pos_emb=True),
    "ALiBi": case(SQRT, SQRT, alibi_pos_bias=True, origins=RAW),
    # `softclamp: (t / value).tanh() * value`
    "soft cap": case(SQRT, SQRT, attn_softclamp_logits=True, origins=RAW),
    "relative position": case(SQRT, SQRT, rel_pos_bias=True, origins=RAW),
    # sim = sim + self.pre_softmax_talking_heads(sim), which is the identity at the start
    "talking heads": case(2 * SQRT, 2 * SQRT, attn_pre_talking_heads=True, origins=RAW),
    # sim = -qk_l2_dist_squared(q, k): cdist of q and k, no product
    "distance": case(
        attn_l2_distance=True, hidden=("attn_layers.layers.0", "attn_layers.layers.2")
    ),
    "sigmoid": case(SQRT, SQRT, attn_sigmoid=True, origins=RAW),
    "largest keys alone": case(SQRT, SQRT, attn_sparse_topk=4, origins=RAW),
    "one key for all heads": case(SQRT, SQRT, attn_one_kv_head=True, origins=RAW),
    "sinks": case(SQRT, SQRT, attn_head_learned_sink=True, origins=RAW),
    "memory keys": case(SQRT, SQRT, attn_num_mem_kv=3),
    "latent keys": case(
        *(SQRT, SQRT),
        attn_use_latent_q=True,
        attn_dim_latent_q=20,
        attn_use_latent_kv=True,
        attn_dim_latent_kv=18,
        origins=RAW,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_scale_is_that_of_the_source_and_the_output_is_the_same(name: str) -> None:
    attentions = check(CASES[name])
    for one in attentions:
        assert one.softcap == (pytest.approx(50, rel=1e-6) if name == "soft cap" else None)
        assert one.sinks == (name == "sinks")
        assert one.end == ("sigmoid" if name == "sigmoid" else "softmax")
        assert one.how == ("fused" if "fused" in name else "eager")
        assert one.bias == (name in ("ALiBi", "relative position"))
