"""Names of earlier versions: what they are today, and what stays as it is."""

import copy
from typing import Any

import pytest
import torch

from attnscale.attention import SCALES
from attnscale.callbacks.learned_scales import LearnedScales
from attnscale.callbacks.watchdog import Watchdog
from attnscale.config.targets import Targets
from attnscale.renames import (
    KEYS,
    METRICS,
    TARGETS,
    TENSORS,
    earlier_metrics,
    renamed,
    update_checkpoint,
    updated_config,
)
from tests.support.models import autoencoder, transformer

PATH = "layers.0.attention"
EARLIER: dict[str, Any] = {
    "attention": {"scale": "score_batchnorm", "options": {"score_batchnorm": {"eps": 1e-5}}},
    "callbacks": {
        "progress": None,
        "temperatures": {
            "_target_": "attnscale.callbacks.temperatures.Temperatures",
            "per_head": True,
        },
    },
    "model": {"temperatures": [1, 2]},
}
TODAY: dict[str, Any] = {
    **EARLIER,
    "callbacks": {
        "progress": None,
        "learned_scales": {
            "_target_": "attnscale.callbacks.learned_scales.LearnedScales",
            "per_head": True,
        },
    },
}


@pytest.mark.parametrize(
    "prefix", ["model.layers.0.attention", "encoder.1.self", "decoder.0.cross"]
)
@pytest.mark.parametrize("buffer", ["running_mean", "running_variance"])
def test_buffers_belong_to_the_scale(prefix: str, buffer: str) -> None:
    today = f"{prefix}.scale.{buffer}"
    assert renamed(f"{prefix}.{buffer}", TENSORS) == today
    assert renamed(today, TENSORS) == today


@pytest.mark.parametrize(
    ("earlier", "today"),
    [
        ("model.layers.0.attention_norm.weight", "model.layers.0.attention_residual.norm.weight"),
        ("layers.12.feed_forward_norm.bias", "layers.12.feed_forward_residual.norm.bias"),
        ("model.encoder.0.self_around.norm.bias", "model.encoder.0.self_residual.norm.bias"),
        ("decoder.1.cross_around.norm.weight", "decoder.1.cross_residual.norm.weight"),
        ("decoder.1.feed_forward_around.norm.bias", "decoder.1.feed_forward_residual.norm.bias"),
        ("model.encoder_norm.weight", "model.encoder_norm.weight"),
    ],
)
def test_norms_belong_to_a_residual_connection(earlier: str, today: str) -> None:
    assert renamed(earlier, TENSORS) == renamed(today, TENSORS) == today


EARLIER_ORDER = {
    "autoencoder": "attention.q feed_forward.outer attention_norm feed_forward_norm",
    "encoder": "self.q self_around.norm feed_forward.outer feed_forward_around.norm",
    "decoder": "self_around.norm cross.o cross_around.norm feed_forward_around.norm",
}


@pytest.mark.parametrize("kind", EARLIER_ORDER)
def test_layers_have_their_parameters_in_the_order_of_earlier_checkpoints(kind: str) -> None:
    if kind == "autoencoder":
        model: torch.nn.Module = autoencoder("sqrt", norm="pre", feed_forward=4)
    else:
        model = transformer("sqrt")
    path = f"{kind.replace('autoencoder', 'layers')}.0"
    names = [name for name, _ in model.named_parameters() if name.startswith(path)]
    earlier = [renamed(f"{path}.{name}.weight", TENSORS) for name in EARLIER_ORDER[kind].split()]
    places = [names.index(name) for name in earlier]
    assert places == sorted(places)


@pytest.mark.parametrize(
    "name", ["q.weight", "scale.gain", "running_mean.weight", "running_means", "scale"]
)
def test_other_tensors_keep_their_keys(name: str) -> None:
    assert renamed(f"{PATH}.{name}", TENSORS) == f"{PATH}.{name}"


@pytest.mark.parametrize(
    ("earlier", "today"),
    [
        ("callbacks.temperatures", "callbacks.learned_scales"),
        ("callbacks.temperatures.per_head", "callbacks.learned_scales.per_head"),
        ("callbacks.learned_scales.per_head", "callbacks.learned_scales.per_head"),
        ("callbacks.temperatures_of_mine", "callbacks.temperatures_of_mine"),
        ("model.temperatures", "model.temperatures"),
        ("callbacks.watchdog.least_entropy_norm", "callbacks.watchdog.min_entropy_norm"),
        ("callbacks.watchdog.least_live_rows", "callbacks.watchdog.min_live_rows"),
        ("callbacks.watchdog.largest_logit", "callbacks.watchdog.max_logit_gap"),
        ("callbacks.watchdog.max_logit", "callbacks.watchdog.max_logit_gap"),
        ("callbacks.mine.largest_logit", "callbacks.mine.largest_logit"),
        ("attention.options.cosine.largest", "attention.options.cosine.largest"),
        ("model.callbacks.temperatures", "model.callbacks.temperatures"),
    ],
)
def test_keys_of_a_configuration(earlier: str, today: str) -> None:
    assert renamed(earlier, KEYS) == today


@pytest.mark.parametrize(
    ("earlier", "today"),
    [
        (
            "attnscale.callbacks.temperatures.Temperatures",
            "attnscale.callbacks.learned_scales.LearnedScales",
        ),
        ("mine.attnscale.callbacks.temperatures.Temperatures",) * 2,
        ("attnscale.callbacks.temperatures.Temperatures2",) * 2,
        ("attnscale.callbacks.progress.Progress",) * 2,
    ],
)
def test_targets_of_a_configuration(earlier: str, today: str) -> None:
    assert renamed(earlier, TARGETS) == today


def test_a_target_of_an_earlier_version_can_be_built() -> None:
    node = updated_config(EARLIER)["callbacks"]["learned_scales"]
    assert Targets().build(node, LearnedScales).per_head is True


@pytest.mark.parametrize(
    ("earlier", "today"),
    [
        (f"attention/{PATH}/temperature", f"attention/{PATH}/learned_scale"),
        (f"attention/{PATH}/head2/temperature", f"attention/{PATH}/head2/learned_scale"),
        (f"attention/{PATH}/learned_scale", f"attention/{PATH}/learned_scale"),
        (f"attention/{PATH}/temperature/mean", f"attention/{PATH}/temperature/mean"),
        ("gpu/temperature", "gpu/temperature"),
        ("temperature", "temperature"),
    ],
)
def test_metrics(earlier: str, today: str) -> None:
    assert renamed(earlier, METRICS) == today


@pytest.mark.parametrize(
    "name", [f"attention/{PATH}/learned_scale", "attention/x/head0/learned_scale"]
)
def test_earlier_names_of_a_metric_lead_back_to_it(name: str) -> None:
    (earlier,) = earlier_metrics(name)
    assert earlier != name
    assert renamed(earlier, METRICS) == name


@pytest.mark.parametrize("name", ["val/loss", f"attention/{PATH}/entropy", "learned_scale"])
def test_other_metrics_have_no_earlier_name(name: str) -> None:
    assert earlier_metrics(name) == []


def test_a_configuration_is_brought_up_to_date_and_the_old_one_left_alone() -> None:
    earlier = copy.deepcopy(EARLIER)
    today = updated_config(earlier)
    assert today == TODAY
    assert earlier == EARLIER
    assert updated_config(today) == TODAY
    today["attention"]["options"]["score_batchnorm"]["eps"] = 1.0
    assert earlier == EARLIER


def test_bounds_of_the_watchdog() -> None:
    bounds = {"least_entropy_norm": 0.1, "largest_logit": None, "least_live_rows": 0.2}
    today = updated_config({"callbacks": {"watchdog": {**bounds, "stop": True}}})
    watchdog = Watchdog(**today["callbacks"]["watchdog"])
    assert {name: bound for name, (_, bound, _) in watchdog.bounds.items()} == {
        "entropy_norm": 0.1,
        "live_rows": 0.2,
    }


def test_a_callback_that_was_switched_off_stays_off() -> None:
    assert updated_config({"callbacks": {"temperatures": None}}) == {
        "callbacks": {"learned_scales": None}
    }


def test_targets_inside_a_list() -> None:
    node = EARLIER["callbacks"]["temperatures"]
    wanted = TODAY["callbacks"]["learned_scales"]
    assert updated_config({"callbacks": {"more": [node, 1]}}) == {
        "callbacks": {"more": [wanted, 1]}
    }


def test_only_a_target_is_taken_for_one() -> None:
    text = {"tags": {"note": "attnscale.callbacks.temperatures.Temperatures"}}
    assert updated_config(text) == text


def test_a_key_with_a_dot_is_kept_whole() -> None:
    tags = {"tags": {"mlflow.note.content": "x", "a.b": {"c.d": [1]}}}
    assert updated_config(tags) == tags


def earlier_checkpoint() -> dict[str, Any]:
    """Return a checkpoint as earlier versions wrote it, but for what Lightning adds."""
    model = autoencoder("score_batchnorm", n_heads=3, n_layers=2)
    tensors = torch.nn.ModuleDict({"model": model}).state_dict()
    for key in [key for key in tensors if "running" in key]:
        tensors[key.replace(".scale.", ".")] = tensors.pop(key)
    carried = {"config": copy.deepcopy(EARLIER), "run_id": "7", "statistics": {}, "best_loss": 0.5}
    return {"state_dict": tensors, "attnscale": carried, "epoch": 3}


def test_a_checkpoint_is_brought_up_to_date_in_place() -> None:
    checkpoint = earlier_checkpoint()
    tensors = checkpoint["state_dict"]
    before = dict(tensors)
    assert f"model.{PATH}.running_mean" in before
    update_checkpoint(checkpoint)
    assert checkpoint["state_dict"] is tensors
    # What PyTorch keeps beside the tensors.
    assert hasattr(tensors, "_metadata")
    for key, value in before.items():
        head, _, name = key.rpartition(".")
        today = f"{head}.scale.{name}" if name.startswith("running") else key
        assert tensors[today] is value
    assert len(tensors) == len(before)
    assert checkpoint["attnscale"] == {
        "config": {
            **TODAY,
            "budget": None,
            "margin": {"relative": 0.0, "absolute": 0.0},
            "resume": None,
            "trust": False,
        },
        "run_id": "7",
        "statistics": {},
        "best_loss": 0.5,
    }
    assert checkpoint["epoch"] == 3
    again = copy.deepcopy(checkpoint)
    update_checkpoint(again)
    assert list(again["state_dict"]) == list(tensors)
    assert again["attnscale"] == checkpoint["attnscale"]


@pytest.mark.parametrize(
    ("scale", "tensor", "normed"),
    [("nap", "o.weight", 0.0), ("nap", "output_norm.weight", 1.0), ("sqrt", "o.weight", 1.0)],
)
def test_nap_of_earlier_checkpoints_has_no_output_norm(
    scale: str, tensor: str, normed: float
) -> None:
    options = {"eps": 1e-3, **({"output_norm": normed} if normed else {})}
    checkpoint: dict[str, Any] = {
        "state_dict": {f"model.{PATH}.{tensor}": torch.ones(2)},
        "attnscale": {"config": {"attention": {"scale": scale, "options": {"nap": options}}}},
    }
    update_checkpoint(checkpoint)
    today = checkpoint["attnscale"]["config"]["attention"]["options"]
    assert today == {"nap": {"eps": 1e-3, "output_norm": normed}}


def test_a_model_takes_up_an_earlier_checkpoint() -> None:
    checkpoint = earlier_checkpoint()
    with torch.no_grad():
        checkpoint["state_dict"][f"model.{PATH}.running_mean"].copy_(torch.tensor([1.0, -2.0, 3.0]))
    model = torch.nn.ModuleDict({"model": autoencoder("score_batchnorm", n_heads=3, n_layers=2)})
    with pytest.raises(RuntimeError, match="running_mean"):
        model.load_state_dict(checkpoint["state_dict"])
    update_checkpoint(checkpoint)
    model.load_state_dict(checkpoint["state_dict"])
    mean = model.get_buffer(f"model.{PATH}.scale.running_mean")
    assert mean.tolist() == [1.0, -2.0, 3.0]


@pytest.mark.parametrize("scale", SCALES)
def test_parameters_are_in_the_order_of_earlier_checkpoints(scale: str) -> None:
    # An optimizer's state is kept by position, and positions were alphabetical.
    model = autoencoder(scale, n_heads=3)
    names = [name for name, _ in model.get_submodule(f"{PATH}.scale").named_parameters()]
    assert names == sorted(names)
