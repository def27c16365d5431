"""The app doctor: examines a model that a command line names. It needs no Hydra."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnscale.doctor import Comparison, Report, compare, examine
from attnscale.doctor.verdict import checked_expectation

HEALTHY, UNHEALTHY, NOTHING_SEEN, WRONG_CALL = 0, 1, 2, 3

KEYS = {
    "model": "module:factory or file.py:factory of a model",
    "batch": "module:function or file.py:function of what it is called with",
    "hf": "a folder of Hugging Face, or a name that is in its cache",
    "text": "with hf: a file to read, instead of random tokens",
    "attention": "with hf: eager, sdpa, or both as eager,sdpa, which are compared",
    "checkpoint": "a checkpoint of this project's translation model",
    "expect": "the scale that is right: sqrt, none or a number",
    "device": "cpu (default), cuda, mps",
    "dtype": "float32, bfloat16, float16",
    "json": "write the report to this file",
    "page": "write the report's page to this file",
}
USAGE = "\n".join(
    [
        "python -m attnscale.doctor model=module:factory batch=module:function [KEY=VALUE …]",
        "python -m attnscale.doctor hf=FOLDER [KEY=VALUE …]",
        "",
        *(f"  {key:12}{words}" for key, words in KEYS.items()),
        "",
        "Exit status: 0 healthy, 1 unhealthy, 2 no attention was seen, 3 the call was wrong.",
    ]
)
DTYPES = ("float32", "float64", "bfloat16", "float16")
N_TOKENS = 32
"""Random tokens of a sequence; two sequences."""


def parsed(arguments: Sequence[str]) -> dict[str, str]:
    """Return the values of a command line by key.

    Raises:
        ValueError: Naming the word that is none of :data:`KEYS`, or what is missing.
    """
    values: dict[str, str] = {}
    for word in arguments:
        key, equals, value = word.partition("=")
        if not equals or key not in KEYS:
            raise ValueError(f"{word}: allowed are {', '.join(f'{name}=' for name in KEYS)}")
        values[key] = value
    sources = [key for key in ("model", "hf", "checkpoint") if key in values]
    if len(sources) != 1:
        raise ValueError("give one of model=, hf= and checkpoint=")
    if "model" in values and "batch" not in values:
        raise ValueError("batch is missing: give batch=module:function, which returns a batch")
    if values.get("dtype", DTYPES[0]) not in DTYPES:
        raise ValueError(f"dtype={values['dtype']}: allowed are {', '.join(DTYPES)}")
    return values


def load(key: str, name: str) -> Any:
    """Return what ``module:attribute`` or ``file.py:attribute`` names.

    Raises:
        ValueError: If there is none.
    """
    place, colon, attribute = name.rpartition(":")
    if not colon:
        raise ValueError(f"{key}={name}: must be module:name or file.py:name")
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(place).stem, place)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
        else:
            sys.path.insert(0, "")
            module = importlib.import_module(place)
        return getattr(module, attribute)
    except (ImportError, AttributeError, FileNotFoundError) as error:
        raise ValueError(f"{key}={name}: {error}") from error


def moved(value: Any, device: str, dtype: torch.dtype) -> Any:
    """Return a batch on a device, its floating-point tensors in a type."""
    if isinstance(value, Tensor):
        return value.to(device, dtype if value.is_floating_point() else None)
    if isinstance(value, dict):
        return {key: moved(inner, device, dtype) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(moved(inner, device, dtype) for inner in value)
    return value


def _hugging_face(values: dict[str, str], attention: str | None) -> tuple[nn.Module, Any]:
    """Return a model of Hugging Face and a batch for it; no code of others is run."""
    try:
        import transformers
    except ImportError:
        raise ValueError("hf: needs transformers; pip install 'attnscale[doctor]'") from None
    name = values["hf"]
    options = {"local_files_only": True, "trust_remote_code": False}
    try:
        config = transformers.AutoConfig.from_pretrained(name, **options)
    except (OSError, ValueError) as error:
        raise ValueError(f"hf={name}: {str(error).splitlines()[0]}") from error
    kind = {} if attention is None else {"attn_implementation": attention}
    try:
        model = transformers.AutoModel.from_pretrained(name, **options, **kind)
    except OSError:
        print(f"hf={name}: no weights are there; random ones are examined")  # noqa: T201
        torch.manual_seed(0)
        model = transformers.AutoModel.from_config(config, **kind)
    if "text" in values:
        path = Path(values["text"])
        if not path.is_file():
            raise ValueError(f"text={path}: no such file")
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, **options)
        text = path.read_text(encoding="utf-8")
        batch = dict(tokenizer(text, return_tensors="pt", truncation=True))
    else:
        generator = torch.Generator().manual_seed(0)
        size = config.get_text_config().vocab_size
        batch = {"input_ids": torch.randint(size, (2, N_TOKENS), generator=generator)}
        if config.is_encoder_decoder:
            batch["decoder_input_ids"] = batch["input_ids"]
    return model, batch


def _checkpoint(path: str) -> tuple[nn.Module, Any]:
    """Return the translation model of a checkpoint of this project, and a batch of its words."""
    from attnscale.data.vocabulary import PADDING, SPECIALS
    from attnscale.experiment.translator import Translator

    translator = Translator(path)
    generator = torch.Generator().manual_seed(0)
    source, target = (
        torch.randint(len(SPECIALS), len(words), (2, N_TOKENS), generator=generator)
        for words in (translator.source, translator.target)
    )
    return translator.model, (source, target, PADDING)


def _sources(values: dict[str, str]) -> list[tuple[str, nn.Module, Any]]:
    if "model" in values:
        model = load("model", values["model"])
        model = model if isinstance(model, nn.Module) else model()
        batch = load("batch", values["batch"])
        return [("", model, batch() if callable(batch) else batch)]
    if "checkpoint" in values:
        return [("", *_checkpoint(values["checkpoint"]))]
    ways = values["attention"].split(",") if "attention" in values else [None]
    named = [(way or "", *_hugging_face(values, way)) for way in ways]
    for _, model, _ in named[1:]:
        model.load_state_dict(named[0][1].state_dict())
    return named


def _progress() -> Callable[[int], None]:
    if not sys.stderr.isatty():
        return lambda n: None
    return lambda n: print(f"\r{n} attentions", end="", file=sys.stderr, flush=True)  # noqa: T201


def _tell(result: Report | Comparison) -> None:
    print(result)  # noqa: T201


def main(arguments: Sequence[str]) -> int:
    """Examine what a command line names, print the report, and return the exit status.

    Raises:
        ValueError: If the call is wrong, naming the key.
    """
    values = parsed(arguments)
    expect = checked_expectation(values.get("expect"))
    device, dtype = values.get("device", "cpu"), getattr(torch, values.get("dtype", DTYPES[0]))
    sources = [
        (name, model.to(device, dtype).eval(), moved(batch, device, dtype))
        for name, model, batch in _sources(values)
    ]
    with torch.no_grad():
        reports = [
            examine(model, batch, expect=expect, notify=_progress()) for _, model, batch in sources
        ]
        both = None
        if len(sources) == 2:
            (first, one, batch), (second, other, _) = sources
            both = compare(one, other, batch, names=(first, second))
    report = reports[0]
    _tell(report)
    if both is not None:
        _tell(both)
    if "json" in values:
        report.to_json(values["json"])
    if "page" in values:
        print(f"Page: {report.page(values['page'])}")  # noqa: T201
    if not any(one.attentions for one in reports):
        return NOTHING_SEEN
    same = both is None or both.equal
    return HEALTHY if all(one.healthy for one in reports) and same else UNHEALTHY


def run() -> None:
    """Run the app and end the program with its exit status."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)  # noqa: T201
        sys.exit(HEALTHY if arguments else WRONG_CALL)
    try:
        status = main(arguments)
    except (ValueError, OSError, RuntimeError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)  # noqa: T201
        status = WRONG_CALL
    sys.exit(status)
