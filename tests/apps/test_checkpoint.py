"""What the apps evaluate and translate say, and where."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

PAIRS = ("Ein Mann schläft heute .", "A man sleeps today ."), ("Zwei Hunde .", "Two dogs .")


@pytest.fixture
def checkpoint(shell: Any, tmp_path: Path) -> str:
    for split in ("train", "val", "test2016"):
        for side, language in enumerate(("de", "en")):
            text = "".join(f"{pair[side]}\n" for pair in PAIRS)
            (tmp_path / f"{split}.{language}").write_text(text, encoding="utf-8")
    done = shell(
        *("model=transformer", "data=parallel", f"data.dir={tmp_path}", "data.tokenizer=split"),
        *("model.d_model=16", "model.n_layers=1", "trainer.max_epochs=1"),
        f"folder={tmp_path / 'run'}",
    )
    assert done.returncode == 0, done.stderr
    assert "of test BLEU" in done.stdout
    return f"checkpoint={tmp_path / 'run' / 'checkpoints' / 'best.ckpt'}"


def test_the_test_set_of_training_is_scored(shell: Any, checkpoint: str) -> None:
    done = shell(checkpoint, app="src.evaluate")
    assert done.returncode == 0, done.stderr
    assert "BLEU: rests on the 1 references of four tokens or more" in done.stdout
    done = shell(checkpoint, "task.bleu_tokenizer=char", "data.split=val", app="src.evaluate")
    assert "tok:char" in done.stdout


def test_standard_output_has_translations_only(shell: Any, checkpoint: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "src.translate", checkpoint, *shell.outputs()[:1]]
    done = subprocess.run(
        command,
        cwd=shell.root,
        env=shell.environment(),
        input="Ein Mann\n\n" + "Hunde " * 6000 + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(done.stdout.splitlines()) == 3
    assert "line 3: 6000 tokens, of which the first 200 are read" in done.stderr
