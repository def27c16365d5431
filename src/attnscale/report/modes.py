"""The generated document of the scale modes, docs/modes.md, and what was measured for it."""

from collections.abc import Mapping

from attnscale.analysis.estimate import between
from attnscale.analysis.rates import Runs
from attnscale.attention import SCALES, Scale
from attnscale.figures.page import markdown_table
from attnscale.theory.initialisation import mode_std
from attnscale.tracking.history import History
from attnscale.tracking.store import Store

Figures = tuple[str, float | None, float | None]
"""Of a mode: standard deviation of the logits at the start, with its interval; milliseconds of a
step, and its time ÷ that of sqrt, None if they were not measured."""

BENCHMARKS = "benchmarks"
"""MLflow experiment of the project's own timings."""

LEFT_OUT = {
    "u-μP's scale": "part of a method that rescales outputs and backward passes of every layer",
    "√(3 d_k) of DeBERTa": "belongs to its disentangled position terms, which are not here",
    "1/(√d_k (layer + 1)) of GPT-2's option": "depends on the layer; a number per run covers it",
    "query-key layer scaling of Megatron": "multiplied back before the softmax: no change at all",
    "q and k each × d_k^−¼ (Performer)": "equal to sqrt in exact arithmetic; for fp16's range only",
    "r / Σ‖k_j‖": "published with simulations only; near uniform for many keys",
    "temperature over channels (XCiT)": "attends over channels, not over positions",
    "L2-normed keys of Reformer": "part of LSH attention, where q and k are one",
    "gains of q and k per head (Command R+, StableLM 2), with a bias (Chameleon), or none": "those "
    "here are shared by the heads or, with `over_heads`, of all components, and always learn",
    "SSMax with a bias, s · ln n + b": "the sum of two modes, `ssmax` and `learned`",
    "log n beyond the training length only (Qwen)": "1 for every sequence of that length or less",
    "temperature from a query's contents (Selective Attention)": "has weights on the attention's "
    "input, which a scale does not see",
    "differential attention": "the difference of two softmaxes, each with its own q and k",
    "Llama 4's temperature": "1 for every position below 8,192",
    "YaRN's temperature": "1 without an extension of the context",
    "additive, sigmoid, entmax, sparsemax, softmax with a sink": "other score functions and "
    "normalisers: a later step; a scale can bring its own weights already",
    "Linformer, LSH, kernels": "cheaper attentions, which still divide by √d_k",
}


def kind(mode: type[Scale]) -> str:
    """Return what sort of function a mode has."""
    if not mode.is_softmax:
        return "normaliser"
    return "q/k" if mode.fusible else "score"


def registry_table(options: Mapping[str, Mapping[str, float]]) -> str:
    """Return the modes with formula, options, kind and source, from the registry alone."""
    rows = []
    for name, mode in SCALES.items():
        texts = ", ".join(f"`{key}={value:g}`" for key, value in options.get(name, {}).items())
        rows.append([f"`{name}`", mode.formula, texts, kind(mode), mode.source])
    return markdown_table(["attention.scale", "logit", "options", "function", "source"], rows)


def modes_document(
    options: Mapping[str, Mapping[str, float]],
    figures: Mapping[str, Figures],
    runs: Runs,
) -> str:
    """Return docs/modes.md.

    Args:
        options: Options of the modes with their values in ``conf/``.
        figures: What was measured, by mode.
        runs: Runs of ``experiment=scale_modes``; empty if it was not run.
    """
    by_scale = {run.scale: run for run in runs}
    rows = []
    for name in SCALES:
        run = by_scale.get(name)
        loss, bleu = (None, None) if run is None else (run.loss, run.value("test/bleu"))
        start, milliseconds, ratio = figures.get(name, (None, None, None))
        figured = ((milliseconds, ".1f"), (ratio, ".2f"), (loss, ".4f"), (bleu, ".2f"))
        texts = (None if value is None else format(value, digits) for value, digits in figured)
        rows.append([f"`{name}`", start, *texts])
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

`scalar` stands for d_k under the root: 0, the default, is d_k; Gemma 2 27B is `softcap` with 144,
Gemma 3 27B `qk_rmsnorm` with 168, both for d_k = 128. `over_heads=1` is one norm over all heads of
a position, with n_heads · d_k gains: OLMo 2 is `qk_rmsnorm` with it.

A query or key of zeros, as of a padded position, stays zero where it is normalised, and gets no
gradient; by the formula that would be some power of 1/ε times as large as its neighbours'.

`score_batchnorm` sees the scores of one forward pass: where a step accumulates batches, or
processes share one, each part is normalised by itself. With every other mode the step is that of
the whole batch.

`nap`: the squares of a row's weights add up to n, so that heads grow as √n, and faster where values
go with the scores; the LayerNorm takes that out. `attention.options.nap.output_norm=0` is the mode
without it. The authors' code has the LayerNorm, and a GELU behind it, around softmax too. The GELU
is left out: with it `nap` and `sqrt` would differ by a nonlinearity as well.

With any mode: `attention.qk_clip=100` (QK-Clip, Kimi Team 2025: after a step, W_q and W_k of a head
whose largest logit of a real query was above 100 shrink by a share of `attention.qk_clip_alpha=0.5`
each) and `attention.sigma_reparam=qk` or `all` (σReparam, Zhai et al. 2023, on the q and k
projections, or on every linear layer; γ gets no weight decay either: in its authors' code it has
shape (1,), which the usual rule for parameters of one axis exempts).

## Measured

Initial deviation: standard deviation of the logits within rows, untrained pre-norm Transformer,
d_k = d_model = 64, PyTorch's initialisation, 95 % interval over seeds (`python -m src.theory`).
ms/step and ÷ sqrt: a training step of the default Transformer and its ratio to one of `sqrt`, all
modes in turn, medians (`python -m benchmarks.modes`). Loss and BLEU:
`python -m src.train -m experiment=scale_modes` (the bundled corpus, one seed, rate 1e-3).

Initial deviations were measured at the one size where `sqrt_d_model` and `mup` are `sqrt` (d_k =
d_model = 64 = d₀); loss and BLEU at d_k = 32. A BLEU near 100 with one seed at one rate ranks
nothing, nor does the loss. `nap` was measured with `output_norm=0`.

{markdown_table(columns, rows)}

## Left out

{markdown_table(["method", "why"], left_out)}
"""


def mode_figures(store: Store, options: Mapping[str, Mapping[str, float]]) -> dict[str, Figures]:
    """Measure every mode's initial deviation, and read what a step costs if it was timed."""
    timings = History(store, BENCHMARKS)
    times, ratios = (
        timings.newest_values("kind", "mode_cost", f"bench/{name}")
        for name in ("step_ms", "step_ratio")
    )
    return {
        name: (
            between(mode_std(name, options.get(name, {}), seeds=8, seed=0)),
            times.get(name),
            ratios.get(name),
        )
        for name in SCALES
    }
