"""Tables of the page: complete, and right where something else can say what is right."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from attnscale.attention import SCALES, choose_scale
from attnscale.attention.scale import all_options
from attnscale.theory import tables
from attnscale.theory.simulate import logits_of_rows
from attnscale.theory.simulate_softmax import softmax_statistics

OPTIONS = all_options()
ROWS = 4000


def test_growth_has_a_row_for_every_point() -> None:
    points, exponents, fits = tables.growth(draws=2, seed=0)
    settings, kinds = list(tables.settings()), list(tables.VARIANCES.values())
    assert len(settings) == 6
    assert [(p["setting"], p["d_k"], p["kind"]) for p in points] == [
        (setting, d_k, kind) for setting in settings for d_k in tables.D_KS for kind in kinds
    ]
    assert [(e["setting"], e["kind"]) for e in exponents] == [
        (setting, kind) for setting in settings for kind in kinds
    ]
    assert list(fits) == settings
    for point in points:
        assert 0 < point["low"] <= point["value"] <= point["high"]
        assert 0.5 < point["value"] / point["predicted"] < 2
        if point["setting"] == "independent q and k":
            assert point["predicted"] == pytest.approx(point["d_k"])
    for row in exponents:
        fit = next(f for f in fits[row["setting"]] if tables.VARIANCES[f.variance] == row["kind"])
        assert (row["exponent"], row["predicted"]) == (fit.exponent.value, fit.predicted)
        assert row["low"] < row["exponent"] < row["high"]
    (start,) = [f for f in fits["independent q and k"] if f.variance == "row"]
    assert start.predicted == pytest.approx(0.5)
    assert start.exponent.value == pytest.approx(0.5, abs=0.05)


def test_histograms_are_densities_beside_their_predictions() -> None:
    draws = 4000
    bars, lines = tables.histograms(draws=draws, seed=0)
    for scale in ("sqrt", "none"):
        for d_k in tables.D_KS:
            mine = [b for b in bars if (b["scale"], b["d_k"]) == (scale, d_k)]
            assert len(mine) == 45
            share = sum(b["density"] * (b["high"] - b["low"]) for b in mine)
            # The edges are at 4.5 deviations.
            assert 0.995 < share <= 1 + 1e-9
            spread = 4.5 * (1.0 if scale == "sqrt" else d_k**0.5)
            assert (mine[0]["low"], mine[-1]["high"]) == pytest.approx((-spread, spread))
            for kind in ("exact", "normal"):
                line = [r for r in lines if (r["scale"], r["d_k"], r["kind"]) == (scale, d_k, kind)]
                assert len(line) == 91
                step = line[1]["x"] - line[0]["x"]
                assert sum(r["density"] for r in line) * step == pytest.approx(1, abs=5e-3)
            exact = [
                r["density"]
                for r in lines
                if (r["scale"], r["d_k"], r["kind"]) == (scale, d_k, "exact")
            ]
            # Every second point of the line is the middle of a bin.
            width = mine[0]["high"] - mine[0]["low"]
            for bar, density in zip(mine, exact[1::2], strict=True):
                error = math.sqrt(max(density, 1 / draws / width) / (draws * width))
                assert abs(bar["density"] - density) < 5 * error + 0.02 * max(exact)


def test_one_row_is_the_same_scores_twice() -> None:
    rows = tables.one_row(seed=0)
    scaled, plain = ([r for r in rows if r["scale"] == s] for s in ("sqrt", "none"))
    assert [r["key"] for r in scaled] == [r["key"] for r in plain] == list(range(1, 11))
    for a, b in zip(scaled, plain, strict=True):
        assert b["logit"] == pytest.approx(a["logit"] * 128**0.5, rel=1e-5)
    for part in (scaled, plain):
        logits = torch.tensor([r["logit"] for r in part], dtype=torch.float64)
        assert [r["weight"] for r in part] == pytest.approx(logits.softmax(0).tolist(), rel=1e-4)
    assert max(r["weight"] for r in plain) > max(r["weight"] for r in scaled)


def test_largest_weight_and_its_slope() -> None:
    rows = tables.largest_weight()
    weight, slope = (
        {r["a"]: r["value"] for r in rows if r["kind"] == kind}
        for kind in ("largest weight", "its derivative")
    )
    assert list(weight) == list(slope) == [pytest.approx(a / 10) for a in range(101)]
    for a, value in weight.items():
        x = torch.tensor(a, dtype=torch.float64, requires_grad=True)
        largest = torch.stack([x, x, 2 * x]).softmax(0)[2]
        largest.backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        assert (value, slope[a]) == pytest.approx((largest.item(), x.grad.item()), rel=1e-9)


def test_shifts_are_equal_and_multiples_sharper() -> None:
    rows = tables.shifted()
    *shifts, three, ten = rows
    assert len({round(value, 12) for _, _, value in shifts}) == 1
    assert len(shifts) == 3
    assert shifts[0][2] < three[2] < ten[2]
    assert three[:2] == ("[3.0, 1.5, -1.5]", "3 times the first")
    for text, _, value in rows:
        vector = torch.tensor([float(x) for x in text.strip("[]").split(",")]).double()
        assert value == pytest.approx(vector.softmax(0).max().item())


def test_sharpness_has_every_point_and_limits_that_meet_them() -> None:
    rows = tables.sharpness(draws=2000, seed=0)
    betas = [2.0**power for power in np.arange(-3, 5.01, 0.5)]
    simulated = [
        row for n in (8, 14, 64) for row in softmax_statistics(betas, n, draws=2000, seed=0)
    ]
    assert [(r.n, r.beta) for r in simulated[:2]] == [(8, 2**-3), (8, 2**-2.5)]
    points = [r for r in rows if r["kind"] == "simulated"]
    assert len(simulated) == 3 * 17
    assert len(points) == len(simulated) * len(tables.STATISTICS)
    values = {(r["statistic"], r["n"], r["beta"]): r["value"] for r in points}
    assert len(values) == len(points)
    for found in simulated:
        for key, label in tables.STATISTICS.items():
            assert values[label, str(found.n), found.beta] == getattr(found, key).value
    limits = [r for r in rows if r["kind"] != "simulated"]
    assert {r["kind"] for r in limits} == {"small β", "large β"}
    assert {r["statistic"] for r in limits} == set(tables.STATISTICS.values())
    for n in ("8", "14", "64"):
        mine = [r for r in limits if r["n"] == n and r["kind"] == "large β"]
        # Far out and near zero, where each limit should be good.
        assert max(r["beta"] for r in mine) == 32
        for row in mine:
            if row["beta"] == 32:
                found = values[row["statistic"], n, 32.0]
                assert row["value"] == pytest.approx(found, rel=0.1, abs=0.02), row
        (near, *_) = [r for r in limits if r["n"] == n and r["kind"] == "small β"]
        assert near["beta"] == 2**-3
        assert near["value"] == pytest.approx(values[near["statistic"], n, 2**-3], abs=2e-3)


def simulated_deviation(name: str, d_k: int, n: int) -> float:
    """Draw q and k of unit variance, q times the mode's gain, and measure."""
    factory = choose_scale(name, OPTIONS.get(name), {"length_p97_5": 26.0})
    scale = factory(n_heads=1, d_k=d_k, d_model=512)
    q, k = scale.init_gain(d_k) * torch.randn(ROWS, d_k), torch.randn(ROWS, n, d_k)
    logits: Tensor = logits_of_rows(q, k, scale)
    return float(logits.var(dim=-1).mean().sqrt())


@pytest.fixture(scope="module")
def places() -> dict[tuple[str, int], float]:
    rows = tables.mode_places(OPTIONS, n=7)
    made = {(row["mode"], row["d_k"]): row["beta"] for row in rows}
    assert len(made) == len(rows)
    return made


def test_every_mode_has_a_place(places: dict[tuple[str, int], float]) -> None:
    assert list(places) == [(name, d_k) for name in SCALES for d_k in tables.D_KS]
    assert all(0 < beta < math.inf for beta in places.values())


@pytest.mark.parametrize("name", SCALES)
def test_the_place_of_a_mode_is_what_a_simulation_gives(
    name: str, places: dict[tuple[str, int], float]
) -> None:
    for d_k in (16, 64):
        # Rows share their query, whose size varies by 1/√(2 d_k): some 0.5 % over all rows. A
        # LayerNorm takes one component's worth of freedom: half of 1/d_k.
        allowed = 4 * math.sqrt((2 / 6 + 2 / d_k) / ROWS) / 2 + 0.6 / d_k
        found = simulated_deviation(name, d_k, 7)
        ratio = found / places[name, d_k]
        assert abs(ratio - 1) < allowed, f"d_k={d_k}: {found} ÷ {places[name, d_k]} = {ratio}"


def test_places_by_hand(places: dict[tuple[str, int], float]) -> None:
    for d_k in tables.D_KS:
        root = d_k**0.5
        assert places["none", d_k] == pytest.approx(root)
        for name in ("sqrt", "folded", "none_equiv", "learned", "qk_rmsnorm", "ngpt"):
            assert places[name, d_k] == pytest.approx(1.0)
        assert places["inverse", d_k] == pytest.approx(1 / root)
        assert places["sqrt_d_model", d_k] == pytest.approx(root / 512**0.5)
        assert places["cosine_fixed", d_k] == pytest.approx(10 / root)
        assert places["qknorm", d_k] == pytest.approx(math.log2(26 * 25) / root, rel=1e-6)
        assert places["log_n", d_k] == pytest.approx(math.log(7))
        assert places["log_n_base", d_k] == pytest.approx(math.log(7) / math.log(14))
        assert places["score_layernorm", d_k] == pytest.approx(math.sqrt(7 / 6))


def test_the_first_table() -> None:
    columns, rows = tables.first_table(draws=3000, seed=0)
    assert all(len(row) == len(columns) for row in rows)
    assert len({row[0] for row in rows}) == len(rows) == 12
    (unit,) = [row for row in rows if row[0] == "sqrt, unit"]
    # At n = 14 and β = 1, from 60,000 other draws.
    assert unit[1:] == pytest.approx([1, 0.846, 0.266, 7.39, 0.318, 0.318, 0], rel=0.02, abs=2e-3)
