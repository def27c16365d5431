"""Popular claims about the scale of attention: what settles each.

A claim is one record here, with a part for each thing that it says. What adding one touches stands
in ``docs/extending.md``.
"""

from attnscale.claims import convergence, entropy, initialisation, mechanism, scales, theory
from attnscale.claims.claim import Claim, Part

UNSCALED = ("claim_unscaled_convergence", "claim_unscaled_convergence_translation")
CONSTRUCTION = "by construction: "
"""Before a statistic that could not have come out otherwise: it illustrates, nothing is tested."""


CLAIMS: tuple[Claim, ...] = (
    Claim(
        1,
        "softmax([10, 9.5, 8.5]) is sharper than softmax([1, 0.5, −0.5])",
        (Part(statistic=CONSTRUCTION + "difference of the largest weights", theory=theory.shift),),
    ),
    Claim(
        2,
        "Without scaling, models with d_k > 64 train much more slowly or do not converge at all",
        (
            Part(
                text="more slowly",
                statistic="ln steps to 50 and 90 % of what sqrt improves by, none − sqrt",
                training=convergence.slower(above=64),
                experiments=UNSCALED,
            ),
            Part(
                text="not at all",
                statistic="runs of none that beat a model without attention by more than δ",
                training=convergence.not_at_all,
                experiments=UNSCALED,
            ),
        ),
    ),
    Claim(
        3,
        "Without scaling, gradients vanish",
        (
            Part(
                text="their norm, at the start",
                statistic="rms over rows of the gradient of q, none ÷ sqrt; live rows",
                theory=theory.gradients,
            ),
            Part(
                text="of a typical row, at the start",
                statistic="median over rows of the same; share of rows with a smaller one",
                theory=theory.typical_row,
            ),
            Part(
                text="in the course of training",
                statistic="ln gradient norm of W_q in each third of it, none − sqrt",
                training=mechanism.gradients,
                experiments=UNSCALED,
            ),
        ),
    ),
    Claim(
        4,
        "Dividing by √d_k makes the standard deviation of the logits 1",
        (
            Part(
                statistic="deviation within rows, every attention of the untrained models",
                theory=theory.unit_deviation,
            ),
        ),
    ),
    Claim(
        5,
        "q and k are independent, so √d_k is the right factor",
        (
            Part(
                text="q and k are independent",
                statistic="exponent over d_k of the scores' deviation, own − permuted keys",
                training=mechanism.growth,
                experiments=("claim_alignment",),
            ),
            Part(
                text="√d_k is the right factor",
                statistic="slope over d_k of the best rate of sqrt: 0 if one serves all",
                training=mechanism.transfer,
                experiments=("claim_alignment",),
            ),
        ),
    ),
    Claim(
        6,
        "Reformer replaces the scaling by a learnable temperature",
        (
            Part(
                statistic=CONSTRUCTION
                + "growth with d_k of the spread of its logits, ÷ usual ones",
                theory=theory.reformer,
            ),
        ),
    ),
    Claim(
        7,
        "The factor adds or limits expressivity",
        (
            Part(
                statistic=CONSTRUCTION + "difference of the functions after W_q × 1/√d_k",
                theory=theory.expressivity,
            ),
        ),
    ),
    Claim(
        8,
        "1/√d_k can always be folded into the initialisation",
        (
            Part(
                statistic="loss curves of folded and sqrt; equivalence of their best losses",
                theory=theory.folding,
                training=scales.folding,
                experiments=("claim_folding", "claim_folding_sgd"),
            ),
        ),
    ),
    Claim(
        9,
        "The variance of the logits must be 1 for training to work",
        (
            Part(
                statistic="best loss of factors by measured deviation, against that nearest 1",
                training=scales.unit_variance,
                experiments=("claim_unit_variance",),
            ),
        ),
    ),
    Claim(
        10,
        "Normalising q and k makes the scale irrelevant",
        (
            Part(
                statistic=CONSTRUCTION + "deviation of the logits at the start, d_k = 64 and 512",
                theory=theory.cosine,
            ),
        ),
    ),
    Claim(
        11,
        "LayerNorm on the scores is like scaling them",
        (
            Part(
                statistic=CONSTRUCTION + "how much the rows' deviations differ from row to row",
                theory=theory.score_layernorm,
            ),
        ),
    ),
    Claim(
        12,
        "Low entropy is bad",
        (
            Part(
                text="it comes with a higher loss",
                statistic="partial correlation of ln loss and entropy, rate and d_k given",
                training=entropy.correlation,
                experiments=("claim_entropy",),
            ),
            Part(
                text="it comes before a higher loss",
                statistic="correlation of changes, entropy first − loss first",
                training=entropy.lead,
                experiments=("claim_entropy",),
            ),
            Part(
                text="it causes a higher loss",
                statistic="best loss of constant factors, lowest entropy − the others",
                training=entropy.intervention,
                experiments=("claim_entropy", "claim_entropy_held"),
            ),
        ),
    ),
    Claim(
        13,
        "ln n is the right law of length",
        (
            Part(
                statistic="best loss of modes that know n and keep the mean spread − sqrt",
                training=scales.length_law,
                experiments=("claim_length_law",),
            ),
        ),
    ),
    Claim(
        14,
        "Subtracting s·ln n from the logits changes attention (as SSMax is sometimes written)",
        (Part(statistic=CONSTRUCTION + "change of the weights", theory=theory.subtracting),),
    ),
    Claim(
        15,
        "With sqrt a larger d_k is neutral",
        (
            Part(
                statistic="equivalence of the best losses of all d_k, by design",
                training=scales.width,
                experiments=("claim_width",),
            ),
        ),
    ),
    Claim(
        16,
        "Adam is invariant to scale, so the factor does not matter",
        (
            Part(
                statistic=CONSTRUCTION + "difference of two loss curves under Adam",
                theory=theory.adam,
            ),
        ),
    ),
    Claim(
        17,
        "Without the factor the softmax overflows",
        (
            Part(
                statistic="finite weights of three naive implementations and of attend",
                theory=theory.overflow,
            ),
        ),
    ),
    Claim(
        18,
        "Dividing by d_k is too flat and hurts training",
        (
            Part(text="too flat", statistic="entropy at the start", theory=theory.inverse),
            Part(
                text="hurts training",
                statistic="best loss of inverse − sqrt",
                training=scales.flatness,
                experiments=("claim_inverse",),
            ),
        ),
    ),
    Claim(
        19,
        "A learned temperature gains little",
        (
            Part(
                statistic="best loss of learned, learned_shared − sqrt; equivalence",
                training=scales.learned,
                experiments=("claim_learned_temperature",),
            ),
        ),
    ),
    Claim(
        20,
        "Scaling speeds up convergence and generalises better",
        (
            Part(
                text="speeds up",
                statistic="ln steps to 50 and 90 % of what sqrt improves by, none − sqrt",
                training=convergence.slower(above=0),
                experiments=UNSCALED,
            ),
            Part(
                text="generalises better",
                statistic="held-out − training loss at equal training loss, none − sqrt",
                training=convergence.generalises,
                experiments=UNSCALED,
            ),
        ),
    ),
    Claim(
        21,
        "A good initialisation, or LayerNorm, replaces the factor in part",
        (
            Part(
                text="the initialisation that has the factor in it",
                statistic="best loss of folded − none; share of the gap that it closes",
                training=initialisation.folded,
                experiments=("claim_initialisation",),
            ),
            Part(
                text="a usual initialisation",
                statistic="ln(none ÷ sqrt) of the best losses − that under torch",
                training=initialisation.interaction(initialisation.INIT, "torch", smaller=False),
                experiments=("claim_initialisation",),
            ),
            Part(
                text="LayerNorm",
                statistic="ln(none ÷ sqrt) of the best losses − that without a norm",
                training=initialisation.interaction(initialisation.NORM, "none", smaller=True),
                experiments=("claim_initialisation",),
            ),
        ),
    ),
)
