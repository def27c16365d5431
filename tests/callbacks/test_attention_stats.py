"""What is recorded of each attention, when, and that looking changes nothing."""

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from attnscale.attention import Attended, attentions, tapped
from attnscale.attention.core import named_scale
from attnscale.attention.stats import OF_WEIGHTS, STATISTICS, Sample, measure, predicted_stds
from attnscale.callbacks import attention_stats
from attnscale.callbacks.attention_stats import AttentionStats, Observation, Reading, alike, stride
from attnscale.data.translation import TranslationBatch
from attnscale.data.vocabulary import PADDING
from attnscale.experiment.assemble import Parts
from tests.callbacks.conftest import AUTOENCODER, TRANSFORMER, Fit, Fitted

MODELS = {"autoencoder": AUTOENCODER, "transformer": TRANSFORMER}
STATS_ONLY = ("callbacks.pictures=null", "callbacks.watchdog=null", "callbacks.gradient_stats=null")
OFF = (*STATS_ONLY, "callbacks.attention_stats=null")
SAMPLED = [name for name in STATISTICS if name != "spectral_qk"]
models = pytest.mark.parametrize("model", MODELS)


class First:
    """The model as it was, and the first batch that it trained on."""

    def __init__(self) -> None:
        self.model = nn.Module()
        self.batch: Any = None

    def __call__(self, parts: Parts) -> None:
        self.model = copy.deepcopy(parts.module.model)
        loss = parts.module.loss

        def spy(batch: Any) -> torch.Tensor:
            if self.batch is None and parts.module.training:
                self.batch = batch
            return loss(batch)

        setattr(parts.module, "loss", spy)  # noqa: B010 -- one instance only

    def attended(self) -> dict[str, Attended]:
        """Run the model again, as it was."""
        seen: dict[str, Attended] = {}
        with torch.no_grad(), tapped(self.model.train(), seen.__setitem__):
            if isinstance(self.batch, TranslationBatch):
                self.model(self.batch.source, self.batch.target[:, :-1], PADDING)
            else:
                self.model(self.batch.x)
        return seen

    def real(self, path: str) -> torch.Tensor | None:
        if not isinstance(self.batch, TranslationBatch):
            return None
        encoder = path.startswith("encoder")
        return (self.batch.source if encoder else self.batch.target[:, 1:]) != PADDING


# --- what and when ---


@models
def test_every_statistic_of_every_layer_and_head(fit: Fit, model: str) -> None:
    done = fit(*MODELS[model], *STATS_ONLY)
    steps = done.trainer.global_step
    found = attentions(done.module.model)
    assert len(found) == {"autoencoder": 2, "transformer": 3}[model]
    validated = set(done.points["val/loss"])
    expected: dict[str, set[int]] = {}
    for path, attention in found.items():
        assert attention.n_heads > 1
        heads = ["", *(f"head{i}/" for i in range(attention.n_heads))]
        for head in heads:
            for name in STATISTICS:
                at = validated if name == "spectral_qk" else set(range(steps))
                expected[f"attention/{path}/{head}{name}"] = at
            expected[f"attention/{path}/{head}logit_std_predicted"] = set(range(steps))
    got = {name: set(at) for name, at in done.of("attention/").items()}
    assert got == expected
    assert all(math.isfinite(v) for at in done.of("attention/").values() for v in at.values())


def test_a_layers_figure_is_the_mean_of_its_heads_or_their_largest(fit: Fit) -> None:
    done = fit(*AUTOENCODER, *STATS_ONLY)
    for name in (*STATISTICS, "logit_std_predicted"):
        for path in ("layers.0.attention", "layers.1.attention"):
            whole = done.points[f"attention/{path}/{name}"]
            heads = [done.points[f"attention/{path}/head{i}/{name}"] for i in range(3)]
            for step, value in whole.items():
                each = [head[step] for head in heads]
                largest = name in ("logit_max", "logit_gap")
                assert value == pytest.approx(max(each) if largest else sum(each) / 3), name


def test_one_head_needs_no_figure_of_its_own(fit: Fit) -> None:
    done = fit(*AUTOENCODER, *STATS_ONLY, "model.n_heads=1")
    assert done.of("attention/layers.0.attention/entropy")
    assert not [name for name in done.points if "/head" in name]


def test_a_run_has_15_samples_and_one_in_100_steps() -> None:
    for total in range(15, 5000, 7):
        sampled = range(0, total, stride(None, total))
        assert len(sampled) >= 15, total
        assert sampled.step <= 100, total
    assert [stride(None, total) for total in (1, 14, 15, 1500, 10**6)] == [1, 1, 1, 100, 100]
    assert stride(None, None) == 100
    assert stride(7, 5000) == 7


@pytest.mark.parametrize(
    ("overrides", "steps", "heads"),
    [
        (("every=3",), {0, 3, 6}, {0, 3, 6}),
        (("every=2", "heads_every=4"), {0, 2, 4, 6}, {0, 4}),
        (("every=1", "heads_every=0"), set(range(8)), set()),
        (("heads_every=5",), set(range(8)), {0, 5}),
    ],
)
def test_the_schedule_can_be_chosen(
    fit: Fit, overrides: tuple[str, ...], steps: set[int], heads: set[int]
) -> None:
    given = [f"callbacks.attention_stats.{text}" for text in overrides]
    done = fit(*AUTOENCODER, *STATS_ONLY, *given, "callbacks.attention_stats.statistics=[p_max]")
    assert set(done.points["attention/layers.1.attention/p_max"]) == steps
    assert set(done.points.get("attention/layers.1.attention/head2/p_max", ())) == heads


def test_samples_follow_optimizer_steps_not_batches(fit: Fit) -> None:
    done = fit(*AUTOENCODER, *STATS_ONLY, "trainer.accumulate_grad_batches=3")
    assert done.trainer.global_step == 4
    assert set(done.points["attention/layers.0.attention/entropy"]) == set(range(4))


@pytest.mark.parametrize(
    ("scale", "names", "recorded"),
    [
        ("sqrt", "entropy,q_var", {"entropy", "q_var", "logit_std_predicted"}),
        ("sqrt", "spectral_qk", {"spectral_qk", "logit_std_predicted"}),
        ("nap", "entropy_norm", {"logit_std_predicted"}),
        ("sqrt", "", {"logit_std_predicted"}),
    ],
)
def test_some_statistics_only(fit: Fit, scale: str, names: str, recorded: set[str]) -> None:
    done = fit(
        *AUTOENCODER,
        *STATS_ONLY,
        "trainer.max_epochs=1",
        "callbacks.learned_scales=null",
        f"attention.scale={scale}",
        f"callbacks.attention_stats.statistics=[{names}]",
    )
    assert {name.rpartition("/")[2] for name in done.of("attention/")} == recorded


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"statistics": ["entropy", "entrpy", "x"]}, r"statistics: entrpy, x unknown; allowed are"),
        ({"every": 0}, r"attention_stats\.every=0"),
        ({"heads_every": -1}, r"attention_stats\.heads_every=-1"),
    ],
)
def test_a_mistake_is_refused(options: dict[str, Any], message: str) -> None:
    fixed: dict[str, Any] = {"every": None, "heads_every": None, "statistics": None}
    with pytest.raises(ValueError, match=message):
        AttentionStats(**{**fixed, **options})


def test_without_a_softmax_there_is_no_entropy(fit: Fit) -> None:
    done = fit(*AUTOENCODER, *STATS_ONLY, "attention.scale=nap", "trainer.max_epochs=1")
    recorded = {name.rpartition("/")[2] for name in done.of("attention/")}
    assert recorded.isdisjoint(OF_WEIGHTS)
    assert {"logit_max", "score_std_row", "align", "spectral_qk"} <= recorded


# --- what the figures are ---


@models
@pytest.mark.parametrize("scale", ["sqrt", "score_batchnorm"])
def test_figures_are_those_of_the_batch_that_trains(fit: Fit, model: str, scale: str) -> None:
    first = First()
    more = (f"attention.scale={scale}", "trainer.max_epochs=1", "trainer.limit_train_batches=1")
    done = fit(*MODELS[model], *STATS_ONLY, *more, before=first)
    for path, seen in first.attended().items():
        real = first.real(path)
        sample = Sample(
            weights=seen.weights(),
            logits=seen.logits(),
            scores=seen.scores(),
            q=seen.raw_q,
            k=seen.raw_k,
            x=seen.x,
            keep=seen.keep,
            real_queries=None if real is None else real[:, None],
        )
        for name, values in measure(sample, SAMPLED).items():
            for head, value in enumerate(values.tolist()):
                point = done.points[f"attention/{path}/head{head}/{name}"][0]
                assert point == pytest.approx(value, rel=1e-5, abs=1e-6), (path, head, name)
        point = done.points[f"attention/{path}/logit_std_predicted"][0]
        assert point == pytest.approx(float(predicted_stds(sample, [seen]).mean()), rel=1e-6)


def rows_of(first: First, path: str, *, padding: bool) -> Iterator[torch.Tensor]:
    """Yield the kept weights of each row of head 1, sentence by sentence, by their lengths."""
    weights = first.attended()[path].weights()[:, 1]
    lengths = [(side != PADDING).sum(dim=1).tolist() for side in first.batch[:2]]
    for row, (source, target) in enumerate(zip(*lengths, strict=True)):
        encoder = path.startswith("encoder")
        queries = source if encoder else target - 1
        for query in range(weights.shape[1] if padding else queries):
            keys = query + 1 if path == "decoder.0.self" else source
            if keys > 1:
                yield weights[row, query, :keys]


@pytest.mark.parametrize("path", ["encoder.0.self", "decoder.0.self", "decoder.0.cross"])
def test_padded_queries_and_keys_are_left_out(fit: Fit, path: str) -> None:
    first = First()
    done = fit(*TRANSFORMER, *STATS_ONLY, "trainer.max_epochs=1", "model.init=unit", before=first)
    assert bool((first.batch.source == PADDING).any())
    assert bool((first.batch.target == PADDING).any())
    point = done.points[f"attention/{path}/head1/p_max"][0]
    right, wrong = (
        torch.stack([row.max() for row in rows_of(first, path, padding=padding)]).mean()
        for padding in (False, True)
    )
    assert point == pytest.approx(float(right), rel=1e-5)
    assert abs(point - float(wrong)) > 1e-4, "padding would not have been seen"


# --- nothing is recorded, or computed, without cause ---


def test_a_tap_that_is_wired_to_nothing_is_seen(fit: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnscale.task.loop.tapped", lambda *_: nullcontext())
    done = fit(*AUTOENCODER, *STATS_ONLY)
    assert {name.rpartition("/")[2] for name in done.of("attention/")} == {"spectral_qk"}


@pytest.mark.parametrize("on", [False, True])
def test_nothing_is_computed_when_off(fit: Fit, monkeypatch: pytest.MonkeyPatch, on: bool) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("computed")

    monkeypatch.setattr(attention_stats, "measure", refuse)
    monkeypatch.setattr(attention_stats, "spectral_norm", refuse)
    if on:
        with pytest.raises(RuntimeError, match="computed"):
            fit(*AUTOENCODER, *STATS_ONLY)
    else:
        done = fit(*AUTOENCODER, *OFF)
        assert not done.of("attention/")
        assert not done.module.loop.observers


def test_steps_between_samples_are_not_looked_at(fit: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    sample = AttentionStats.sample

    def count(self: AttentionStats, group: Sequence[Observation]) -> list[Reading]:
        calls.extend(one.step for one in group)
        return sample(self, group)

    monkeypatch.setattr(AttentionStats, "sample", count)
    fit(*AUTOENCODER, *STATS_ONLY, "callbacks.attention_stats.every=4")
    assert calls == [0, 0, 4, 4], "each of two attentions"


def test_what_was_measured_outlives_a_failure(fit: Fit) -> None:
    kept: list[Parts] = []

    def fail(*_: object) -> None:
        raise RuntimeError("broken on purpose")

    def before(parts: Parts) -> None:
        kept.append(parts)
        setattr(parts.module, "on_train_epoch_end", fail)  # noqa: B010 -- one instance only

    with pytest.raises(RuntimeError, match="broken on purpose"):
        fit(*AUTOENCODER, *STATS_ONLY, "trainer.limit_val_batches=0", before=before)
    points: Any = kept[0].trainer.loggers[0]
    assert set(points.found["attention/layers.0.attention/entropy"]) == set(range(4))


# --- looking changes nothing ---

TRAININGS = [
    (model, scale, accumulate)
    for model in MODELS
    for scale, accumulate in (("sqrt", 2), ("learned", 1), ("score_batchnorm", 1))
]


def trainings(fit: Fit, model: str, scale: str, accumulate: int) -> tuple[Fitted, Fitted]:
    fixed = (
        *MODELS[model],
        "model.dropout=0.2",
        f"attention.scale={scale}",
        f"trainer.accumulate_grad_batches={accumulate}",
        "optimizer.lr=1e-2",
        "trainer.gradient_clip_val=0.5",
    )
    on = fit(*fixed, "callbacks.pictures.epochs=[1]")
    return on, fit(*fixed, *OFF)


@pytest.mark.parametrize(("model", "scale", "accumulate"), TRAININGS)
def test_training_is_the_same_to_the_bit(
    fit: Fit, monkeypatch: pytest.MonkeyPatch, model: str, scale: str, accumulate: int
) -> None:
    monkeypatch.setattr("attnscale.figures.page.to_png", lambda _: b"")  # drawn after training
    on, off = trainings(fit, model, scale, accumulate)
    assert on.of("attention/")
    assert on.of("update_ratio/")
    assert len(list((on.folder / "pictures").glob("*.npz"))) == 3
    assert not off.of("attention/layers.0.attention/entropy", "update_ratio/")
    if scale == "score_batchnorm":
        assert any(name.endswith("running_mean") for name in on.weights)
    assert on.same_training(off)


def test_the_comparison_sees_a_single_random_number(
    fit: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnscale.figures.page.to_png", lambda _: b"")
    sample = AttentionStats.sample

    def draw(self: AttentionStats, group: Sequence[Observation]) -> list[Reading]:
        torch.rand(1)
        return sample(self, group)

    monkeypatch.setattr(AttentionStats, "sample", draw)
    on, off = trainings(fit, "autoencoder", "sqrt", 1)
    assert not on.same_training(off)


# --- several processes ---

EXACT = (
    *("entropy", "entropy_norm", "n_eff", "n_eff_2", "p_max", "saturated_90", "saturated_99"),
    *("jac_fro", "live_rows", "x_cos", "logit_max", "logit_gap"),
)
"""Means over rows, or the largest: the parts of a batch give those of the whole batch. What is a
root, a quotient or a quantile of such means is averaged over processes, and so is close only."""
ROUGH = ("logit_kurtosis", "entropy_norm_p5")
"""What a few of some 50 rows decide differs more between a whole and the mean of its halves."""


@pytest.mark.slow
def test_two_processes_are_one(lab: Any) -> None:
    # 15 sequences are 8 and 7; the last batch of the epoch is one sequence, and one process has
    # none of it.
    more = ("data.batch_size=15", "data.n_train=46", "model.init=unit", "trainer.max_epochs=1")
    light = ("callbacks.pictures=null", "trainer.limit_test_batches=0")
    curves = []
    for extra in ((), ("trainer=ddp_cpu",)):
        result = lab.run(*AUTOENCODER, *more, *light, *extra)
        keys = lab.last().data.metrics
        curves.append(
            {k: lab.curve(result.run_id, k) for k in keys if k.startswith(("attention/", "upd"))}
        )
    one, two = curves
    assert one.keys() == two.keys()
    assert [step for step, _ in one["attention/layers.0.attention/entropy"]] == [0, 1, 2, 3]
    off: dict[str, float] = {}
    for key, points in one.items():
        statistic = key.rpartition("/")[2]
        for (step, first), (again, second) in zip(points, two[key], strict=True):
            assert step == again
            # At step 3 one process has the whole batch, and its figures are the batch's.
            if statistic in EXACT or step == 3 or key.startswith("update_ratio"):
                assert second == pytest.approx(first, rel=2e-5, abs=2e-6), (key, step)
            else:
                relative = abs(second - first) / max(abs(first), 0.5)
                off[statistic] = max(off.get(statistic, 0.0), relative)
    print("; ".join(f"{k} {v:.3f}" for k, v in off.items()))  # noqa: T201 -- shown with -s
    far = {k: v for k, v in off.items() if v > (0.5 if k in ROUGH else 0.2)}
    assert not far


def test_batches_of_one_step_are_one(fit: Fit) -> None:
    """Two steps of 15 sequences, each in batches of 6, 6 and 3."""
    fixed = (*AUTOENCODER, *STATS_ONLY, "data.n_train=15")
    whole = fit(*fixed, "data.batch_size=15")
    parts = fit(*fixed, "data.batch_size=6", "trainer.accumulate_grad_batches=3")
    for name, points in whole.of("attention/").items():
        if name.rpartition("/")[2] in EXACT:
            assert parts.points[name] == pytest.approx(points, rel=2e-5, abs=2e-6), name


@pytest.mark.parametrize("scale", ["sqrt", "learned", "score_layernorm", "score_batchnorm", "nap"])
def test_attentions_measured_together_are_as_each_alone(
    fit: Fit, monkeypatch: pytest.MonkeyPatch, scale: str
) -> None:
    groups: list[list[Observation]] = []
    sample = AttentionStats.sample

    def listen(self: AttentionStats, group: Sequence[Observation]) -> list[Reading]:
        groups.append(list(group))
        together = sample(self, group)
        for one, kept in zip(group, together, strict=True):
            (alone,) = sample(self, [one])
            assert (kept.path, kept.names) == (alone.path, alone.names)
            torch.testing.assert_close(kept.rows, alone.rows)
            torch.testing.assert_close(kept.table, alone.table, rtol=2e-5, atol=2e-6)
        return together

    monkeypatch.setattr(AttentionStats, "sample", listen)
    changes = ("model.n_layers=2", "callbacks.attention_stats.every=4", f"attention.scale={scale}")
    fit(*TRANSFORMER, *STATS_ONLY, *changes)
    assert max(len(group) for group in groups) > 1
    assert len({one.path for group in groups for one in group}) > max(map(len, groups))


def test_only_what_is_alike_is_measured_together() -> None:
    def seen(path: str, **changed: Any) -> Observation:
        q, k = torch.zeros(2, 1, changed.pop("queries", 3), 4), torch.zeros(2, 1, 3, 4)
        real = changed.pop("real", None)
        scale = named_scale(changed.pop("scale", "sqrt"), n_heads=1, d_k=4)
        keep = changed.pop("keep", None)
        attended = Attended(q=q, k=k, keep=keep, scale=scale, raw_q=q, raw_k=k)
        return Observation(0, path, attended, real)

    mask = torch.ones(3, 3, dtype=torch.bool)
    per_head = torch.ones(2, 2, 3, 3, dtype=torch.bool)
    found = alike(
        [
            seen("a"),
            seen("b", keep=mask),
            seen("c"),
            seen("d", keep=mask.clone()),
            seen("e", keep=mask.tril()),
            seen("f", queries=2),
            seen("g", scale="none"),
            seen("h", real=torch.ones(2, 3, dtype=torch.bool)),
            seen("i", keep=per_head),
            seen("j", keep=per_head),
            seen("k", queries=2**19),
            seen("l", queries=2**19),
        ]
    )
    paths = ["".join(one.path for one in group) for group in found]
    assert paths == ["ac", "bd", "e", "f", "g", "h", "i", "j", "k", "l"]
