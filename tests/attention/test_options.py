"""Every option of every mode: it acts, and it is reachable from the command line."""

from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor

from attnscale.attention import SCALE_MODES, MultiHeadAttention
from attnscale.config.build import compose
from attnscale.experiment.assemble import attention_settings
from tests.attention.conftest import (
    BATCH,
    D_K,
    D_MODEL,
    D_V,
    HEADS,
    KEY,
    OPTIONS_FOLDER,
    STATISTICS,
    options_of,
)

WITH_OPTIONS = [name for name, mode in SCALE_MODES.items() if mode.options]
EVERY_OPTION = [(name, option) for name in WITH_OPTIONS for option in SCALE_MODES[name].options]


def outputs(name: str, options: dict[str, float]) -> Tensor:
    """Return what a module gives in training, and then in evaluation."""
    torch.manual_seed(5)
    attention = MultiHeadAttention(
        d_model=D_MODEL,
        n_heads=HEADS,
        d_k=D_K,
        d_v=D_V,
        scale=name,
        options=options,
        statistics=STATISTICS,
    ).double()
    x = torch.randn(BATCH, KEY, D_MODEL, dtype=torch.float64)
    trained = attention(x)
    return torch.stack([trained, attention.eval()(x)]).detach()


@pytest.mark.parametrize(("name", "option"), EVERY_OPTION)
def test_an_option_acts(name: str, option: str) -> None:
    options = options_of(name)
    plain = outputs(name, options)
    assert torch.equal(plain, outputs(name, options))
    mode = SCALE_MODES[name]
    changes = [options[option] * factor for factor in (3.0, 1 / 30)]
    changed = [
        outputs(name, options | {option: value})
        for value in changes
        if mode.options[option].test(value)
    ]
    effects = [float((other - plain).abs().max()) for other in changed]
    assert max(effects) > 1e-9, effects


def test_each_mode_with_options_has_a_file_with_their_names() -> None:
    files = {path.stem: path for path in OPTIONS_FOLDER.iterdir()}
    assert set(files) == set(WITH_OPTIONS)
    for name, path in files.items():
        assert list(yaml.safe_load(path.read_text())) == list(SCALE_MODES[name].options)


@pytest.fixture(scope="module")
def as_configured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    composed = compose([], folder=tmp_path_factory.mktemp("plain"))
    blocks: dict[str, dict[str, float]] = composed["attention"]["options"]
    return blocks


def test_the_options_of_every_mode_are_composed(
    as_configured: dict[str, dict[str, float]],
) -> None:
    assert as_configured == {name: options_of(name) for name in WITH_OPTIONS}


@pytest.mark.parametrize("name", WITH_OPTIONS)
def test_options_arrive_from_the_command_line(
    name: str, as_configured: dict[str, dict[str, float]], tmp_path: Path
) -> None:
    given = {}
    for number, option in enumerate(SCALE_MODES[name].options):
        value = as_configured[name][option] * (1.25 + number)
        given[option] = value
    overrides = [f"attention.options.{name}.{option}={value}" for option, value in given.items()]
    config = compose([f"attention.scale={name}", *overrides], folder=tmp_path)
    settings = attention_settings(config, STATISTICS)
    assert settings.scale == name
    assert settings.options == pytest.approx(given)
    assert settings.statistics == STATISTICS
    others = {n: block for n, block in config["attention"]["options"].items() if n != name}
    assert others == {n: block for n, block in as_configured.items() if n != name}
