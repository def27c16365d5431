"""Statistics of one attention, per head: one registry, one entry point.

    H_i = −Σ_j p_ij ln p_ij          ‖J_i‖_F² = Σp² − 2Σp³ + (Σp²)²,   J = diag(p) − p pᵀ
    s   = logits, before the mask    r = q · k, the score              (as in ``docs/design.md``)

Every mean, share, maximum and quantile is over the *counted rows* of a head: real rows with at
least two kept keys, over all sequences of the batch. A row with one key has weight 1 whatever the
scale is, so it would only dilute. Everything is computed in fp32, or wider where the input is.

A head without any counted row gets 0 in every statistic of the rows, never NaN:
``sample.rows.count`` says how many rows stand behind a number. ``q_var``, ``k_var`` and ``x_cos``
are over real positions, 0 where there are too few.

Sources: with each record. Different from most code: entropies are divided by ln of the *kept* keys
of each row and then averaged (not the ratio of means), nothing is added inside the logarithm (a
one-hot row has entropy 0), and weights are taken before dropout.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from attnscale.attention.stats.sample import Sample
from attnscale.attention.stats.vectors import ratio, spectral_norm

LIVE_FROM = 0.05
"""A row is live, its softmax can still be moved, where 1 − Σp² is above this."""

_ZHAI = "Zhai et al. 2023, attention entropy collapse and σReparam"
_WORTSMAN = "Wortsman et al. 2023, growth of attention logits"
_VASWANI = "Vaswani et al. 2017, section 3.2.1"
_FOOTNOTE = "Vaswani et al. 2017, footnote 4"
_YANG = "Yang et al. 2022, Tensor Programs V"
_JACOBIAN = "the derivative of the softmax"


@dataclass(frozen=True, kw_only=True)
class Statistic:
    """One number per head.

    Attributes:
        formula: The definition, in the symbols of this module.
        source: Where the definition, or the reason to look at it, comes from.
        unit: "nats", "keys", "rows" (a share of them), "logits", "scores", or "1".
        of: Sample -> (head,); None where ``of_rows`` is there.
        of_rows: Sample -> (batch, head, query), of which the mean over counted rows is taken; of a
            condition that is the share of rows where it holds.
    """

    formula: str
    source: str
    unit: str = "1"
    of: Callable[[Sample], Tensor] | None = None
    of_rows: Callable[[Sample], Tensor] | None = None


OF_WEIGHTS: dict[str, Statistic] = {
    "entropy": Statistic(
        formula="mean H_i",
        unit="nats",
        source=_ZHAI,
        of_rows=lambda s: s.entropy,
    ),
    "entropy_norm": Statistic(
        formula="mean H_i / ln n_i",
        source="Pielou 1966, evenness",
        of_rows=lambda s: s.entropy_norm,
    ),
    "entropy_norm_p5": Statistic(
        formula="5th percentile of H_i / ln n_i",
        source="Pielou 1966, evenness",
        of=lambda s: s.rows.quantile(s.entropy_norm, 0.05),
    ),
    "n_eff": Statistic(
        formula="mean exp H_i",
        unit="keys",
        source="Hill 1973, number of order 1",
        of_rows=lambda s: s.entropy.exp(),
    ),
    "n_eff_2": Statistic(
        formula="mean 1 / Σ_j p_ij²",
        unit="keys",
        source="Hill 1973, number of order 2",
        of_rows=lambda s: 1 / s.p_squared,
    ),
    "p_max": Statistic(
        formula="mean max_j p_ij",
        source=_VASWANI,
        of_rows=lambda s: s.p_max,
    ),
    "saturated_90": Statistic(
        formula="share of rows with max_j p_ij > 0.9",
        unit="rows",
        source=_VASWANI,
        of_rows=lambda s: s.p_max > 0.9,
    ),
    "saturated_99": Statistic(
        formula="share of rows with max_j p_ij > 0.99",
        unit="rows",
        source=_VASWANI,
        of_rows=lambda s: s.p_max > 0.99,
    ),
    "jac_fro": Statistic(
        formula="mean ‖J_i‖_F",
        source=_JACOBIAN,
        of_rows=lambda s: s.jacobian_squared.sqrt(),
    ),
    "jac_fro_rms": Statistic(
        formula="√(mean ‖J_i‖_F²)",
        source=_JACOBIAN,
        of=lambda s: s.jac_fro_rms,
    ),
    "live_rows": Statistic(
        formula="share of rows with 1 − Σ_j p_ij² > 0.05",
        unit="rows",
        source=_JACOBIAN,
        of_rows=lambda s: s.one_minus_p_squared > LIVE_FROM,
    ),
    "score_gain": Statistic(
        formula="logit_std_row · jac_fro_rms: from ∂L/∂p to ∂L/∂q",
        source=_JACOBIAN,
        of=lambda s: s.logit_spread.std_row * s.jac_fro_rms,
    ),
}
"""What is made of the weights; it supposes a softmax."""

OF_LOGITS: dict[str, Statistic] = {
    "logit_max": Statistic(
        formula="max s_ij over kept keys",
        unit="logits",
        source=_WORTSMAN,
        of=lambda s: s.rows.max(s.logit_spread.row_max),
    ),
    "logit_gap": Statistic(
        formula="max_i (max_j s_ij − mean_j s_ij)",
        unit="logits",
        source=f"{_WORTSMAN}; free of shifts",
        of=lambda s: s.rows.max(s.logit_spread.row_max - s.logit_spread.row_mean),
    ),
    "logit_std_row": Statistic(
        formula="√(mean_i Var_j s_ij), variance with n_i − 1",
        unit="logits",
        source=_FOOTNOTE,
        of=lambda s: s.logit_spread.std_row,
    ),
    "logit_std_total": Statistic(
        formula="standard deviation of all kept s_ij, with N − 1",
        unit="logits",
        source=_FOOTNOTE,
        of=lambda s: s.logit_spread.std_total,
    ),
    "logit_kurtosis": Statistic(
        formula="m_4 / m_2² of the pooled (s_ij − mean_j s_ij) √(n_i / (n_i − 1)); Gaussian 3",
        source="Pearson 1905",
        of=lambda s: s.logit_spread.kurtosis,
    ),
}

OF_SCORES: dict[str, Statistic] = {
    "score_std_row": Statistic(
        formula="√(mean_i Var_j r_ij), variance with n_i − 1",
        unit="scores",
        source=_FOOTNOTE,
        of=lambda s: s.score_spread.std_row,
    ),
    "score_std_total": Statistic(
        formula="standard deviation of all kept r_ij, with N − 1",
        unit="scores",
        source=_FOOTNOTE,
        of=lambda s: s.score_spread.std_total,
    ),
    "score_growth": Statistic(
        formula="score_std_row / (√d_k σ_q σ_k): 1 if independent",
        source=_YANG,
        of=lambda s: ratio(s.score_spread.std_row, s.d_k**0.5 * s.sigmas),
    ),
}

OF_VECTORS: dict[str, Statistic] = {
    "q_var": Statistic(
        formula="σ_q²: mean square of a component about its mean",
        source=_FOOTNOTE,
        of=lambda s: s.q_var,
    ),
    "k_var": Statistic(
        formula="σ_k²: mean square of a component about its mean",
        source=_FOOTNOTE,
        of=lambda s: s.k_var,
    ),
    "align": Statistic(
        formula="tr(C) / (d_k σ_q σ_k), C = mean q_i k_jᵀ over kept pairs",
        source=_YANG,
        of=lambda s: s.align,
    ),
    "align_cos": Statistic(
        formula="mean cos(q_i, k_j) over kept pairs",
        source=_YANG,
        of=lambda s: s.align_cos,
    ),
    "x_cos": Statistic(
        formula="mean cos(x_i, x_j) over i ≠ j of one sequence",
        source="Ethayarajh 2019",
        of=lambda s: s.x_cos,
    ),
    "spectral_qk": Statistic(
        formula="σ₁(W_qᵀ W_k)",
        source=_ZHAI,
        of=lambda s: spectral_norm(s.wide("w_q"), s.wide("w_k"), s.n_heads),
    ),
}

STATISTICS = OF_WEIGHTS | OF_LOGITS | OF_SCORES | OF_VECTORS


@torch.no_grad()
def measure(sample: Sample, names: Iterable[str]) -> dict[str, Tensor]:
    """Compute the named statistics of one attention.

    Args:
        sample: What the attention did. Intermediates are kept in it, so ask for all at once.
        names: Keys of :data:`STATISTICS`.

    Returns:
        For each name, in their order, a tensor (head,), fp32 or wider, without gradient.

    Raises:
        ValueError: For an unknown name, or one that needs an input that the sample lacks.
    """
    measured: dict[str, Tensor] = {}
    of_rows: dict[str, Tensor] = {}
    names = list(names)
    with torch.autocast(sample.rows.like.device.type, enabled=False):
        for name in names:
            if name not in STATISTICS:
                allowed = ", ".join(STATISTICS)
                raise ValueError(f"attention statistic {name!r}: allowed are {allowed}")
            statistic = STATISTICS[name]
            try:
                if statistic.of is not None:
                    measured[name] = statistic.of(sample)
                elif statistic.of_rows is not None:
                    of_rows[name] = statistic.of_rows(sample)
            except ValueError as error:
                raise ValueError(f"attention statistic {name!r}: {error}") from error
        if of_rows:
            # All at once: the averages of small tensors cost what starting them costs.
            means = sample.rows.means(*of_rows.values())
            measured |= dict(zip(of_rows, means, strict=True))
    return {name: measured[name] for name in names}
