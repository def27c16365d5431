"""``allow`` is what a person typed; a sweep's jobs have it from the launch."""

import pytest

from attnscale.cli.job import _targets
from attnscale.config.targets import Targets
from attnscale.sweep.overrides import allowed
from attnscale.sweep.state import Launch


@pytest.mark.parametrize(
    ("arguments", "packages"),
    [
        ([], ()),
        (["-m", "model.d_k=8,16", "tags.allow=[a]", "x=allow=[a]"], ()),
        (["allow=[mine]"], ("mine",)),
        (["++allow=[mine, yours.callbacks]"], ("mine", "yours.callbacks")),
        (["allow=['mine']", "seed=1"], ("mine",)),
        (["allow=[mine]", "allow=[yours]"], ("yours",)),
        (["allow=[]"], ()),
    ],
)
def test_allow_is_read_from_arguments(arguments: list[str], packages: tuple[str, ...]) -> None:
    assert allowed(arguments) == packages


@pytest.mark.parametrize("text", ["allow=[a],[b]", "allow=a", "allow=null", "allow={a: b}"])
def test_it_is_one_list(text: str) -> None:
    with pytest.raises(ValueError, match="must be one list of packages"):
        allowed([text])


def launch(*packages: str) -> Launch:
    return Launch(parent="", name="", swept=[], allow=list(packages))


def test_a_job_elsewhere_has_it_from_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    # Slurm's job is started with a command line of its own.
    monkeypatch.setattr("sys.argv", ["submitit", "allow=[other]"])
    assert _targets(launch("mine")) == Targets(("mine",))
    assert _targets(launch()) == Targets()
    assert _targets(None) == Targets(("other",))
