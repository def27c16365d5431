"""Using a trained translation model: from a checkpoint alone."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import torch

from attnscale.config.targets import NO_ALLOWANCE, Targets
from attnscale.data.vocabulary import BEGIN, END, PADDING, Preprocessing, Vocabulary
from attnscale.decoding.greedy import greedy
from attnscale.experiment.assemble import make_model, scale_factory
from attnscale.experiment.checkpoints import load_checkpoint
from attnscale.model.transformer import Transformer


class Translator:
    """Translates text with the model of a checkpoint."""

    def __init__(self, path: str, device: str = "cpu", targets: Targets = NO_ALLOWANCE) -> None:
        """Load model, vocabularies and preprocessing.

        Args:
            path: The checkpoint.
            device: Where the model runs.
            targets: Which classes the checkpoint's configuration may name.

        Raises:
            ValueError: If the checkpoint holds no translation model.
        """
        state = load_checkpoint(path, targets)
        config, kept = state["attnscale"]["config"], state["attnscale"]["data"]
        if not kept:
            raise ValueError(f"checkpoint={path}: holds no translation model")
        data = config["data"]
        self.source, self.target = Vocabulary(kept["source"]), Vocabulary(kept["target"])
        settings = data["tokenizer"], data["lowercase"]
        self.split = Preprocessing(*settings, data["source"]).splitter()
        self.join = Preprocessing(*settings, data["target"]).joiner()
        self.max_length = data["max_length"]
        sizes = {"source_size": len(self.source), "target_size": len(self.target)}
        statistics = state["attnscale"].get("statistics") or {}
        scale = replace(scale_factory(config), statistics=statistics)
        model = make_model(config, scale, sizes, targets)
        assert isinstance(model, Transformer)
        prefix = "model."
        weights = {
            k.removeprefix(prefix): v
            for k, v in state["state_dict"].items()
            if k.startswith(prefix)
        }
        model.load_state_dict(weights)
        self.model, self.device = model.eval().to(device), device

    def batch(self, texts: list[str]) -> list[str]:
        """Translate some sentences; an empty one gives an empty one."""
        tokens = [self.split(text)[: self.max_length] for text in texts]
        rows = [i for i, sentence in enumerate(tokens) if sentence]
        result = [""] * len(texts)
        if not rows:
            return result
        numbers = [[*self.source.encode(tokens[i]), END] for i in rows]
        width = max(map(len, numbers))
        padded = torch.tensor(
            [n + [PADDING] * (width - len(n)) for n in numbers], device=self.device
        )
        made = greedy(self.model, padded, padding=PADDING, begin=BEGIN, end=END)
        for row, sentence in zip(rows, made, strict=True):
            result[row] = self.join(self.target.decode(sentence))
        return result

    def lines(self, texts: Iterable[str], size: int) -> Iterator[str]:
        """Translate line by line, in order, ``size`` at a time."""
        stream = iter(texts)
        while some := list(islice(stream, size)):
            yield from self.batch(some)


def evaluation_config(
    state: Mapping[str, Any], split: str, changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the configuration that scores a split: the checkpoint's, without training.

    Args:
        state: The checkpoint.
        split: Which split.
        changes: Sections and keys to set anew, such as ``{"data": {"dir": …}}``.
    """
    config: dict[str, Any] = {**state["attnscale"]["config"]}
    for section, values in changes.items():
        if isinstance(values, Mapping):
            config[section] = {**config[section], **values}
        else:
            config[section] = values
    config["trainer"] = {
        **config["trainer"],
        "limit_train_batches": 0,
        "limit_val_batches": 0,
        "limit_test_batches": 1.0,
        "fast_dev_run": False,
        "overfit_batches": 0.0,
        "default_root_dir": config["folder"],
    }
    if "test" in config["data"]:
        config["data"] = {**config["data"], "test": split}
    elif split != "test":
        raise ValueError(f"data.split={split}: this checkpoint's data have one test set, test")
    return config
