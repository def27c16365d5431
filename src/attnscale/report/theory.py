"""The theory page, section by section: tables in, :class:`Section` records out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnscale.claims.document import Settled
from attnscale.claims.evidence import Evidence, collect
from attnscale.figures import theory as charts
from attnscale.figures.page import Figure, Section, Table, table_of
from attnscale.theory import tables
from attnscale.theory.initialisation import InitialStd, initial_stds

FLOOR = 1e-8
"""Smallest std that is drawn; collapsed layers have none."""


@dataclass(frozen=True)
class Theory:
    """What the app makes: the sections without the claims, the evidence, and key figures."""

    sections: list[Section]
    evidence: Evidence
    figures: dict[str, float]


def variance_section(points: tables.Rows, exponents: tables.Rows) -> Section:
    """Var(q·k) against d_k."""
    return Section(
        title="1. How the variance of q·k grows with d_k",
        text=(
            "Points: simulation, 95 % intervals over draws of the weights. Dashed: closed form. "
            "The slope of independent components is 1 in the variance, ½ in the deviation; "
            "where half of a row's keys are aligned with their query it approaches 2, and 1. The "
            "softmax sees the variance within rows only: what all keys of a row share cancels.",
        ),
        figures=(
            Figure(
                name="score_variance",
                spec=charts.growth(points),
                caption="Variance of q·k. LayerNormed inputs have d_model = 128 and a mean cosine "
                "of 0.3 between the inputs of a row.",
            ),
        ),
        tables=(
            table_of(
                "exponents",
                exponents,
                "Fitted exponent of the standard deviation over d_k, 95 % interval",
            ),
            table_of("score_variance", points, "Every point of the figure"),
        ),
    )


def histogram_section(bars: tables.Rows, lines: tables.Rows, row: tables.Rows) -> Section:
    """Densities of logits, and one row of ten."""
    return Section(
        title="2. Where the logits lie, and what softmax makes of them",
        figures=(
            Figure(
                name="logit_histograms",
                spec=charts.histograms(bars, lines),
                caption="Logits of independent standard normal q and k, with the exact density of "
                "a sum of d_k products and the normal one.",
            ),
            Figure(
                name="one_row",
                spec=charts.score_row(row),
                caption="The same ten scores with the factor and without it.",
            ),
        ),
        tables=(
            table_of("one_row", row, "Ten keys of one query"),
            table_of("logit_histograms", bars, "Densities by bin"),
        ),
    )


def softmax_section() -> Section:
    """softmax([a, a, 2a]) and shifts."""
    curve = tables.largest_weight()
    return Section(
        title="3. Softmax sees differences, not sizes",
        text=(
            "The largest weight of softmax([a, a, 2a]) is eᵃ/(2 + eᵃ): it saturates because the "
            "difference between the entries grows with a. Adding the same number to every entry "
            "changes nothing, however large the entries become; multiplying them does.",
        ),
        figures=(
            Figure(
                name="largest_weight",
                spec=charts.largest_weight(curve),
                caption="Largest weight of softmax([a, a, 2a]) and its derivative 2eᵃ/(2 + eᵃ)².",
            ),
        ),
        tables=(
            Table(
                name="shift_invariance",
                columns=("vector", "what it is", "largest weight"),
                rows=tables.shifted(),
                caption="Vectors that a popular tutorial calls increasingly sharp, and some that "
                "are sharper",
            ),
            table_of("largest_weight", curve, "Every point of the figure"),
        ),
    )


def sharpness_section(
    rows: tables.Rows, places: tables.Rows, table: tuple[Sequence[str], Any], n: int
) -> Section:
    """Statistics against β, and every mode's place."""
    return Section(
        title="4. What the deviation of the logits does",
        text=(
            "For rows of n independent normal logits of standard deviation β. At large β the mean "
            "of the Jacobian's norm and the share of live rows vanish like 1/β; its root mean "
            "square like 1/√β only, so that times β, as in the gradient of q, it grows.",
        ),
        figures=(
            Figure(
                name="sharpness",
                spec=charts.sharpness(rows),
                caption="Points: simulation. Lines: closed forms for small and for large β.",
            ),
            Figure(
                name="mode_places",
                spec=charts.places(places),
                caption=f"Where every scale mode starts on that axis, rows of {n} keys, q and k of "
                "unit variance (before a gain of the mode's own).",
            ),
        ),
        tables=(
            Table(
                name="initial_table",
                columns=table[0],
                rows=table[1],
                caption="Rows of 14 keys under common initialisations",
            ),
            table_of("mode_places", places, "Predicted deviations"),
            table_of("sharpness", rows, "Every point of the figure"),
        ),
    )


def initial_section(measured: Sequence[InitialStd]) -> Section:
    """What each initialisation really gives."""
    rows = [
        {
            "model": one.model,
            "attention": one.attention,
            "init": one.init,
            "value": max(one.value.value, FLOOR),
            "low": max(one.value.low, one.value.value / 10, FLOOR),
            "high": max(one.value.high, FLOOR),
            "predicted": max(one.predicted, FLOOR),
        }
        for one in measured
    ]
    return Section(
        title="5. What each initialisation really gives",
        text=(
            "Standard deviation of the logits within rows in the untrained models, attention.scale"
            "=sqrt, d_k = 64, mean over seeds. The tick is the prediction from the same batch's "
            "q, k and token cosines.",
        ),
        figures=(
            Figure(
                name="initial_deviation",
                spec=charts.initial(rows),
                caption="Autoencoder: three layers on Gaussian sequences. Transformer: two and two "
                "layers on sentences of the bundled grammar.",
            ),
        ),
        tables=(table_of("initial_deviation", rows, "The same"),),
    )


def claims_section(settled: Sequence[Settled]) -> Section:
    """Every claim with its verdict."""
    return Section(
        title="6. Claims",
        text=(
            "Each verdict is computed from the statistic beside it. Open: the runs cannot tell, or "
            "were not made.",
        ),
        tables=(
            Table(
                name="claims",
                columns=("", "claim", "verdict", "statistic", "value"),
                rows=[row for one in settled for row in one.rows],
                caption="Popular claims about the scale of attention",
            ),
        ),
    )


def make_theory(
    options: Mapping[str, Mapping[str, float]],
    *,
    draws: int,
    pairs: int,
    replicates: int,
    models: int,
    n: int,
    seed: int,
) -> Theory:
    """Simulate everything and put it into sections.

    The numbers of ``conf/theory.yaml`` keep the app under a minute.

    Args:
        options: Options of the scale modes, by mode.
        draws: Softmax rows per point.
        pairs: q, k pairs per histogram.
        replicates: Weight draws per variance.
        models: Untrained models per initialisation.
        n: Kept keys of a row, where one number is needed.
        seed: Of all draws.
    """
    points, exponents, fits = tables.growth(draws=replicates, seed=seed)
    bars, lines = tables.histograms(draws=pairs, seed=seed)
    sharp = tables.sharpness(draws=draws, seed=seed)
    measured = initial_stds(seeds=models, seed=seed)
    independent = fits["independent q and k"]
    initial = [(f"{one.model}, {one.init}", one.value) for one in measured]
    evidence = collect(initial=initial, seed=seed)
    sections = [
        variance_section(points, exponents),
        histogram_section(bars, lines, tables.one_row(seed=seed)),
        softmax_section(),
        sharpness_section(
            sharp,
            tables.mode_places(options, n=n),
            tables.first_table(draws=60_000, seed=seed),
            n,
        ),
        initial_section(measured),
    ]
    figures = {f"theory/exponent_{fit.variance}": fit.exponent.value for fit in independent}
    for d_k, ratio, live in evidence.gradient_ratios:
        figures[f"theory/gradient_ratio_{d_k}"] = ratio.value
        figures[f"theory/live_rows_none_{d_k}"] = live.value
    return Theory(sections, evidence, figures)
