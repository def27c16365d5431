"""Judges of the claims that need no long training: evidence in, judgement out."""

from attnscale.analysis.curves import growth_exponent
from attnscale.analysis.estimate import Estimate, between
from attnscale.claims.evidence import Evidence
from attnscale.claims.judgement import FAILS, HOLDS, OPEN, Judgement, together, verdict_of


def shift(e: Evidence) -> Judgement:
    """Say whether a shift of all entries changes the largest weight."""
    low, high, tenfold = e.largest_of_shifted
    return Judgement(
        verdict_of(high - low > 1e-6),
        f"largest weights {low:.5f} and {high:.5f}; ten times the first vector gives {tenfold:.4f}",
    )


def gradients(e: Evidence) -> Judgement:
    """Say whether the gradient of q is smaller without the factor, at every d_k."""
    parts, vanish = [], []
    for d_k, ratio, live in e.gradient_ratios:
        parts.append(f"d_k={d_k}: {between(ratio)} times, live rows {between(live)}")
        vanish.append(ratio.high < 1)
    return Judgement(verdict_of(*vanish), "gradient of q, none ÷ sqrt: " + "; ".join(parts))


def typical_row(e: Evidence) -> Judgement:
    """Say whether most rows have a smaller gradient of q without the factor, by d_k."""
    text = "; ".join(
        f"d_k={d_k}: median {between(median)} times, smaller in {between(share)} of the rows"
        for d_k, median, share in e.row_gradients
    )
    smaller = [median.high < 1 for _, median, _ in e.row_gradients]
    return Judgement(verdict_of(*smaller), f"gradient of q row by row, none ÷ sqrt: {text}")


def unit_deviation(e: Evidence) -> Judgement:
    """Say whether the logits of untrained models have standard deviation 1, by attention.

    It has where the interval holds 1 and the mean is within 5 % of it; it has not where the
    interval does not hold 1.
    """
    findings, groups = [], dict[str, list[Estimate]]()
    for name, x in e.initial_stds:
        near = OPEN if abs(x.value - 1) > 0.05 else HOLDS
        findings.append(near if x.low <= 1 <= x.high else FAILS)
        groups.setdefault(name, []).append(x)
    text = "; ".join(
        f"{name}: {between(alike[0])}"
        + (f" to {between(alike[-1])}, {len(alike)} attentions" if len(alike) > 1 else "")
        for name, alike in (
            (name, sorted(alike, key=lambda x: x.value)) for name, alike in groups.items()
        )
    )
    count = sum(finding == HOLDS for finding in findings)
    return Judgement(
        together(findings),
        f"1 in {count} of {len(findings)} attentions; deviation under sqrt, {text}",
    )


def reformer(e: Evidence) -> Judgement:
    """Say whether its logits grow with d_k otherwise than those that are divided by √d_k.

    Without the factor, or with it twice, the ratio would grow like d_k^½ or fall like d_k^−½; half
    of that is the border.
    """
    d_ks, estimates = zip(*e.reformer, strict=True)
    growth = growth_exponent(d_ks, [x.value for x in estimates]).value
    ratios = ", ".join(f"d_k={d_k}: {between(x)}" for d_k, x in e.reformer)
    return Judgement(
        verdict_of(abs(growth) > 0.25),
        f"deviation within rows of Reformer's logits ÷ that of q·k/√d_k: {ratios}; exponent over "
        f"d_k {round(growth, 2) + 0.0:.2f}, where 0 keeps the division by √d_k and ½ drops it",
    )


def expressivity(e: Evidence) -> Judgement:
    """Say whether a reparametrised model computes another function."""
    return Judgement(
        verdict_of(e.reparametrised > 1e-9),
        f"largest difference between sqrt and none with W_q × 1/√d_k: {e.reparametrised:.1e}",
    )


def folding(e: Evidence) -> Judgement:
    """Say whether folded trains like sqrt, by optimizer."""
    equal = [difference < 1e-6 for _, difference in e.folding]
    text = "; ".join(f"{rule} {difference:.1e}" for rule, difference in e.folding)
    return Judgement(
        verdict_of(*equal), f"largest relative difference of 50 losses to sqrt: {text}"
    )


def cosine(e: Evidence) -> Judgement:
    """Say whether normalised q and k give the same spread at two sizes."""
    (small, a), (large, b) = e.cosine_stds
    same = max(a.low, b.low) <= min(a.high, b.high)
    return Judgement(
        verdict_of(same),
        f"deviation of 10·q̂·k̂ at the start: d_k={small} {between(a)}, d_k={large} {between(b)}; "
        "that the scale sets where training starts, not how arms with γ ∝ √d_k train",
    )


def score_layernorm(e: Evidence) -> Judgement:
    """Say whether rows differ in their spread as under a plain factor."""
    normed, one_length, untrained = e.row_spread
    return Judgement(
        verdict_of(normed.high >= one_length.low, normed.high >= untrained.low),
        f"spread over rows of the rows' deviation: score_layernorm {between(normed)}; sqrt with "
        f"queries of one length {between(one_length)}, in an untrained model {between(untrained)}",
    )


def subtracting(e: Evidence) -> Judgement:
    """Say whether a row constant changes a weight."""
    return Judgement(
        verdict_of(e.subtracting > 1e-9),
        f"largest change of a weight by −s·ln n: {e.subtracting:.1e}",
    )


def adam(e: Evidence) -> Judgement:
    """Say whether none trains like sqrt under Adam."""
    return Judgement(
        verdict_of(e.adam_difference < 1e-6),
        f"largest relative difference of 50 losses between none and sqrt under Adam: "
        f"{e.adam_difference:.2g}",
    )


def overflow(e: Evidence) -> Judgement:
    """Say whether weights stop being finite, by implementation."""
    text = ", ".join(f"{name} {100 * share:.3g} %" for name, share in e.overflow)
    return Judgement(
        verdict_of(*(share < 1 for _, share in e.overflow)),
        f"finite weights at d_k = 1024, q and k of deviation 50, no factor: {text}",
    )


def inverse(e: Evidence) -> Judgement:
    """Say whether the entropy is above that of sqrt."""
    flat, usual = e.inverse_entropy
    return Judgement(
        verdict_of(flat.low > usual.high),
        f"H/ln n at d_k = 64: inverse {between(flat, '.4f')}, sqrt {between(usual, '.4f')}",
    )
