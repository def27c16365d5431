"""Measured against predicted: the spread of the logits of untrained models, mode by mode.

    measured²  = mean over rows of Var_j s_ij      (n − 1, over the n ≥ 2 kept keys of a real row)
    predicted  = scale.predicted_std(moments of the same batch)

The moments are averages over the same rows. Row i of causal self-attention sees the first i + 1
positions only, so the cosine of the inputs is averaged over a row's pairs of keys, then over rows;
the mean over all pairs of a sentence moves the prediction by one per cent there.
"""

import math
from statistics import mean, stdev
from typing import NamedTuple

import jaxtyping
import pytest
import torch
from scipy.stats import t as student
from torch import Tensor, nn

from attnscale.attention import SCALES, Attended, Moments, ScaleFactory, choose_scale
from attnscale.model.layers import INITS
from tests.support.step_zero import SEEDS, autoencoder, transformer

TOLERANCE = 0.05
OPTIONS: dict[str, dict[str, float]] = {
    "mup": {"base_d_k": 64.0},
    "cosine": {"start": 10.0, "largest": 100.0},
    "cosine_fixed": {"factor": 10.0},
    "qk_layernorm": {"eps": 1e-6},
    "qk_rmsnorm": {"eps": 1e-6},
    "softcap": {"cap": 2.0},
    "score_layernorm": {"eps": 1e-6},
    "score_batchnorm": {"eps": 1e-5, "momentum": 0.1},
    "nap": {"eps": 1e-3, "output_norm": 1},
    "log_n_base": {"base": 14.0},
    "ssmax": {"start": 0.379},
}
EVERY_INIT = ("sqrt", "none", "inverse")
CASES = [
    (scale, init, d_k)
    for scale in SCALES
    for init in (INITS if scale in EVERY_INIT else ("torch",))
    for d_k in ((16, 64) if scale in EVERY_INIT else (64,))
] + [(scale, "torch", 512) for scale in ("sqrt", "none")]


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    # A thousand models: checking the shapes, as other tests do, would take most of the time.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    monkeypatch.setattr(jaxtyping, "jaxtyped", lambda **_: lambda function: function)


class Ratio(NamedTuple):
    """Measured over predicted, one number per seed."""

    path: str
    values: list[float]
    measured: float
    predicted: float

    @property
    def interval(self) -> float:
        """Half the width of the 95 % interval of the mean."""
        return float(student.ppf(0.975, SEEDS - 1)) * stdev(self.values) / math.sqrt(SEEDS)

    def __str__(self) -> str:
        return (
            f"{self.path}: {mean(self.values):.3f} ± {self.interval:.3f} "
            f"(measured {self.measured:.4g}, predicted {self.predicted:.4g})"
        )


def chosen(scale: str) -> ScaleFactory:
    return choose_scale(scale, OPTIONS.get(scale), {"length_p97_5": 11.0})


# --- what is measured ---


def row_sum(values: Tensor, keep: Tensor) -> Tensor:
    return values.masked_fill(~keep, 0.0).sum(dim=-1)


def row_variance(values: Tensor, keep: Tensor) -> Tensor:
    """Unbiased variance of each row's kept entries; of no use in rows with less than two."""
    n = keep.sum(dim=-1)
    centred = values - (row_sum(values, keep) / n)[..., None]
    return row_sum(centred.square(), keep) / (n - 1)


def row_share(scores: Tensor, keep: Tensor, rows: Tensor) -> float:
    """Return the deviation within counted rows ÷ that of all kept pairs, head by head."""
    shares = []
    for values, kept, counted in zip(*(x.unbind(1) for x in (scores, keep, rows)), strict=True):
        within = row_variance(values, kept)[counted].mean()
        shares.append(float(within / values[kept].var(correction=0)))
    return math.sqrt(mean(shares))


def compare(seen: Attended, real: Tensor) -> tuple[float, float]:
    """Return the measured and the predicted deviation of one attention's logits.

    Args:
        seen: What a tap received.
        real: True where a query is no padding, (batch, query).
    """
    logits, scores = seen.logits(), seen.scores()
    keep = torch.ones(scores.shape, dtype=torch.bool)
    keep = keep if seen.keep is None else keep & seen.keep
    n = keep.sum(dim=-1)
    rows = (n > 1) & real[:, None, :]
    measured = row_variance(logits, keep)[rows].mean().sqrt()

    used = (keep & rows[..., None]).any(dim=2)
    assert seen.x is not None
    unit = nn.functional.normalize(seen.x, dim=-1)
    sums = keep[:, 0].float() @ unit
    pairs = n[:, 0] * (n[:, 0] - 1)
    cosines = (sums.square().sum(dim=-1) - n[:, 0]) / pairs
    size = n[rows].float()
    moments = Moments(
        d_k=seen.raw_q.shape[-1],
        q_rms=float(seen.raw_q[rows].square().mean().sqrt()),
        k_rms=float(seen.raw_k[used].square().mean().sqrt()),
        x_cos=float(cosines[rows[:, 0]].mean()),
        log_n=float(size.log().square().mean().sqrt()),
        row_share=row_share(scores, keep, rows),
        shrink=float((size / (size - 1)).mean().sqrt()),
    )
    return float(measured), seen.scale.predicted_std(moments)


# --- in what ---


def layers(scale: str, init: str, d_k: int) -> int:
    """Return 2 where deeper inputs are looked at too, which takes twice the time."""
    return 2 if (scale, init, d_k) == ("sqrt", "torch", 64) else 1


MODELS = ("autoencoder", "transformer")


def ratios(name: str, scale: str, init: str, d_k: int) -> list[Ratio]:
    found: dict[str, list[tuple[float, float]]] = {}
    for seed in range(SEEDS):
        if name == "autoencoder":
            shown = autoencoder(chosen(scale), init, d_k, seed)
        else:
            shown = transformer(chosen(scale), init, d_k, seed, layers(scale, init, d_k))
        for path, attended, real in shown:
            found.setdefault(path, []).append(compare(attended, real))
    return [
        Ratio(path, [a / b for a, b in pairs], mean(a for a, _ in pairs), mean(b for _, b in pairs))
        for path, pairs in found.items()
    ]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("scale", "init", "d_k"), CASES)
def test_the_spread_of_the_logits_is_the_predicted_one(
    name: str, scale: str, init: str, d_k: int
) -> None:
    made = ratios(name, scale, init, d_k)
    wanted = 1 if name == "autoencoder" else 3 * layers(scale, init, d_k)
    assert len(made) == wanted, "an attention was not seen"
    for ratio in made:
        print(f"{name:11} {scale:15} {init:7} {d_k:3} {ratio}")  # noqa: T201 -- shown with -s
    off = [str(ratio) for ratio in made if abs(mean(ratio.values) - 1) > TOLERANCE]
    assert not off, f"measured ÷ predicted: {'; '.join(off)}"
