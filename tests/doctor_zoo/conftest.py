import pytest

from benchmarks.torchvision_operators import complete_torchvision

complete_torchvision()

WRONG = {
    "[swin-False]": "under a mask of -100 the rounding of fp32 moves the slope by 1.5e-6",
    "[cait-": "heads mixed after the softmax are taken for a projection",
    "[heads mixed]": "heads mixed after the softmax are taken for a projection",
}
"""End of a test's name -> what the doctor does not tell rightly yet; one that passes fails here."""


def pytest_configure(config: pytest.Config) -> None:
    """Let the libraries warn: what they do is not ours to mend."""
    config.addinivalue_line("filterwarnings", "ignore")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Expect to fail what is known to be wrong."""
    for item in items:
        for name, reason in WRONG.items():
            if name in item.name:
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
