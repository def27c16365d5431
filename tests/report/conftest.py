import pytest

from tests.support.runs import history, plant, store

__all__ = ["history", "plant", "store", "undrawn"]


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without their figures and script, which take seconds and say nothing."""
    monkeypatch.setattr("vl_convert.vegalite_to_png", lambda _, scale: b"")
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda _: "")
