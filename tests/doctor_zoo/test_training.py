"""Models that are trained while they are examined are trained as if they were not."""

from collections.abc import Callable

import pytest
import torch
from timm.layers import set_fused_attn
from timm.models import VisionTransformer
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel
from x_transformers import Encoder

from attnscale.doctor import examine
from tests.doctor_zoo.case import tensors


def llama() -> nn.Module:
    config = LlamaConfig(
        hidden_size=60,
        num_attention_heads=5,
        num_hidden_layers=2,
        intermediate_size=40,
        vocab_size=99,
        attention_dropout=0.1,
        attn_implementation="sdpa",
    )
    model: nn.Module = LlamaModel(config)
    return model


def vit() -> nn.Module:
    set_fused_attn(False)
    model: nn.Module = VisionTransformer(
        img_size=16,
        patch_size=4,
        embed_dim=60,
        num_heads=5,
        depth=2,
        num_classes=7,
        attn_drop_rate=0.1,
        proj_drop_rate=0.1,
    )
    return model


def encoder() -> nn.Module:
    model: nn.Module = Encoder(
        dim=60, depth=2, heads=5, attn_dim_head=12, attn_dropout=0.1, attn_qk_norm=True
    )
    return model


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "fused, with dropout": (llama, lambda: torch.randint(99, (3, 14))),
    "eager, with dropout": (vit, lambda: torch.randn(3, 3, 16, 16)),
    "normalised, with dropout": (encoder, lambda: torch.randn(3, 14, 60)),
}


@pytest.mark.parametrize("name", MODELS)
def test_gradients_and_an_epoch_s_weights_are_the_same_to_the_bit(name: str) -> None:
    build, batch = MODELS[name]

    def epoch(examines: bool) -> list[Tensor]:
        """Return losses, the first step's gradients, the last weights, and the random state."""
        torch.manual_seed(0)
        model = build()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses: list[Tensor] = []
        gradients: list[Tensor] = []

        def forward(m: nn.Module) -> None:
            losses.append(tensors(m(batch()))[0].square().mean())

        for trains in (True, True, True, False):
            model.train(trains)
            with torch.set_grad_enabled(trains):
                if examines:
                    assert len(examine(model, forward=forward).attentions) == 2
                else:
                    forward(model)
            if trains:
                optimizer.zero_grad()
                torch.autograd.backward(losses[-1])
                gradients += [p.grad.clone() for p in model.parameters() if p.grad is not None]
                optimizer.step()
        return [*losses, *gradients, *model.state_dict().values(), torch.get_rng_state()]

    plain, examined = epoch(False), epoch(True)
    assert len(plain) > 40
    for one, other in zip(plain, examined, strict=True):
        assert torch.equal(one, other)
