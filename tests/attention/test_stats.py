"""Statistics against a reference in plain loops over rows, in NumPy and float64."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from attnscale.attention import Attended, MultiHeadAttention, attend, causal_keep, padding_keep
from attnscale.attention.masks import softmax_over_kept
from attnscale.attention.stats import (
    OF_SCORES,
    OF_VECTORS,
    OF_WEIGHTS,
    STATISTICS,
    Sample,
    Statistic,
    logit_std,
    measure,
    predicted_std,
    predicted_stds,
    sample_of,
)
from tests.support.modes import Mode, every_mode, factory_of

BATCH, HEADS, QUERY, KEY, D_K, D_MODEL = 2, 3, 5, 7, 11, 17
FACTOR = 0.7
Array = NDArray[np.float64]
every = pytest.mark.parametrize("name", STATISTICS)
OF_ROWS = [n for n in STATISTICS if n not in {"q_var", "k_var", "x_cos", "spectral_qk"}]
MATRIX = [n for n in STATISTICS if n != "score_growth" and n not in OF_VECTORS]


def random_keep() -> Tensor:
    """A mask that differs in every axis, with rows of no key, one key and two keys."""
    keep = torch.rand(BATCH, HEADS, QUERY, KEY) < 0.6
    keep[..., 2] = True
    keep[0, 1, 3] = False
    keep[1, 2, 0] = torch.arange(KEY) == 4
    keep[1, 0, 2] = torch.arange(KEY) > 4
    return keep


def draw(
    keep: Tensor | None = None,
    real_queries: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> Sample:
    """Queries and keys that have a mean, and heads that differ in spread."""
    heads = torch.tensor([0.5, 1.0, 2.0])[:, None, None]
    q = (heads * torch.randn(BATCH, HEADS, QUERY, D_K) + 0.3).to(dtype)
    k = (torch.randn(BATCH, HEADS, KEY, D_K) + 0.2 * torch.randn(D_K)).to(dtype)
    scores = q @ k.mT
    logits = FACTOR * scores + 0.4
    return Sample(
        weights=softmax_over_kept(logits, keep),
        logits=logits,
        scores=scores,
        q=q,
        k=k,
        x=(torch.randn(BATCH, KEY, D_MODEL) + 0.5).to(dtype),
        w_q=torch.randn(HEADS * D_K, D_MODEL).to(dtype),
        w_k=torch.randn(HEADS * D_K, D_MODEL).to(dtype),
        keep=keep,
        real_queries=real_queries,
    )


def full(keep: Tensor | None, *shape: int) -> NDArray[np.bool_]:
    everything = torch.ones((), dtype=torch.bool)
    made: NDArray[np.bool_] = (everything if keep is None else keep).broadcast_to(shape).numpy()
    return made


class Reference:
    """The definitions, one head of one sample, row by row."""

    def __init__(self, sample: Sample, head: int) -> None:
        assert sample.scores is not None
        assert sample.x is not None
        shape = sample.scores.shape
        keep = full(sample.keep, *shape)[:, head]
        real = full(sample.real_queries, *shape[:3])[:, head]
        self.head, self.sample = head, sample
        self.rows = [
            (b, i, np.flatnonzero(keep[b, i]))
            for b in range(shape[0])
            for i in range(shape[2])
            if real[b, i] and keep[b, i].sum() >= 2
        ]
        self.real_q = [(b, i) for b in range(shape[0]) for i in range(shape[2]) if real[b, i]]
        attended: NDArray[np.bool_] = np.logical_or.reduce(keep & real[:, :, None], axis=1)
        self.real_k = [(b, j) for b in range(shape[0]) for j in range(shape[3]) if attended[b, j]]

    def array(self, name: str) -> Array:
        values: Tensor = getattr(self.sample, name).double()
        made: Array = (values if name in {"x", "w_q", "w_k"} else values[:, self.head]).numpy()
        return made

    def of_rows(self, name: str) -> Iterator[Array]:
        values = self.array(name)
        for b, i, kept in self.rows:
            row: Array = values[b, i, kept]
            yield row

    def p(self) -> Iterator[Array]:
        return self.of_rows("weights")

    def entropies(self) -> Array:
        return np.array([-sum(x * math.log(x) for x in p if x > 0) for p in self.p()])

    def evenness(self) -> Array:
        pairs = zip(self.entropies(), self.rows, strict=True)
        return np.array([entropy / math.log(len(kept)) for entropy, (_, _, kept) in pairs])

    def jacobians(self) -> Array:
        return np.array([np.linalg.norm(np.diag(p) - np.outer(p, p)) for p in self.p()])

    def std_row(self, name: str) -> float:
        return math.sqrt(np.mean([np.var(row, ddof=1) for row in self.of_rows(name)]))

    def std_total(self, name: str) -> float:
        return float(np.std(np.concatenate(list(self.of_rows(name))), ddof=1))

    def kurtosis(self) -> float:
        pooled = np.concatenate(
            [
                (row - row.mean()) * math.sqrt(len(row) / (len(row) - 1))
                for row in self.of_rows("logits")
            ]
        )
        return float(np.mean(pooled**4) / np.mean(pooled**2) ** 2)

    def variance(self, name: str) -> float:
        vectors = self.array(name)
        real = np.array([vectors[at] for at in (self.real_q if name == "q" else self.real_k)])
        return float(np.mean([np.mean((c - c.mean()) ** 2) for c in real.T]))

    def sigmas(self) -> float:
        return math.sqrt(self.variance("q") * self.variance("k"))

    def pairs(self) -> Iterator[tuple[Array, Array]]:
        q, k = self.array("q"), self.array("k")
        for b, i, kept in self.rows:
            for j in kept:
                yield q[b, i], k[b, j]

    def align(self) -> float:
        outer = np.mean([np.outer(q, k) for q, k in self.pairs()], axis=0)
        return float(np.trace(outer) / (outer.shape[0] * self.sigmas()))

    def x_cos(self) -> float:
        x, found = self.array("x"), []
        for b in range(len(x)):
            at = [j for sequence, j in self.real_k if sequence == b]
            cosines = [cosine(x[b, i], x[b, j]) for i in at for j in at if i != j]
            found += [np.mean(cosines)] if cosines else []
        return float(np.mean(found))

    def spectral(self) -> float:
        rows = slice(self.head * D_K, (self.head + 1) * D_K)
        product = self.array("w_q")[rows].T @ self.array("w_k")[rows]
        return float(np.linalg.svd(product, compute_uv=False)[0])


def cosine(a: Array, b: Array) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def share(rows: Iterator[Array], condition: Callable[[Array], bool]) -> float:
    return float(np.mean([condition(row) for row in rows]))


REFERENCES: dict[str, Callable[[Reference], Any]] = {
    "entropy": lambda r: r.entropies().mean(),
    "entropy_norm": lambda r: r.evenness().mean(),
    "entropy_norm_p5": lambda r: np.percentile(r.evenness(), 5),
    "n_eff": lambda r: np.exp(r.entropies()).mean(),
    "n_eff_2": lambda r: np.mean([1 / (p**2).sum() for p in r.p()]),
    "p_max": lambda r: np.mean([p.max() for p in r.p()]),
    "saturated_90": lambda r: share(r.p(), lambda p: p.max() > 0.9),
    "saturated_99": lambda r: share(r.p(), lambda p: p.max() > 0.99),
    "jac_fro": lambda r: r.jacobians().mean(),
    "jac_fro_rms": lambda r: math.sqrt((r.jacobians() ** 2).mean()),
    "live_rows": lambda r: share(r.p(), lambda p: 1 - (p**2).sum() > 0.05),
    "score_gain": lambda r: r.std_row("logits") * math.sqrt((r.jacobians() ** 2).mean()),
    "logit_max": lambda r: max(row.max() for row in r.of_rows("logits")),
    "logit_gap": lambda r: max(row.max() - row.mean() for row in r.of_rows("logits")),
    "logit_std_row": lambda r: r.std_row("logits"),
    "logit_std_total": lambda r: r.std_total("logits"),
    "logit_kurtosis": lambda r: r.kurtosis(),
    "score_std_row": lambda r: r.std_row("scores"),
    "score_std_total": lambda r: r.std_total("scores"),
    "score_growth": lambda r: r.std_row("scores") / (math.sqrt(D_K) * r.sigmas()),
    "q_var": lambda r: r.variance("q"),
    "k_var": lambda r: r.variance("k"),
    "align": lambda r: r.align(),
    "align_cos": lambda r: np.mean([cosine(q, k) for q, k in r.pairs()]),
    "x_cos": lambda r: r.x_cos(),
    "spectral_qk": lambda r: r.spectral(),
}


def reference(sample: Sample, name: str) -> Tensor:
    heads = [float(REFERENCES[name](Reference(sample, head))) for head in range(HEADS)]
    return torch.tensor(heads, dtype=torch.float64)


def close(made: Tensor, wanted: Tensor, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(made.double(), wanted.double(), rtol=tolerance, atol=tolerance)


def per_head(value: float) -> Tensor:
    return torch.full((HEADS,), value, dtype=torch.float64)


def of(sample: Sample, name: str) -> Tensor:
    return measure(sample, [name])[name]


def of_weights(weights: Tensor, keep: Tensor | None = None) -> dict[str, Tensor]:
    sample = Sample(weights=weights, logits=torch.zeros_like(weights), keep=keep)
    return measure(sample, OF_WEIGHTS)


def real_queries() -> Tensor:
    return padding_keep(torch.tensor([QUERY, 3]), QUERY)[:, 0]


@dataclass(frozen=True)
class Case:
    keep: Callable[[], Tensor | None]
    real: Callable[[], Tensor | None] = lambda: None


CASES = {
    "everything": Case(lambda: None),
    "random": Case(random_keep),
    "random, padded queries": Case(random_keep, real_queries),
    "random of each head": Case(lambda: random_keep()[:1, :, :1]),
    "queries and keys": Case(lambda: random_keep()[1, 0]),
    "padding": Case(lambda: padding_keep(torch.tensor([KEY, 4]), KEY), real_queries),
    "a sequence of one key": Case(lambda: padding_keep(torch.tensor([4, 1]), KEY)),
    "no mask, padded queries": Case(lambda: None, real_queries),
    "causal": Case(lambda: causal_keep(QUERY, KEY)),
    "queries only": Case(lambda: torch.rand(BATCH, 1, QUERY, 1) < 0.6),
}


def test_every_statistic_has_a_reference_and_a_full_record() -> None:
    assert set(REFERENCES) == set(STATISTICS)
    for statistic in STATISTICS.values():
        assert all((statistic.formula, statistic.unit, statistic.source))


@every
@pytest.mark.parametrize("case", CASES)
def test_equals_the_reference(name: str, case: str) -> None:
    keep, real = CASES[case].keep(), CASES[case].real()
    sample = draw(keep, real)
    made = of(sample, name)
    assert made.shape == (HEADS,)
    assert made.dtype == torch.float64
    close(made, reference(sample, name))


@every
def test_equals_the_reference_in_fp32(name: str) -> None:
    sample = draw(random_keep(), real_queries(), torch.float32)
    made = of(sample, name)
    assert made.dtype == torch.float32
    close(made, reference(sample, name), 3e-6)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.bfloat16) for name in STATISTICS),
        *((name, torch.float16) for name in ("entropy", "logit_max", "score_growth", "align")),
    ],
)
def test_half_precision_is_computed_in_fp32(name: str, dtype: torch.dtype) -> None:
    wide = draw(random_keep(), real_queries(), torch.float32)
    tensors = ("weights", "logits", "scores", "q", "k", "x", "w_q", "w_k")
    halves = replace(wide, **{t: getattr(wide, t).to(dtype) for t in tensors})
    again = replace(wide, **{t: getattr(halves, t).float() for t in tensors})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = of(halves, name)
    assert made.dtype == torch.float32
    assert torch.equal(made, of(again, name))


def test_one_call_gives_what_many_give() -> None:
    sample = draw(random_keep(), real_queries())
    names = list(reversed(STATISTICS))
    together = measure(sample, names)
    assert list(together) == names
    for name in names:
        alone = of(replace(sample), name)
        assert torch.equal(together[name], alone), name


def test_counts_the_rows() -> None:
    sample = draw(random_keep(), real_queries())
    wanted = [len(Reference(sample, head).rows) for head in range(HEADS)]
    assert sample.rows.count.tolist() == wanted
    assert len(set(wanted)) > 1
    assert draw().rows.count.tolist() == [BATCH * QUERY] * HEADS


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [2, 3, KEY])
def test_uniform_weights(n: int, dtype: torch.dtype) -> None:
    keep = torch.arange(KEY) < n
    logits = torch.full((BATCH, HEADS, QUERY, KEY), 4.2, dtype=dtype)
    sample = Sample(
        weights=softmax_over_kept(logits, keep), logits=logits, scores=logits, keep=keep
    )
    made = measure(sample, MATRIX)
    wanted = {
        "entropy": math.log(n),
        "entropy_norm": 1.0,
        "entropy_norm_p5": 1.0,
        "n_eff": n,
        "n_eff_2": n,
        "p_max": 1 / n,
        "saturated_90": 0.0,
        "saturated_99": 0.0,
        "jac_fro": math.sqrt(n - 1) / n,
        "jac_fro_rms": math.sqrt(n - 1) / n,
        "live_rows": 1.0,
        "score_gain": 0.0,
        "logit_max": 4.2,
        **dict.fromkeys(("logit_gap", "logit_std_row", "logit_std_total"), 0.0),
        **dict.fromkeys(("score_std_row", "score_std_total"), 0.0),
    }
    assert set(wanted) == set(MATRIX) - {"logit_kurtosis"}
    for name, value in wanted.items():
        close(made[name], per_head(float(value)), 8 * torch.finfo(dtype).eps * n)
    assert made["logit_kurtosis"].isfinite().all()


def test_one_hot_weights_are_exact() -> None:
    hot = torch.randint(KEY, (BATCH, HEADS, QUERY))
    made = of_weights(functional.one_hot(hot, KEY).float())
    ones = {"n_eff", "n_eff_2", "p_max", "saturated_90", "saturated_99"}
    for name, values in made.items():
        assert values.tolist() == [1.0 if name in ones else 0.0] * HEADS, name


@pytest.mark.parametrize("p", [0.5, 0.6, 0.89, 0.91, 0.975, 0.985, 0.995])
def test_two_keys(p: float) -> None:
    keep = torch.tensor([False, True, False, False, True, False, False])
    weights = torch.zeros(BATCH, HEADS, QUERY, KEY, dtype=torch.float64)
    weights[..., 1], weights[..., 4] = p, 1 - p
    made = of_weights(weights, keep)
    entropy = -p * math.log(p) - (1 - p) * math.log(1 - p)
    wanted = {
        "entropy": entropy,
        "entropy_norm": entropy / math.log(2),
        "entropy_norm_p5": entropy / math.log(2),
        "n_eff": math.exp(entropy),
        "n_eff_2": 1 / (p * p + (1 - p) ** 2),
        "p_max": p,
        "saturated_90": float(p > 0.9),
        "saturated_99": float(p > 0.99),
        # J = p (1 − p) (1 −1; −1 1)
        "jac_fro": 2 * p * (1 - p),
        "jac_fro_rms": 2 * p * (1 - p),
        "live_rows": float(p in {0.5, 0.6, 0.89, 0.91}),
        "score_gain": 0.0,
    }
    assert set(wanted) == set(made)
    for name, value in wanted.items():
        close(made[name], per_head(value), 1e-12)


def test_live_rows_begin_at_a_twentieth() -> None:
    # 1 − p² − (1 − p)² = 2 p (1 − p) passes 0.05 at p = 0.97434.
    for p, live in ((0.9743, 1.0), (0.9744, 0.0)):
        weights = torch.tensor([p, 1 - p], dtype=torch.float64).expand(1, HEADS, QUERY, 2)
        assert of_weights(weights)["live_rows"].tolist() == [live] * HEADS


@pytest.mark.parametrize("gap", [10.0, 16.0, 20.0, 30.0])
def test_the_jacobian_of_nearly_one_hot_rows_survives_fp32(gap: float) -> None:
    logits = torch.zeros(1, HEADS, QUERY, 2)
    logits[..., 0] = gap
    made = of_weights(logits.softmax(dim=-1))
    small = 1 / (1 + math.exp(gap))
    torch.testing.assert_close(
        made["jac_fro"].double(), per_head(2 * small * (1 - small)), rtol=1e-5, atol=0
    )


def spoil(values: Tensor, at: Tensor, by: float) -> Tensor:
    return torch.where(at.expand_as(values), torch.full_like(values, by), values)


@every
@pytest.mark.parametrize("rubbish", [[1e4], [math.inf, math.nan, -math.inf]])
def test_padding_changes_nothing(name: str, rubbish: list[float]) -> None:
    """Two more keys and three more queries, padded with anything."""
    small = draw(random_keep(), real_queries())
    assert small.weights is not None
    assert small.keep is not None
    assert small.real_queries is not None

    def grow(values: Tensor | None, *pads: int, by: float | None = None) -> Tensor:
        assert values is not None
        padded = functional.pad(values, pads, value=by or 0.0)
        if by is not None:
            return padded
        # Each number of the rubbish in turn, wherever there is padding.
        of_padding = functional.pad(torch.zeros_like(values, dtype=torch.bool), pads, value=True)
        turns = torch.arange(padded.numel()).view(padded.shape) % len(rubbish)
        return torch.where(of_padding, torch.tensor(rubbish).to(padded)[turns], padded)

    large = replace(
        small,
        weights=grow(grow(small.weights, 0, 2, by=0.0), 0, 0, 0, 3),
        logits=grow(small.logits, 0, 2, 0, 3),
        scores=grow(small.scores, 0, 2, 0, 3),
        q=grow(small.q, 0, 0, 0, 3),
        k=grow(small.k, 0, 0, 0, 2),
        x=grow(small.x, 0, 0, 0, 2),
        keep=functional.pad(
            functional.pad(small.keep, (0, 2), value=False), (0, 0, 0, 3), value=True
        ),
        real_queries=functional.pad(small.real_queries, (0, 3), value=False),
    )
    close(of(large, name), of(small, name), 1e-12)


@every
def test_padded_positions_are_not_looked_at(name: str) -> None:
    keep = padding_keep(torch.tensor([KEY, 4]), KEY)
    sample = draw(keep, real_queries())
    wanted = of(sample, name)
    dead_q = ~real_queries()[..., None]
    dead_k = ~keep.mT
    assert sample.q is not None
    assert sample.k is not None
    assert sample.x is not None
    spoilt = replace(
        sample,
        q=spoil(sample.q, dead_q, math.nan),
        k=spoil(sample.k, dead_k, math.nan),
        x=spoil(sample.x, dead_k[:, 0], math.nan),
        scores=None if name == "score_std_row" else sample.scores,
    )
    close(of(spoilt, name), wanted, 1e-12)


@every
def test_order_of_the_batch_does_not_matter(name: str) -> None:
    sample = draw(random_keep(), real_queries())
    batched = ("weights", "logits", "scores", "q", "k", "x", "keep", "real_queries")
    flipped = replace(sample, **{field: getattr(sample, field).flip(0) for field in batched})
    close(of(flipped, name), of(sample, name), 1e-12)


@every
def test_heads_do_not_mix(name: str) -> None:
    sample = draw(random_keep(), real_queries())
    split = ("weights", "logits", "scores", "q", "k", "keep")
    order = torch.tensor([2, 0, 1])
    rows = torch.arange(HEADS * D_K).view(HEADS, D_K)[order].flatten()
    assert sample.w_q is not None
    assert sample.w_k is not None
    turned = replace(
        sample,
        w_q=sample.w_q[rows],
        w_k=sample.w_k[rows],
        **{field: getattr(sample, field)[:, order] for field in split},
    )
    close(of(turned, name), of(sample, name)[order], 1e-12)
    assert len(set(of(sample, name).tolist())) > 1


@every
@pytest.mark.parametrize(("kept", "dtype"), [(0, torch.float32), (1, torch.float16)])
def test_no_counted_row_gives_zero(name: str, kept: int, dtype: torch.dtype) -> None:
    keep = padding_keep(torch.tensor([kept, 0]), KEY)
    sample = replace(draw(dtype=dtype), keep=keep)
    assert sample.logits is not None
    sample = replace(sample, weights=softmax_over_kept(sample.logits, keep))
    made = of(sample, name)
    assert made.isfinite().all()
    assert sample.rows.count.tolist() == [0.0] * HEADS
    if name not in {"q_var", "spectral_qk"}:
        assert made.tolist() == [0.0] * HEADS
        assert not made.signbit().any()


@every
def test_one_counted_row(name: str) -> None:
    keep = torch.zeros(BATCH, HEADS, QUERY, KEY, dtype=torch.bool)
    keep[1, :, 3, 2:] = True
    sample = draw(keep)
    close(of(sample, name), reference(sample, name))


@every
def test_no_real_query_gives_zero(name: str) -> None:
    made = of(draw(None, torch.zeros(1, 1, 1, dtype=torch.bool)), name)
    assert made.isfinite().all()
    assert (made == 0).all() == (name != "spectral_qk")


@every
def test_a_head_without_rows_leaves_the_others_alone(name: str) -> None:
    keep = random_keep()
    whole = draw(keep)
    holed = keep.clone()
    holed[:, 1] = False
    assert whole.logits is not None
    sample = replace(whole, keep=holed, weights=softmax_over_kept(whole.logits, holed))
    made, wanted = of(sample, name), of(whole, name)
    close(made[[0, 2]], wanted[[0, 2]], 1e-12)
    if name in OF_ROWS:
        assert made[1] == 0
        assert sample.rows.count[1] == 0


@every
def test_constant_vectors_and_equal_logits_give_finite_numbers(name: str) -> None:
    for value in (0.0, 1.0):
        shape = (BATCH, HEADS, QUERY, KEY)
        sample = Sample(
            weights=torch.full(shape, 1 / KEY),
            logits=torch.full(shape, value),
            scores=torch.full(shape, value),
            q=torch.full((BATCH, HEADS, QUERY, D_K), value),
            k=torch.full((BATCH, HEADS, KEY, D_K), value),
            x=torch.full((BATCH, KEY, D_MODEL), value),
            w_q=torch.full((HEADS * D_K, D_MODEL), value),
            w_k=torch.full((HEADS * D_K, D_MODEL), value),
        )
        assert of(sample, name).isfinite().all()


def test_weights_are_those_before_dropout() -> None:
    q, k, v = (torch.randn(BATCH, HEADS, KEY, D_K) for _ in range(3))
    made = []
    for dropout in (0.0, 0.6):
        seen: list[Sample] = []
        attend(
            q,
            k,
            v,
            dropout=dropout,
            tap=lambda a, seen=seen: seen.append(Sample(weights=a.weights(), logits=a.logits())),  # type: ignore[misc]
        )
        made.append(measure(seen[0], [n for n in MATRIX if "score_std" not in n]))
    for name in made[0]:
        assert torch.equal(made[0][name], made[1][name]), name


def test_scores_are_made_of_q_and_k_where_they_are_not_given() -> None:
    sample = draw(random_keep())
    assert sample.q is not None
    assert sample.k is not None
    bare = Sample(q=sample.q, k=sample.k, keep=sample.keep)
    for name, made in measure(bare, OF_SCORES).items():
        close(made, of(sample, name), 1e-12)


def test_sends_no_gradient() -> None:
    q = torch.randn(BATCH, HEADS, QUERY, D_K, requires_grad=True)
    made = measure(Sample(q=q, k=q), ["score_std_row", "align"])
    assert not any(values.requires_grad for values in made.values())


def test_a_constant_of_a_row_moves_only_what_it_should() -> None:
    sample = draw(random_keep())
    assert sample.logits is not None
    shifted = replace(
        sample, logits=sample.logits + 20 * torch.rand(BATCH, HEADS, QUERY, 1, dtype=torch.float64)
    )
    for name in MATRIX:
        same = torch.allclose(of(sample, name), of(shifted, name))
        assert same == (name not in {"logit_max", "logit_std_total"}), name


def test_kurtosis_of_gaussian_rows_of_any_length_is_three() -> None:
    batch, keys = 4000, 14
    keep = padding_keep(torch.randint(2, keys + 1, (batch,)), keys)
    gaussian = Sample(logits=3 * torch.randn(batch, HEADS, QUERY, keys), keep=keep)
    # sqrt(24 / N) for N independent values; a row of two holds its one difference twice.
    tolerance = 5 * math.sqrt(2 * 24 / float(gaussian.rows.pairs[0]))
    made = of(gaussian, "logit_kurtosis")
    assert (made - 3).abs().max() < tolerance, f"{made}, allowed 3 ± {tolerance}"
    uniform = Sample(logits=torch.rand(batch, HEADS, QUERY, 97))
    # Centring 97 values mixes 1/97 of a Gaussian in; 1.8 is that of the uniform distribution.
    assert (of(uniform, "logit_kurtosis") - 1.8).abs().max() < 0.05


def test_kurtosis_of_huge_logits_is_finite_in_fp32() -> None:
    logits = torch.randn(BATCH, HEADS, QUERY, KEY)
    close(
        of(Sample(logits=1e12 * logits), "logit_kurtosis"),
        of(Sample(logits=logits), "logit_kurtosis"),
        1e-5,
    )


# --- what is predicted of an attention ---


def attended_by(mode: Mode, x: Tensor, keep: Tensor | None = None, **sizes: int) -> Attended:
    """Return what a tap receives of an untrained attention with weights of variance 1/d_model."""
    d_model, d_k = x.shape[-1], sizes.get("d_k", D_K)
    attention = MultiHeadAttention(
        d_model=d_model, n_heads=HEADS, d_k=d_k, d_v=2, scale=factory_of(mode)
    )
    for layer in (attention.q, attention.k):
        torch.nn.init.normal_(layer.weight, std=d_model**-0.5)
    attention.reset_parameters(lambda layer: None)  # folds
    received: list[Attended] = []
    attention.tap = received.append
    attention(x, keep=keep)
    return received[0]


def similar(similarity: float, batch: int, keys: int, d_model: int) -> Tensor:
    """Draw inputs of which any two of one sequence have this cosine."""
    shared = math.sqrt(similarity) * torch.randn(batch, 1, d_model)
    return math.sqrt(1 - similarity) * torch.randn(batch, keys, d_model) + shared


@pytest.mark.parametrize("similarity", [0.0, 0.5])
@pytest.mark.parametrize("d_k", [7, 64])
def test_prediction_meets_the_measurement(d_k: int, similarity: float) -> None:
    d_model = 128
    attended = attended_by("sqrt", similar(similarity, 300, 13, d_model), d_k=d_k)
    sample = sample_of([attended])
    measured = measure(sample, ["logit_std_row", "x_cos", "score_growth"])
    # The projections are one draw: tr(Σ_q Σ_k) varies by about √(1 / d_model) of its mean.
    allowed = 2.5 / math.sqrt(d_model)
    error = measured["logit_std_row"] / predicted_std(attended) - 1
    assert error.abs().max() < allowed, f"relative error {error}"
    close(measured["x_cos"], per_head(similarity), 0.05)
    close(measured["score_growth"], (1 - measured["x_cos"]).sqrt(), allowed)
    together = measured["logit_std_row"].square().mean().sqrt()
    assert logit_std(attended) == pytest.approx(float(together), rel=1e-5)


@every_mode
def test_the_prediction_of_every_mode_meets_the_measurement(mode: Mode) -> None:
    x = similar(0.3, 100, 13, 128)
    keep = padding_keep(torch.randint(4, 14, (100,)), 13)
    attended, real = attended_by(mode, x, keep), keep[:, 0, 0]
    ratio = logit_std(attended, real) / predicted_std(attended, real)
    assert abs(ratio - 1) < 0.05, f"measured ÷ predicted {ratio}"


def test_predictions_of_several_attentions_are_those_of_each() -> None:
    keep = padding_keep(torch.tensor([KEY, 4]), KEY)
    several = [attended_by("learned", similar(s, BATCH, KEY, D_MODEL), keep) for s in (0.1, 0.7)]
    real = keep[:, 0, 0]
    wanted = [predicted_std(attended, real) for attended in several]
    assert predicted_stds(sample_of(several, real), several) == pytest.approx(wanted, rel=1e-5)
    assert wanted[0] != pytest.approx(wanted[1], rel=0.05)


def test_nothing_is_predicted_without_a_row_or_an_input() -> None:
    attended = attended_by("sqrt", torch.randn(BATCH, KEY, D_MODEL))
    nowhere = torch.zeros(BATCH, KEY, dtype=torch.bool)
    for function in (logit_std, predicted_std):
        with pytest.raises(ValueError, match="no row has two kept keys"):
            function(attended, nowhere)
    with pytest.raises(ValueError, match="the input of the keys is not known"):
        predicted_std(replace(attended, x=None))


# --- vectors ---


@pytest.mark.parametrize("d_model", [5, D_K, D_MODEL])
def test_spectral_norm_of_any_width(d_model: int) -> None:
    w_q, w_k = (torch.randn(HEADS * D_K, d_model, dtype=torch.float64) for _ in range(2))
    made = of(replace(draw(), x=None, w_q=w_q, w_k=w_k), "spectral_qk")
    for head, (a, b) in enumerate(zip(w_q.chunk(HEADS), w_k.chunk(HEADS), strict=True)):
        close(made[head], torch.linalg.svdvals(a.mT @ b)[0], 1e-10)


def test_x_cos_of_known_angles() -> None:
    angles = torch.tensor([0.0, math.pi / 3, math.pi / 2], dtype=torch.float64)
    x = (
        torch.stack([angles.cos(), angles.sin()], dim=-1)[None]
        * torch.tensor([1.0, 5, 0.1])[:, None]
    )
    q = torch.randn(1, HEADS, 3, D_K)
    made = of(Sample(q=q, k=q, x=x), "x_cos")
    close(made, per_head((0.5 + 0.0 + math.cos(math.pi / 6)) / 3), 1e-12)


def test_refuses_an_unknown_statistic() -> None:
    with pytest.raises(ValueError, match=r"attention statistic 'entropie': allowed are entropy, "):
        measure(draw(), ["entropie"])


@pytest.mark.parametrize(
    ("name", "lacks"),
    [
        ("entropy", "weights"),
        ("logit_max", "logits"),
        ("score_gain", "logits"),
        ("score_growth", "q"),
        ("k_var", "k"),
        ("x_cos", "x"),
        ("spectral_qk", "w_q"),
    ],
)
def test_says_which_input_is_missing(name: str, lacks: str) -> None:
    with pytest.raises(ValueError, match=rf"attention statistic '{name}': needs Sample\.{lacks},"):
        measure(replace(draw(), **{lacks: None}), [name])


def test_refuses_a_sample_without_a_shape() -> None:
    with pytest.raises(ValueError, match="needs weights, logits or scores, or both q and k"):
        Sample(q=torch.randn(BATCH, HEADS, QUERY, D_K))


def test_refuses_a_mask_of_two_axes() -> None:
    mask = torch.ones(HEADS, KEY, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"real_queries has shape \(3, 7\): needs three axes"):
        Sample(logits=torch.randn(BATCH, HEADS, KEY, KEY), real_queries=mask)


def test_a_statistic_is_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    added = Statistic(
        formula="mean min_j p_ij",
        source="this test",
        of=lambda s: s.rows.mean(s.wide("weights").amin(dim=-1)),
    )
    monkeypatch.setitem(STATISTICS, "p_min", added)
    made = of(Sample(weights=torch.full((BATCH, HEADS, QUERY, KEY), 1 / KEY)), "p_min")
    close(made, per_head(1 / KEY))
