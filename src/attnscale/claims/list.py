"""Popular claims about the scale of attention: what settles them, their verdicts, docs/claims.md.

A claim is one record here: its text, the statistic, the judge that reads what theory computes and
the judge that reads what was trained, with the experiments that train it. What adding one touches
stands in ``docs/extending.md``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnscale.analysis.rates import Results, rate_rows
from attnscale.claims import theory, training
from attnscale.claims.evidence import Evidence
from attnscale.claims.judgement import FAILS, HOLDS, OPEN, Judgement, together
from attnscale.figures.page import markdown_table
from attnscale.tracking.history import History
from attnscale.tracking.runs import Run
from attnscale.tracking.store import Store

VARIANTS = ("model.init", "model.norm", "optimizer._target_")
"""Parameters that some claims vary beside scale, d_k, rate and seed."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim.

    Attributes:
        number: Where it stands in the list.
        text: What is claimed.
        statistic: What settles it.
        theory: Judge of the evidence that theory gives, or None where only training can tell.
        training: Judge of the runs of ``experiments``, or None.
        experiments: Configurations in ``conf/experiment/`` that settle it by training.
    """

    number: int
    text: str
    statistic: str
    theory: Callable[[Evidence], Judgement] | None = None
    training: Callable[[Results], Judgement] | None = None
    experiments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settled:
    """A claim with what was found."""

    claim: Claim
    judgement: Judgement

    @property
    def row(self) -> list[Any]:
        """Number, text, verdict, statistic and value."""
        claim, judgement = self.claim, self.judgement
        return [claim.number, claim.text, judgement.verdict, claim.statistic, judgement.value]


def _judge(claim: Claim, evidence: Evidence, results: Results) -> Judgement:
    """Judge a claim by theory, by training, or by both together."""
    recorded = {name: results[name] for name in claim.experiments if results.get(name)}
    parts = [] if claim.theory is None else [claim.theory(evidence)]
    if recorded and claim.training is not None:
        trained = claim.training(recorded)
        parts.append(Judgement(trained.verdict, f"trained: {trained.value}"))
    elif recorded:
        parts.append(Judgement(OPEN, f"recorded, not judged yet: {', '.join(recorded)}"))
    elif claim.experiments:
        names = claim.experiments
        commands = ", ".join(f"`python -m src.train -m experiment={name}`" for name in names)
        parts.append(Judgement(OPEN, f"not run: {commands}"))
    verdict = together([part.verdict for part in parts])
    if verdict == HOLDS and any(part.verdict == OPEN for part in parts):
        verdict = OPEN
    return Judgement(verdict, "; ".join(part.value for part in parts))


def judge_all(evidence: Evidence, results: Results) -> list[Settled]:
    """Judge every claim.

    Args:
        evidence: What was computed.
        results: What was trained; an experiment that was not run is left out.
    """
    return [Settled(claim, _judge(claim, evidence, results)) for claim in CLAIMS]


CLAIMS: tuple[Claim, ...] = (
    Claim(
        number=1,
        text="softmax([10, 9.5, 8.5]) is sharper than softmax([1, 0.5, −0.5])",
        statistic="difference of the largest weights",
        theory=theory.shift,
    ),
    Claim(
        number=2,
        text="Without scaling, models with d_k > 64 do not converge",
        statistic="loss at the best of several learning rates, share of diverged runs",
        training=training.convergence,
        experiments=("claim_unscaled_convergence", "claim_unscaled_convergence_translation"),
    ),
    Claim(
        number=3,
        text="Without scaling, gradients vanish",
        statistic="rms gradient of q at the start, none ÷ sqrt; share of live rows",
        theory=theory.gradients,
    ),
    Claim(
        number=4,
        text="Dividing by √d_k makes the standard deviation of the logits 1",
        statistic="deviation within rows of the untrained models, four initialisations",
        theory=theory.unit_deviation,
    ),
    Claim(
        number=5,
        text="q and k are independent, so √d_k is the right factor",
        statistic="exponent of the scores' deviation over d_k: ½ if independent, 1 if aligned",
        theory=theory.independence,
        experiments=("claim_alignment",),
    ),
    Claim(
        number=6,
        text="Reformer replaces the scaling by a learnable temperature",
        statistic="how the spread of its logits, ÷ that of the usual ones, grows with d_k",
        theory=theory.reformer,
    ),
    Claim(
        number=7,
        text="The factor adds or limits expressivity",
        statistic="difference of the functions after W_q × 1/√d_k",
        theory=theory.expressivity,
    ),
    Claim(
        number=8,
        text="1/√d_k can always be folded into the initialisation",
        statistic="loss curves of folded and sqrt, by optimizer",
        theory=theory.folding,
        training=training.against("sqrt", FAILS, FAILS),
        experiments=("claim_folding",),
    ),
    Claim(
        number=9,
        text="The variance of the logits must be 1 for training to work",
        statistic="loss for factors of 1/16 to 16 times 1/√d_k",
        training=training.unit_variance,
        experiments=("claim_unit_variance",),
    ),
    Claim(
        number=10,
        text="Normalising q and k makes the scale irrelevant",
        statistic="deviation of the logits at the start, d_k = 64 and 512",
        theory=theory.cosine,
    ),
    Claim(
        number=11,
        text="LayerNorm on the scores is like scaling them",
        statistic="how much the rows' deviations differ from row to row",
        theory=theory.score_layernorm,
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
        training=training.against("sqrt", HOLDS, FAILS),
        experiments=("claim_length_law",),
    ),
    Claim(
        number=14,
        text="Subtracting s·ln n from the logits changes attention (as SSMax is sometimes written)",
        statistic="change of the weights",
        theory=theory.subtracting,
    ),
    Claim(
        number=15,
        text="With sqrt a larger d_k is neutral",
        statistic="loss over d_k, d_model and the number of heads held",
        training=training.width,
        experiments=("claim_width",),
    ),
    Claim(
        number=16,
        text="Adam is invariant to scale, so the factor does not matter",
        statistic="loss curves of none and sqrt under Adam",
        theory=theory.adam,
    ),
    Claim(
        number=17,
        text="Without the factor the softmax overflows",
        statistic="share of finite outputs in fp32, bf16 and fp16",
        theory=theory.overflow,
    ),
    Claim(
        number=18,
        text="Dividing by d_k is too flat (and hurts training)",
        statistic="entropy at the start; loss by learning rate",
        theory=theory.inverse,
        training=training.against("sqrt", FAILS, HOLDS),
        experiments=("claim_inverse",),
    ),
    Claim(
        number=19,
        text="A learned temperature gains little",
        statistic="loss of learned against sqrt, over seeds",
        training=training.against("sqrt", FAILS, HOLDS),
        experiments=("claim_learned_temperature",),
    ),
    Claim(
        number=20,
        text="Scaling speeds up convergence and generalises better",
        statistic="steps to a common loss; test loss, at each mode's best rate",
        training=training.speed,
        experiments=("claim_unscaled_convergence", "claim_unscaled_convergence_translation"),
    ),
    Claim(
        number=21,
        text="A good initialisation, or LayerNorm, replaces the factor in part",
        statistic="loss of none against sqrt under each initialisation and norm",
        training=training.initialisation,
        experiments=("claim_initialisation",),
    ),
)


def sweep_of(store: Store, group: str, experiment: str) -> list[Run]:
    """Return the runs of the newest finished sweep of an experiment; none if there is none.

    Args:
        store: Where runs are recorded.
        group: MLflow's experiment.
        experiment: Name of a file in ``conf/experiment/``.
    """
    runs = History(store, group).newest_of(f"experiment={experiment}")
    varied = [
        key for key in VARIANTS if len({run.parameters.get(key) for run in runs} - {None}) > 1
    ]
    return [
        replace(
            run,
            variant=" ".join(f"{key.rpartition('.')[2]}={run.parameters[key]}" for key in varied),
        )
        for run in runs
    ]


def claim_results(store: Store, group: str) -> dict[str, list[Run]]:
    """Return the recorded sweeps of all claims, by experiment."""
    names = dict.fromkeys(name for claim in CLAIMS for name in claim.experiments)
    return {name: sweep_of(store, group, name) for name in names}


def claims_document(settled: Sequence[Settled], results: Results) -> str:
    """Return docs/claims.md.

    Args:
        settled: Every claim with its judgement.
        results: Recorded sweeps, by experiment.
    """
    rows = [
        [number, text, f"**{verdict}**", statistic, value]
        for number, text, verdict, statistic, value in (one.row for one in settled)
    ]
    parts = [
        "# Claims",
        "Generated by `python -m src.theory docs=docs`; do not edit. Each verdict is computed from "
        "the statistic beside it; differences are at each setting's best learning rate, paired by "
        "seed, with 95 % intervals. *Open* means that the runs cannot tell, or were not made.",
        markdown_table(["", "claim", "verdict", "statistic", "value"], rows),
    ]
    for name, runs in results.items():
        if not runs:
            continue
        columns, table = rate_rows(runs)
        parts += [
            f"## `experiment={name}`",
            f"Best validation loss, mean over seeds (– where a run diverged); sensitivity is the "
            f"mean loss given away over the rates (Wortsman et al. 2023). {len(runs)} runs: "
            f"`python -m src.train -m experiment={name}`.",
            markdown_table(columns, table),
        ]
    return "\n\n".join(parts) + "\n"
