"""One run in this process: what it records, whatever happens."""

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from attnscale.attention import attentions
from attnscale.experiment import Result, run
from attnscale.task import backward
from attnscale.task.reconstruction import Reconstruction
from tests.support.tracking_server import tracking_server

SHORT = ("trainer.max_epochs=2", "data.n_train=100", "data.n_val=30", "data.n_test=30")


def test_a_run_records_everything(lab: Any) -> None:
    result = lab.run(*SHORT, "attention.scale=none", "model.d_k=16", tags={"sweep": "s"})
    recorded = lab.last()
    assert recorded.info.status == "FINISHED"
    assert recorded.data.params["attention.scale"] == "none"
    assert recorded.data.params["model.d_k"] == "16"
    assert recorded.data.params["seed"] == "0"
    assert json.loads(recorded.data.params["optimizer.betas"]) == [0.9, 0.999]
    for tag in ("git.commit", "git.dirty", "version.torch", "device", "folder", "sweep"):
        assert recorded.data.tags[tag], tag
    assert recorded.data.tags["mlflow.runName"] == "autoencoder scale=none d_k=16"
    artifact = lab.client.download_artifacts(recorded.info.run_id, "config.yaml")
    whole = yaml.safe_load(Path(artifact).read_text())
    assert whole["model"]["d_k"] == 16
    assert whole["trainer"]["max_epochs"] == 2
    # 100 sequences in batches of 32 are 4 steps an epoch: a point for each step, none lost.
    for metric in ("train/loss", *(f"grad_norm/{p}" for p in ("total", "q", "k", "v", "o"))):
        assert [step for step, _ in lab.curve(recorded.info.run_id, metric)] == list(range(8)), (
            metric
        )
    assert [step for step, _ in lab.curve(recorded.info.run_id, "val/loss")] == [4, 8]
    assert result.steps == 8
    assert result.objective == pytest.approx(
        min(v for _, v in lab.curve(recorded.info.run_id, "val/loss"))
    )
    assert result.metrics["test/loss"] == pytest.approx(recorded.data.metrics["test/loss"])


def test_run_and_folder_lead_to_each_other(lab: Any) -> None:
    result = lab.run(*SHORT)
    recorded = lab.last()
    assert recorded.data.tags["folder"] == result.folder
    assert recorded.data.tags["best_checkpoint"] == result.best_checkpoint
    assert result.best_checkpoint is not None
    assert Path(result.best_checkpoint).is_file()
    assert json.loads(Path(result.folder, "run.json").read_text())["run_id"] == recorded.info.run_id
    assert Result.load(Path(result.folder, "result.json")) == result
    assert not [p for p in Path.cwd().iterdir() if p.name.isdigit()]


def test_the_gradient_norms_are_those_of_the_gradients(lab: Any) -> None:
    lab.run(*SHORT, "trainer.max_epochs=1", "model.n_layers=2")
    recorded = lab.last()
    values = {
        key: lab.curve(recorded.info.run_id, key)[0][1]
        for key in recorded.data.metrics
        if key.startswith("grad_norm/")
    }
    paths = ("layers.0.attention", "layers.1.attention")
    for name in ("q", "k", "v", "o"):
        parts = [values[f"grad_norm/{path}/{name}"] for path in paths]
        assert math.hypot(*parts) == pytest.approx(values[f"grad_norm/{name}"], rel=1e-6)
    whole = math.hypot(*(values[f"grad_norm/{name}"] for name in ("q", "k", "v", "o")))
    assert whole == pytest.approx(values["grad_norm/total"], rel=1e-6)


def test_training_is_that_of_a_textbook_loop(lab: Any) -> None:
    """Reference losses from plain PyTorch on the same data, order and initial weights."""
    config = lab.config(*SHORT, "attention.scale=none", "model.d_k=16", "optimizer.fused=false")
    result = run(config)
    from attnscale.data.batching import shuffled
    from attnscale.data.gaussian import draw
    from attnscale.experiment.assemble import assemble

    model = assemble(config, None).module.model
    data = draw(n=100, length=8, d_model=128, seed=0, split="train")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for epoch in range(2):
        for indices in torch.split(shuffled(100, 0, epoch), 32):
            optimizer.zero_grad()
            x = data[indices]
            layer = attentions(model)["layers.0.attention"]
            weights = (layer.q(x) @ layer.k(x).transpose(1, 2)).softmax(-1)
            loss = (layer.o(weights @ layer.v(x)) - x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    measured = [v for _, v in lab.curve(result.run_id, "train/loss")]
    assert measured == pytest.approx(losses, rel=2e-6)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize(
    "changed", [pytest.param("task.block=1", marks=pytest.mark.slow), "task.block=3"]
)
def test_blocks_change_nothing(lab: Any, changed: str, precision: str) -> None:
    fixed = (*SHORT, f"trainer.precision={precision}", "optimizer.lr=1e-2")
    first, second = lab.run(*fixed), lab.run(*fixed, changed)
    for metric in ("train/loss", "grad_norm/total", "val/loss"):
        assert lab.curve(first.run_id, metric) == lab.curve(second.run_id, metric)


def test_the_short_backward_pass_is_lightnings(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = lab.run(*SHORT)
    asked = []

    def detour(*_: object) -> bool:
        asked.append(1)
        return True

    monkeypatch.setattr(backward, "has_detour", detour)
    second = lab.run(*SHORT)
    assert asked
    for metric in ("train/loss", "grad_norm/q", "val/loss"):
        assert lab.curve(first.run_id, metric) == lab.curve(second.run_id, metric)


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [
        (("trainer.limit_train_batches=3",), 6),
        (("trainer.limit_train_batches=0.5",), 4),
        (("trainer.max_steps=5",), 5),
        (("trainer.accumulate_grad_batches=3",), 4),
        (("trainer.overfit_batches=2",), 4),
        (("trainer.fast_dev_run=true",), 1),
        (("trainer.limit_train_batches=3", "task.block=2", "trainer.max_steps=4"), 4),
    ],
)
def test_limits_count_batches_and_steps(lab: Any, overrides: tuple[str, ...], steps: int) -> None:
    assert lab.run(*SHORT, *overrides).steps == steps


def test_validation_inside_an_epoch(lab: Any) -> None:
    result = lab.run(*SHORT, "trainer.val_check_interval=2")
    assert [s for s, _ in lab.curve(result.run_id, "val/loss")] == [2, 4, 6, 8]


def test_accumulated_batches_are_one_large_batch(lab: Any) -> None:
    small = lab.run(
        *SHORT, "data.n_train=96", "trainer.accumulate_grad_batches=3", "data.batch_size=32"
    )
    large = lab.run(*SHORT, "data.n_train=96", "data.batch_size=96")
    for metric in ("train/loss", "grad_norm/total"):
        first, second = (lab.curve(r.run_id, metric) for r in (small, large))
        assert [v for _, v in first] == pytest.approx([v for _, v in second], rel=1e-5)


@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_clipping_comes_after_measuring(lab: Any, algorithm: str) -> None:
    sgd = (
        "optimizer=sgd",
        "optimizer.lr=1.0",
        "trainer.limit_train_batches=1",
        "trainer.max_epochs=1",
    )
    free = lab.run(*SHORT, *sgd)
    limit = ("trainer.gradient_clip_val=1e-3", f"trainer.gradient_clip_algorithm={algorithm}")
    clipped = lab.run(*SHORT, *sgd, *limit)
    norm = lab.curve(free.run_id, "grad_norm/total")[0][1]
    assert lab.curve(clipped.run_id, "grad_norm/total")[0][1] == norm
    start = torch.load(lab.run(*SHORT, *sgd, "optimizer.lr=0.0").last_checkpoint)["state_dict"]
    moved = torch.load(clipped.last_checkpoint)["state_dict"]
    change = torch.cat([(moved[k] - start[k]).flatten() for k in start])
    if algorithm == "norm":
        assert float(change.norm()) == pytest.approx(1e-3, rel=1e-3)
    else:
        assert float(change.abs().max()) <= 1e-3 * (1 + 1e-3)
        assert float(change.norm()) > 2e-3


def test_the_schedule_reaches_the_optimizer(lab: Any) -> None:
    warm = lab.run(
        *SHORT, "optimizer.schedule=cosine", "optimizer.warmup_steps=4", "optimizer.lr=1e-2"
    )
    state = torch.load(warm.last_checkpoint)
    # The last step of 8 is taken; the rate that would come next is at the end of the cosine.
    assert state["optimizer_states"][0]["param_groups"][0]["lr"] == pytest.approx(0.0, abs=1e-9)
    assert state["lr_schedulers"][0]["last_epoch"] == 8


def test_what_a_scale_learns_has_no_weight_decay(lab: Any) -> None:
    result = lab.run(
        *SHORT,
        "attention.scale=learned",
        "optimizer=adamw",
        "optimizer.weight_decay=0.5",
        "optimizer.lr=0.0",
    )
    groups = torch.load(result.last_checkpoint)["optimizer_states"][0]["param_groups"]
    assert [(len(g["params"]), g["weight_decay"]) for g in groups] == [(4, 0.5), (1, 0.0)]


def test_optimizer_options_are_plain(lab: Any) -> None:
    result = lab.run(*SHORT, "optimizer.betas=[0.9,0.98]")
    state = torch.load(result.last_checkpoint)
    types = {type(v) for g in state["optimizer_states"][0]["param_groups"] for v in g.values()}
    assert types <= {int, float, bool, str, list, tuple, type(None)}
    assert state["optimizer_states"][0]["param_groups"][0]["betas"] in ([0.9, 0.98], (0.9, 0.98))


def _plain_values(value: object) -> bool:
    if isinstance(value, dict):
        return all(_plain_values(k) and _plain_values(v) for k, v in value.items())
    if isinstance(value, list | tuple):
        return all(_plain_values(v) for v in value)
    return value is None or isinstance(value, bool | int | float | str | torch.Tensor)


def test_a_checkpoint_holds_plain_values(lab: Any) -> None:
    result = lab.run(*SHORT)
    for path in (result.best_checkpoint, result.last_checkpoint):
        assert path is not None
        state = torch.load(path)  # torch's safe default
        assert _plain_values(state["attnscale"])
        assert state["attnscale"]["config"]["model"]["d_k"] == 64
        assert not set("=, []") & set(Path(path).name)


def test_a_resumed_run_is_the_uninterrupted_one(lab: Any) -> None:
    dropout = ("model.dropout=0.0", "data.n_train=100")
    whole = lab.run(*SHORT, *dropout, "trainer.max_epochs=4")
    half = lab.run(*SHORT, *dropout, "trainer.max_epochs=2")
    rest = lab.run(*SHORT, *dropout, "trainer.max_epochs=4", f"checkpoint={half.last_checkpoint}")
    first, second = (torch.load(r.last_checkpoint)["state_dict"] for r in (whole, rest))
    assert all(torch.equal(first[k], second[k]) for k in first)
    points = lab.curve(whole.run_id, "train/loss")
    assert lab.curve(rest.run_id, "train/loss") == points[8:]
    assert lab.last().data.tags["resumed_from"] == half.last_checkpoint


@pytest.mark.slow
def test_a_resumed_run_remembers_the_best(lab: Any) -> None:
    half = lab.run(*SHORT, "optimizer.lr=1e-3")
    config = lab.config(
        *SHORT, "trainer.max_epochs=3", f"checkpoint={half.last_checkpoint}", "optimizer.lr=1e-3"
    )
    # From here on it can only get worse.
    state = torch.load(half.last_checkpoint)
    state["optimizer_states"][0]["param_groups"][0]["lr"] = 1.0
    torch.save(state, half.last_checkpoint)
    rest = run(config)
    assert rest.objective == half.objective
    assert rest.best_checkpoint == half.best_checkpoint
    assert Path(str(rest.best_checkpoint)).is_file()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("model.d_k=0",), r"model\.d_k=0"),
        (("model.norm=middle",), r"model\.norm=middle: allowed are none, pre, post"),
        (("data.n_train=0",), r"data\.n_train=0"),
        (("optimizer.lr=-1",), r"optimizer\.lr=-1"),
        (("optimizer.schedule=step",), r"optimizer\.schedule=step: allowed are"),
        (("trainer.precision=17",), r"trainer\.precision=17"),
        (("trainer.gradient_clip_algorithm=x",), r"gradient_clip_algorithm=x"),
        (("trainer.devices=0",), r"trainer\.devices=0"),
        (("checkpoint=/nowhere.ckpt",), r"checkpoint=/nowhere\.ckpt: no such file"),
        (("attention.backend=fast",), r"attention\.backend=fast"),
        (
            ("attention.scale=softcap", "attention.options.softcap.cap=-1"),
            r"attention\.options\.softcap\.cap",
        ),
    ],
)
def test_a_mistake_names_its_key_and_fails_the_run(
    lab: Any, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        lab.run(*SHORT, *overrides)
    recorded = lab.last()
    assert recorded.info.status == "FAILED"
    assert recorded.info.end_time is not None


@pytest.mark.parametrize("phase", ["loss", "validation_step", "test_step", "on_save_checkpoint"])
def test_a_failure_in_any_phase_is_failed(
    lab: Any, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(Reconstruction, phase, fail)
    with pytest.raises(RuntimeError, match="broken on purpose"):
        lab.run(*SHORT)
    recorded = lab.last()
    assert recorded.info.status == "FAILED"
    assert recorded.info.end_time is not None
    assert "broken on purpose" in recorded.data.tags["error"]
    if phase == "validation_step":
        assert len(lab.curve(recorded.info.run_id, "train/loss")) == 4, (
            "points before the failure are lost"
        )


def test_ctrl_c_is_killed(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def stop(self: Reconstruction, *args: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Reconstruction, "validation_step", stop)
    monkeypatch.setattr(Reconstruction, "on_validation_epoch_end", lambda self: None)
    with pytest.raises(KeyboardInterrupt):
        lab.run(*SHORT, "callbacks.best=null")
    recorded = lab.last()
    assert recorded.info.status == "KILLED"
    assert len(lab.curve(recorded.info.run_id, "train/loss")) == 8


def test_a_diverged_run_says_so(lab: Any) -> None:
    result = lab.run(*SHORT, "optimizer.lr=1e20", "trainer.max_epochs=5")
    assert result.objective == sys.float_info.max
    assert result.diverged is not None
    assert result.diverged["metric"] == "train/loss"
    assert 0 < result.diverged["step"] < 4
    assert result.best_checkpoint is None
    assert result.steps == 4, "training went on after it had diverged"
    recorded = lab.last()
    assert recorded.data.tags["diverged"] == "true"
    assert recorded.data.tags["diverged.step"] == str(result.diverged["step"])
    for key in recorded.data.metrics:
        assert all(
            math.isnan(v) or abs(v) < 1e300 for _, v in lab.curve(recorded.info.run_id, key)
        ), key


def test_names_that_mlflow_refuses(lab: Any) -> None:
    config = lab.config(*SHORT, "trainer.max_epochs=1")
    config.tags = {"a@b": "1", "k(s)": "2", "k[s]": "3", "long": "n" * 7000}
    result = run(config)
    recorded = lab.last()
    values = {k: v for k, v in recorded.data.params.items() if k.startswith("tags.")}
    assert sorted(values.values())[:3] == ["1", "2", "3"]
    assert len(values) == 5
    assert values["tags.long"] + values["tags.long/2"] == "n" * 7000
    assert result.steps == 4


def test_a_call_with_a_login_records_none_and_leaves_the_environment_alone(lab: Any) -> None:
    config = lab.config(*SHORT)
    before = dict(os.environ)
    with tracking_server("me:hush") as server:
        config.tracking.uri = f"http://me:hush@127.0.0.1:{server.port}"
        result = run(config)
    assert dict(os.environ) == before
    heard = "".join(server.heard)
    assert "FINISHED" in heard
    assert "hush" not in heard
    files = [path for path in Path(result.folder).rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if b"hush" in path.read_bytes()] == []


@pytest.mark.slow
def test_an_inherited_run_id_is_left_alone(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.run(*SHORT)
    old = lab.last()
    monkeypatch.setenv("MLFLOW_RUN_ID", old.info.run_id)
    lab.run(*SHORT)
    assert lab.last().info.run_id != old.info.run_id
    assert lab.client.get_run(old.info.run_id).info.end_time == old.info.end_time
    assert lab.client.get_run(old.info.run_id).data.metrics == old.data.metrics


@pytest.mark.slow
def test_many_metrics_and_parameters(lab: Any) -> None:
    lab.run(
        *SHORT,
        "model.n_layers=24",
        "model.n_heads=16",
        "model.d_k=2",
        "model.d_model=8",
        "trainer.max_steps=12",
        "trainer.max_epochs=3",
    )
    recorded = lab.last()
    norms = [key for key in recorded.data.metrics if key.startswith("grad_norm/layers.")]
    assert len(norms) == 24 * 4
    assert all(len(lab.curve(recorded.info.run_id, key)) == 12 for key in norms[:5])


def test_norms_of_the_model_only(lab: Any) -> None:
    lab.run(*SHORT, "model.n_layers=2", "callbacks.curves.per_attention=false")
    norms = {key for key in lab.last().data.metrics if key.startswith("grad_norm/")}
    assert norms == {f"grad_norm/{name}" for name in ("total", "q", "k", "v", "o")}


def test_half_precision_trains_like_full(lab: Any) -> None:
    full = lab.run(*SHORT, "trainer.max_epochs=4")
    half = lab.run(*SHORT, "trainer.max_epochs=4", "trainer.precision=bf16-mixed")
    assert half.metrics["val/loss"] == pytest.approx(full.metrics["val/loss"], rel=0.02)
    assert half.metrics["val/loss"] != full.metrics["val/loss"]


def test_without_logger_or_validation(lab: Any) -> None:
    result = lab.run(*SHORT, "trainer.logger=false", "trainer.limit_val_batches=0")
    assert lab.last().info.status == "FINISHED"
    assert lab.curve(result.run_id, "train/loss") == []
    assert result.objective == result.metrics["train/loss"]
    assert result.best_checkpoint is None


def test_every_nth_step_only(lab: Any) -> None:
    result = lab.run(*SHORT, "trainer.log_every_n_steps=3")
    assert [s for s, _ in lab.curve(result.run_id, "train/loss")] == [0, 3, 6]
