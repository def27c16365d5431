"""Every option of every mode: it acts, and it is reachable from the command line."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from attnscale.attention.scale import all_options
from attnscale.config.build import compose
from attnscale.experiment.consistency import scale_factory
from tests.support.modes import BATCH, D_K, D_MODEL, HEADS, KEY, STATISTICS, build, options_with

WITH_OPTIONS = list(all_options())
EVERY_OPTION = [(name, option) for name in WITH_OPTIONS for option in all_options()[name]]


def outputs(name: str, options: dict[str, float]) -> Tensor:
    """Return what a module gives in training, and then in evaluation."""
    torch.manual_seed(5)
    attention = build(name, options=options).double()
    x = torch.randn(BATCH, KEY, D_MODEL, dtype=torch.float64)
    trained = attention(x)
    return torch.stack([trained, attention.eval()(x)]).detach()


@pytest.mark.parametrize(("name", "option"), EVERY_OPTION)
def test_an_option_acts(name: str, option: str) -> None:
    plain = outputs(name, {})
    default = options_with(name)[option]
    assert torch.equal(plain, outputs(name, {option: default}))
    # A base below 1 is refused, and a switch is 0 or 1.
    values = {"base": (9.0,), "output_norm": (0.0,), "over_heads": (1.0,), "scalar": (3.0,)}
    changed = [
        outputs(name, {option: value})
        for value in values.get(option, (default * 3.0, default / 30))
    ]
    effects = [float((other - plain).abs().max()) for other in changed]
    assert max(effects) > 1e-9, effects


@pytest.fixture(scope="module")
def as_configured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    composed = compose([], folder=tmp_path_factory.mktemp("plain"))
    blocks: dict[str, dict[str, float]] = composed.attention.options
    return blocks


def test_the_options_of_every_mode_are_composed(
    as_configured: dict[str, dict[str, float]],
) -> None:
    assert as_configured == all_options()


@pytest.mark.parametrize("name", WITH_OPTIONS)
def test_options_arrive_from_the_command_line(
    name: str, as_configured: dict[str, dict[str, float]], tmp_path: Path
) -> None:
    changed = {
        option: {"output_norm": 0.0, "over_heads": 1.0}.get(
            option, (default or 7) * (1.25 + number)
        )
        for number, (option, default) in enumerate(as_configured[name].items())
    }
    overrides = [f"attention.options.{name}.{option}={value}" for option, value in changed.items()]
    config = compose([f"attention.scale={name}", *overrides], folder=tmp_path)
    factory = scale_factory(config)
    assert factory.name == name
    assert factory.options == pytest.approx(changed)
    others = {n: block for n, block in config.attention.options.items() if n != name}
    assert others == {n: block for n, block in as_configured.items() if n != name}
    scale = replace(factory, statistics=STATISTICS)(n_heads=HEADS, d_k=D_K, d_model=D_MODEL)
    wanted = build(name, options=changed).scale
    assert type(scale) is type(wanted)
    for attribute, value in vars(wanted).items():
        if isinstance(value, float):
            assert getattr(scale, attribute) == pytest.approx(value), attribute
    for a, b in zip(scale.state_dict().values(), wanted.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("scale", ["sqrt", "qknorm", 0.37])
def test_a_mode_without_options_arrives_from_the_command_line(
    scale: str | float, tmp_path: Path
) -> None:
    factory = scale_factory(compose([f"attention.scale={scale}"], folder=tmp_path))
    assert factory.name == str(scale)
    supplied = replace(factory, statistics=STATISTICS)(n_heads=HEADS, d_k=D_K, d_model=D_MODEL)
    assert type(supplied) is type(build(scale).scale)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("attention.options.softcap.cap=-1", r"softcap\.cap=-1\.0: allowed is a positive number"),
        ("attention.options.nap.output_norm=2", r"nap\.output_norm=2\.0: allowed is 0 or 1"),
        (
            "+attention.options.softcap.cup=2",
            r"softcap\.cup: unknown option; 'softcap' has: cap, scalar",
        ),
    ],
)
def test_an_option_that_is_not_allowed_is_named_by_its_key(
    override: str, message: str, tmp_path: Path
) -> None:
    config = compose([f"attention.scale={override.split('.')[2]}", override], folder=tmp_path)
    with pytest.raises(ValueError, match=rf"^attention\.options\.{message}$"):
        scale_factory(config)(n_heads=HEADS, d_k=D_K)
