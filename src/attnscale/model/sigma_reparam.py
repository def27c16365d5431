"""σReparam: every weight is a learned number times a matrix of spectral norm 1.

    W_used = (γ / σ₁(W)) · W,    γ starts at σ₁ of the initial W, so that nothing changes at first

σ₁ comes from an SVD at the start and one step of power iteration per training pass from then on;
its gradient is taken with the singular vectors held fixed. γ gets no weight decay
(``task/groups.py``): it is the weight's norm, and has one element in the released code, which the
usual rule for parameters of one axis exempts.

Source: Zhai et al. 2023, "Stabilizing Transformer Training by Preventing Attention Entropy
Collapse", and its released code, which starts γ at σ₁ (the paper starts it at 1).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from attnscale.attention import attentions, name_of
from attnscale.checks import check_choice

SIGMA_REPARAM = ("none", "qk", "all")


class SigmaReparam(nn.Module):
    """The parametrization of one weight, (out, in)."""

    def __init__(self, weight: Tensor) -> None:
        """Take σ₁ and its vectors from the initial weight."""
        super().__init__()
        u, s, v = torch.linalg.svd(weight.detach().double(), full_matrices=False)
        self.u: Tensor
        self.v: Tensor
        self.register_buffer("u", u[:, 0].to(weight.dtype).contiguous())
        self.register_buffer("v", v[0].to(weight.dtype).contiguous())
        self.gamma = nn.Parameter(s[0].to(weight.dtype))

    def forward(self, weight: Tensor) -> Tensor:
        """Return γ W / σ₁(W)."""
        with torch.autocast(weight.device.type, enabled=False):
            if self.training:
                with torch.no_grad():
                    self.v = functional.normalize(weight.T @ self.u, dim=0)
                    self.u = functional.normalize(weight @ self.v, dim=0)
            sigma = self.u @ weight @ self.v
            return weight * (self.gamma / sigma)


def reparametrise(model: nn.Module, which: str | None) -> None:
    """Put σReparam on a model's linear layers, in place, after their initialisation.

    Args:
        model: The model.
        which: "none", "qk" (the q and k projections) or "all" (every linear layer whose weight is
            not shared with another module).

    Raises:
        ValueError: For another word, or if a mode's optimizer factors would lose their meaning.
    """
    check_choice("attention.sigma_reparam", which, SIGMA_REPARAM)
    if which == "none":
        return
    attending = attentions(model).values()
    for attention in attending:
        if attention.scale.adjusts_optimizer:
            raise ValueError(
                f"attention.sigma_reparam={which}: the control {name_of(attention.scale)} "
                "holds for plain weights only; use none"
            )
    if which == "qk":
        layers = [layer for attention in attending for layer in (attention.q, attention.k)]
    else:
        owners: dict[int, int] = {}
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                owners[id(parameter)] = owners.get(id(parameter), 0) + 1
        linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
        layers = [layer for layer in linear if owners[id(layer.weight)] == 1]
    for layer in layers:
        parametrize.register_parametrization(layer, "weight", SigmaReparam(layer.weight))
