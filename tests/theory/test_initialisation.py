"""Untrained models: what is measured in them, and what was predicted."""

import pytest
import torch

from attnscale.attention import SCALES
from attnscale.model.layers import INITS
from attnscale.theory.initialisation import (
    PADDING,
    VOCABULARY,
    InitialStd,
    _numbers,
    initial_stds,
    mode_std,
)

LAYERS = {
    "autoencoder": {f"layers.{i}.attention" for i in range(3)},
    "Transformer": {
        *(f"encoder.{i}.self" for i in range(2)),
        *(f"decoder.{i}.{kind}" for i in range(2) for kind in ("self", "cross")),
    },
}


@pytest.fixture(scope="module")
def measured() -> list[InitialStd]:
    return initial_stds(seeds=3, seed=0)


def of(found: list[InitialStd], model: str, attention: str, init: str) -> InitialStd:
    (one,) = [m for m in found if (m.model, m.attention, m.init) == (model, attention, init)]
    return one


def test_every_attention_of_every_case_is_measured(measured: list[InitialStd]) -> None:
    models = [f"autoencoder, {norm}" for norm in ("no norm", "pre-norm")]
    models += [f"Transformer, {norm}" for norm in ("pre-norm", "post-norm")]
    wanted = {
        (model, attention, init)
        for model in models
        for attention in LAYERS[model.partition(",")[0]]
        for init in INITS
    }
    assert {(m.model, m.attention, m.init) for m in measured} == wanted
    assert len(measured) == len(wanted)


def test_the_prediction_is_within_15_percent(measured: list[InitialStd]) -> None:
    # Where inputs have all but collapsed into one, what is left of the deviation is rounding.
    alive = [m for m in measured if m.value.value > 0.1]
    assert len(alive) > 0.9 * len(measured)
    for m in alive:
        ratio = m.predicted / m.value.value
        assert abs(ratio - 1) < 0.15, f"{m.model}, {m.attention}, {m.init}: {ratio}"
    ratios = torch.tensor([m.predicted / m.value.value for m in alive])
    assert abs(float(ratios.mean()) - 1) < 0.02, f"biased: {ratios.mean()}"


def test_initialisations_differ_as_their_deviations_do(measured: list[InitialStd]) -> None:
    # On LayerNormed inputs: σ² d_model is 1/3, 2 d/(d + 2 · 64), 4 (with ReLU's gain) and 1.
    found = {
        init: of(measured, "autoencoder, pre-norm", "layers.0.attention", init).value.value
        for init in INITS
    }
    wanted = {"torch": 1 / 3, "xavier": 2 / 3, "kaiming": 2.0, "unit": 1.0}
    assert found == {init: pytest.approx(x, rel=0.1) for init, x in wanted.items()}


def test_another_mode_and_size_in_the_models(measured: list[InitialStd]) -> None:
    none = initial_stds(scale="none", d_k=16, seeds=2, seed=0)
    assert len(none) == len(measured)
    for a, b in zip(measured, none, strict=True):
        assert (a.model, a.attention) == (b.model, b.attention)
        # Var W of "xavier" depends on the outputs. Only the first attention sees the same inputs.
        if a.init != "xavier" and b.attention in ("layers.0.attention", "encoder.0.self"):
            assert b.predicted == pytest.approx(4 * a.predicted, rel=0.15)
            assert b.value.value == pytest.approx(4 * a.value.value, rel=0.15)


def test_one_mode_measured_is_that_case_of_all(measured: list[InitialStd]) -> None:
    case = of(measured, "Transformer, pre-norm", "encoder.0.self", "torch")
    assert mode_std("sqrt", {}, seeds=3, seed=0) == case.value
    none = mode_std("none", {}, seeds=3, seed=0)
    assert none.value == pytest.approx(8 * case.value.value, rel=1e-5)
    capped = mode_std("softcap", {"cap": 0.05}, seeds=2, seed=4)
    assert 0 < capped.value < 0.05


def test_modes_that_need_the_data_get_it() -> None:
    assert SCALES["qknorm"].statistics == {"length": "length_p97_5"}
    found = mode_std("qknorm", {}, seeds=2, seed=0)
    # log₂(L² − L) of lengths of some 5 to 15, over √64, times √(1 − c̄).
    assert 0.3 < found.value < 1.2


def test_words_are_numbered_and_padded() -> None:
    made = _numbers(["a b a", "c", "b c d e"])
    assert made.tolist() == [[1, 2, 1, 0], [3, 0, 0, 0], [2, 3, 4, 5]]
    many = _numbers([" ".join(str(i) for i in range(2 * VOCABULARY))])
    assert PADDING not in many
    assert int(many.max()) < VOCABULARY
