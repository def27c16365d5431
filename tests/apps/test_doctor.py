"""The doctor on a run of the project."""

from typing import Any

import pytest

from attnscale.cli.doctor import main

TINY = (
    *("model=transformer", "model.d_model=16", "model.d_k=5", "model.d_v=4", "model.n_layers=1"),
    *("data.n_train=64", "data.n_val=8", "data.n_test=8", "trainer.max_epochs=1", "threads=1"),
)


@pytest.mark.slow
def test_a_checkpoint_is_examined(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    trained = shell(*TINY, "attention.scale=none")
    assert trained.returncode == 0, trained.stderr
    checkpoint = f"checkpoint={shell.result()['last_checkpoint']}"
    assert main([checkpoint, "expect=sqrt"]) == 1
    assert (
        "FAIL encoder.0.self and 2 more: scale 1, none (1): not scaled" in capsys.readouterr().out
    )
    assert main([checkpoint, "expect=none"]) == 0
