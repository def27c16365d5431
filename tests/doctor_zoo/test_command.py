"""The command on a folder of Hugging Face."""

from pathlib import Path

import pytest
from transformers import AutoModel, LlamaConfig

from attnscale.cli.doctor import main

CONFIG = LlamaConfig(
    hidden_size=60,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=5,
    num_key_value_heads=5,
    vocab_size=97,
)


def test_a_folder_without_weights_is_examined_with_random_ones_both_ways(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    CONFIG.save_pretrained(tmp_path)
    assert main([f"hf={tmp_path}", "attention=eager,sdpa", "expect=sqrt"]) == 0
    told = capsys.readouterr().out
    assert "no weights are there; random ones are examined" in told
    assert "LlamaModel: 2 attentions, 0 not visible" in told
    assert told.splitlines()[-1] == "equal"


def test_the_weights_of_a_folder_are_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    AutoModel.from_config(CONFIG).save_pretrained(tmp_path)
    assert main([f"hf={tmp_path}", "expect=none"]) == 1
    assert "random" not in capsys.readouterr().out


def test_a_folder_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^hf={tmp_path}/nowhere: "):
        main([f"hf={tmp_path}/nowhere"])
