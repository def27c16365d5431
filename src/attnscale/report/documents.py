"""Generated documents: docs/modes.md and docs/claims.md, as text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnscale.attention import SCALES, Scale
from attnscale.report.claims import Settled
from attnscale.report.trained import Results, Runs, rate_rows

LEFT_OUT = {
    "u-μP's scale": "part of a method that rescales outputs and backward passes of every layer",
    "√(3 d_k) of DeBERTa": "belongs to its disentangled position terms, which are not here",
    "1/(√d_k (layer + 1)) of GPT-2's option": "depends on the layer; a number per run covers it",
    "query-key layer scaling of Megatron": "multiplied back before the softmax: no change at all",
    "q and k each × d_k^−¼ (Performer)": "equal to sqrt in exact arithmetic; for fp16's range only",
    "r / Σ‖k_j‖": "published with simulations only; near uniform for many keys",
    "temperature over channels (XCiT)": "attends over channels, not over positions",
    "L2-normed keys of Reformer": "part of LSH attention, where q and k are one",
    "Llama 4's temperature": "1 for every position below 8,192",
    "YaRN's temperature": "1 without an extension of the context",
    "additive, sigmoid, entmax, sparsemax, softmax with a sink": "other score functions and "
    "normalisers: a later step; a scale can bring its own weights already",
    "Linformer, LSH, kernels": "cheaper attentions, which still divide by √d_k",
}


@dataclass(frozen=True, kw_only=True)
class ModeFigures:
    """What was measured of one mode.

    Attributes:
        start: Standard deviation of the logits at the start, with its interval, as text.
        cost: Time of a step ÷ that of sqrt, or None if it was not measured.
        milliseconds: Time of a step, likewise.
    """

    start: str
    cost: float | None = None
    milliseconds: float | None = None


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table in Markdown; a bar in a cell is escaped."""

    def line(cells: Sequence[object]) -> str:
        texts = ["" if cell is None else str(cell) for cell in cells]
        return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"

    return "\n".join([line(columns), "|" + "---|" * len(columns), *map(line, rows)])


def kind(mode: type[Scale]) -> str:
    """Return what sort of function a mode has."""
    if not mode.is_softmax:
        return "normaliser"
    return "q/k" if mode.fusible else "score"


def registry_table(options: Mapping[str, Mapping[str, float]]) -> str:
    """Return the modes with formula, options, kind and source, from the registry alone."""
    rows = []
    for name, mode in SCALES.items():
        given = ", ".join(f"`{key}={value:g}`" for key, value in options.get(name, {}).items())
        rows.append([f"`{name}`", mode.formula, given, kind(mode), mode.source])
    return markdown_table(["attention.scale", "logit", "options", "function", "source"], rows)


def modes_document(
    options: Mapping[str, Mapping[str, float]],
    figures: Mapping[str, ModeFigures],
    runs: Runs,
) -> str:
    """Return docs/modes.md.

    Args:
        options: Options of the modes with their values in ``conf/``.
        figures: What was measured, by mode.
        runs: Runs of ``experiment=scale_modes``; empty if it was not run.
    """
    trained = {run.scale: run for run in runs}
    measured = []
    for name in SCALES:
        found, run = figures.get(name), trained.get(name)
        measured.append(
            [
                f"`{name}`",
                None if found is None else found.start,
                None
                if found is None or found.milliseconds is None
                else f"{found.milliseconds:.1f}",
                None if found is None or found.cost is None else f"{found.cost:.2f}",
                None if run is None or run.loss is None else f"{run.loss:.4f}",
                None if run is None or run.bleu is None else f"{run.bleu:.2f}",
            ]
        )
    columns = ["mode", "initial deviation", "ms/step", "÷ sqrt", "best val loss", "test BLEU"]
    left_out = [[name, reason] for name, reason in LEFT_OUT.items()]
    return f"""# Scale modes

Generated from the registry by `python -m src.theory docs=docs`; do not edit. r = q·k is the score,
τ and γ are learned, n is the number of kept keys of a row. Options are set with
`attention.options.<mode>.<option>=…`; a positive number as `attention.scale` multiplies the score.

{registry_table(options)}

Every mode but those with a score function or a normaliser may run on PyTorch's fused attention.
What a mode learns gets no weight decay, and what it multiplies the logits by is recorded
(`attention/<path>/learned_scale`).

With any mode: `attention.qk_clip=100` (QK-Clip, Kimi Team 2025: after a step, W_q and W_k of a head
whose largest logit was above 100 shrink by a share of `attention.qk_clip_alpha=0.5` each) and
`attention.sigma_reparam=qk` or `all` (σReparam, Zhai et al. 2023, on the q and k projections, or on
every linear layer).

## Measured

Initial deviation: standard deviation of the logits within rows, untrained pre-norm Transformer,
d_k = d_model = 64, PyTorch's initialisation, 95 % interval over seeds (`python -m src.theory`).
ms/step and ÷ sqrt: a training step of the default Transformer and its ratio to one of `sqrt`, all
modes in turn, medians (`python -m benchmarks.modes`). Loss and BLEU:
`python -m src.train -m experiment=scale_modes` (the bundled corpus, one seed).

{markdown_table(columns, measured)}

## Left out

{markdown_table(["method", "why"], left_out)}
"""


def claims_document(settled: Sequence[Settled], results: Results) -> str:
    """Return docs/claims.md.

    Args:
        settled: Every claim with its judgement.
        results: Recorded sweeps, by experiment.
    """
    rows = [
        [
            one.claim.number,
            one.claim.text,
            f"**{one.judgement.verdict}**",
            one.claim.statistic,
            one.judgement.value,
        ]
        for one in settled
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
