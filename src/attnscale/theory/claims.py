"""Popular claims about the scale of attention, each with the statistic that settles it.

A verdict is computed, never written: a claim holds where the statistic says so, fails where it says
the opposite, depends where both are found, and is open where only training can tell and no run is
at hand. Claims that need training name the experiment that settles them.
"""

from collections.abc import Callable
from dataclasses import dataclass

from attnscale.theory.estimates import Estimate
from attnscale.theory.evidence import Evidence

HOLDS, FAILS, DEPENDS, OPEN = "holds", "fails", "depends", "open"


@dataclass(frozen=True)
class Judgement:
    """What a statistic says of a claim.

    Attributes:
        verdict: "holds", "fails", "depends" or "open".
        value: The statistic's value, with its interval where it is measured.
    """

    verdict: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim.

    Attributes:
        number: Where it stands in the list.
        text: What is claimed.
        statistic: What settles it.
        judge: Evidence of theory -> judgement, or None where only training can tell.
        experiments: Configurations in ``conf/experiment/`` that settle it by training.
    """

    number: int
    text: str
    statistic: str
    judge: Callable[[Evidence], Judgement] | None = None
    experiments: tuple[str, ...] = ()


def between(estimate: Estimate, digits: str = ".3g") -> str:
    """Return an estimate with its 95 % interval, as text."""
    value, low, high = (format(x, digits) for x in (estimate.value, estimate.low, estimate.high))
    return f"{value} ({low} to {high})"


def _of(*findings: bool) -> str:
    """Return what several findings for a claim say together."""
    return HOLDS if all(findings) else DEPENDS if any(findings) else FAILS


def _shift(e: Evidence) -> Judgement:
    low, high, tenfold = e.largest_of_shifted
    return Judgement(
        _of(high - low > 1e-6),
        f"largest weights {low:.5f} and {high:.5f}; ten times the first vector gives {tenfold:.4f}",
    )


def _gradients(e: Evidence) -> Judgement:
    parts, vanish = [], []
    for d_k, ratio, live in e.gradient_ratios:
        parts.append(f"d_k={d_k}: {between(ratio)} times, live rows {between(live)}")
        vanish.append(ratio.high < 1)
    return Judgement(_of(*vanish), "gradient of q, none ÷ sqrt: " + "; ".join(parts))


def _unit_deviation(e: Evidence) -> Judgement:
    near = [0.95 <= x.value <= 1.05 for _, x in e.initial_deviations]
    text = "; ".join(f"{name} {between(x)}" for name, x in e.initial_deviations)
    return Judgement(_of(*near), f"deviation under sqrt: {text}")


def _reformer(e: Evidence) -> Judgement:
    return Judgement(
        _of(e.reformer_ratio > 2 or e.reformer_ratio < 0.5),
        f"q·k̂/√d_k with keys of unit RMS, ÷ (q·k/√d_k): {e.reformer_ratio:.4f}; it divides by "
        "√d_k, and learns nothing",
    )


def _expressivity(e: Evidence) -> Judgement:
    return Judgement(
        _of(e.reparametrised > 1e-9),
        f"largest difference between sqrt and none with W_q × 1/√d_k: {e.reparametrised:.1e}",
    )


def _folding(e: Evidence) -> Judgement:
    equal = [difference < 1e-6 for _, difference in e.folding]
    text = "; ".join(f"{rule} {difference:.1e}" for rule, difference in e.folding)
    return Judgement(_of(*equal), f"largest relative difference of 50 losses to sqrt: {text}")


def _cosine(e: Evidence) -> Judgement:
    (small, a), (large, b) = e.cosine_deviations
    same = max(a.low, b.low) <= min(a.high, b.high)
    return Judgement(
        _of(same),
        f"deviation of 10·q̂·k̂ at the start: d_k={small} {between(a)}, d_k={large} {between(b)}",
    )


def _score_layernorm(e: Evidence) -> Judgement:
    normed, scaled = e.row_spread
    return Judgement(
        _of(normed.high >= scaled.low),
        f"spread over rows of the rows' deviation: score_layernorm {between(normed)}, "
        f"sqrt {between(scaled)}",
    )


def _subtracting(e: Evidence) -> Judgement:
    return Judgement(
        _of(e.subtracting > 1e-9), f"largest change of a weight by −s·ln n: {e.subtracting:.1e}"
    )


def _adam(e: Evidence) -> Judgement:
    return Judgement(
        _of(e.adam_difference < 1e-6),
        f"largest relative difference of 50 losses between none and sqrt under Adam: "
        f"{e.adam_difference:.2g}",
    )


def _overflow(e: Evidence) -> Judgement:
    bad = [share < 1 for _, share in e.finite]
    text = ", ".join(f"{name} {100 * share:.6g} %" for name, share in e.finite)
    return Judgement(
        _of(*bad), f"finite outputs at d_k = 1024, q and k of deviation 10, no factor: {text}"
    )


def _inverse(e: Evidence) -> Judgement:
    flat, usual = e.inverse_entropy
    return Judgement(
        _of(flat.low > usual.high),
        f"H/ln n at d_k = 64: inverse {between(flat, '.4f')}, sqrt {between(usual, '.4f')}; "
        "whether it hurts training is another question",
    )


def _independence(e: Evidence) -> Judgement:
    start = e.growth_at_start
    return Judgement(
        _of(start.low <= 0.5 <= start.high), f"growth exponent at the start: {between(start)}"
    )


CLAIMS: tuple[Claim, ...] = (
    Claim(
        number=1,
        text="softmax([10, 9.5, 8.5]) is sharper than softmax([1, 0.5, −0.5])",
        statistic="difference of the largest weights",
        judge=_shift,
    ),
    Claim(
        number=2,
        text="Without scaling, models with d_k > 64 do not converge",
        statistic="loss at the best of several learning rates, share of diverged runs",
        experiments=("claim_unscaled_convergence", "claim_unscaled_convergence_translation"),
    ),
    Claim(
        number=3,
        text="Without scaling, gradients vanish",
        statistic="rms gradient of q at the start, none ÷ sqrt; share of live rows",
        judge=_gradients,
    ),
    Claim(
        number=4,
        text="Dividing by √d_k makes the standard deviation of the logits 1",
        statistic="deviation within rows of the untrained models, four initialisations",
        judge=_unit_deviation,
    ),
    Claim(
        number=5,
        text="q and k are independent, so √d_k is the right factor",
        statistic="exponent of the scores' deviation over d_k: ½ if independent, 1 if aligned",
        judge=_independence,
        experiments=("claim_alignment",),
    ),
    Claim(
        number=6,
        text="Reformer replaces the scaling by a learnable temperature",
        statistic="logits by its published formula, against the usual ones",
        judge=_reformer,
    ),
    Claim(
        number=7,
        text="The factor adds or limits expressivity",
        statistic="difference of the functions after W_q × 1/√d_k",
        judge=_expressivity,
    ),
    Claim(
        number=8,
        text="1/√d_k can always be folded into the initialisation",
        statistic="loss curves of folded and sqrt, by optimizer",
        judge=_folding,
        experiments=("claim_folding",),
    ),
    Claim(
        number=9,
        text="The variance of the logits must be 1 for training to work",
        statistic="loss for factors of 1/16 to 16 times 1/√d_k",
        experiments=("claim_unit_variance",),
    ),
    Claim(
        number=10,
        text="Normalising q and k makes the scale irrelevant",
        statistic="deviation of the logits at the start, d_k = 64 and 512",
        judge=_cosine,
    ),
    Claim(
        number=11,
        text="LayerNorm on the scores is like scaling them",
        statistic="how much the rows' deviations differ from row to row",
        judge=_score_layernorm,
    ),
    Claim(
        number=12,
        text="Low entropy is bad",
        statistic="loss against entropy, runs of one learning rate",
        experiments=("claim_entropy",),
    ),
    Claim(
        number=13,
        text="ln n is the right law of length",
        statistic="loss of the modes that know n, against sqrt",
        experiments=("claim_length_law",),
    ),
    Claim(
        number=14,
        text="Subtracting s·ln n from the logits changes attention (as SSMax is sometimes written)",
        statistic="change of the weights",
        judge=_subtracting,
    ),
    Claim(
        number=15,
        text="With sqrt a larger d_k is neutral",
        statistic="loss over d_k, d_model and the number of heads held",
        experiments=("claim_width",),
    ),
    Claim(
        number=16,
        text="Adam is invariant to scale, so the factor does not matter",
        statistic="loss curves of none and sqrt under Adam",
        judge=_adam,
    ),
    Claim(
        number=17,
        text="Without the factor the softmax overflows",
        statistic="share of finite outputs in fp32, bf16 and fp16",
        judge=_overflow,
    ),
    Claim(
        number=18,
        text="Dividing by d_k is too flat (and hurts training)",
        statistic="entropy at the start; loss by learning rate",
        judge=_inverse,
        experiments=("claim_inverse",),
    ),
    Claim(
        number=19,
        text="A learned temperature gains little",
        statistic="loss of learned against sqrt, over seeds",
        experiments=("claim_learned_temperature",),
    ),
    Claim(
        number=20,
        text="Scaling speeds up convergence and generalises better",
        statistic="steps to a common loss; test loss, at each mode's best rate",
        experiments=("claim_unscaled_convergence", "claim_unscaled_convergence_translation"),
    ),
    Claim(
        number=21,
        text="A good initialisation, or LayerNorm, replaces the factor in part",
        statistic="loss of none against sqrt under each initialisation and norm",
        experiments=("claim_initialisation",),
    ),
)
