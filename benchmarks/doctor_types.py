"""Writes the table of docs/doctor.md: what the doctor says of each model type of transformers.

    make doctor-types

Each type that :mod:`benchmarks.small_models` can build is examined in each way that it offers to
compute attention, some types to a process: one that crashes or hangs loses itself alone.
"""

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "doctor.md"
START, END = "<!-- types: make doctor-types -->", "<!-- end of types -->"
TYPES_OF_A_PROCESS = 24
SECONDS = 30
"""That a way of a type may take."""
AGREE = 1e-5
"""Relative difference up to which the scales of two ways agree."""


class LateError(BaseException):
    """A type takes too long; no Exception, which a watched pass would note and go on."""


HEADING = ("type", "attentions", "scale × √d_k", "q", "k", "computed", "not visible")


def examined(model_type: str, way: str) -> dict[str, Any] | None:
    """Return what is seen of a type's attentions, or None if it does not offer that way.

    Raises:
        Exception: If no small model of the type can be built or called.
    """
    import torch

    from attnscale.doctor import examine
    from benchmarks.small_models import batches, small_config, small_model

    config = small_config(model_type)
    if any(getattr(config, name, None) is not None for name in config.sub_configs):
        raise ValueError("it is made of other types")
    model: Any = small_model(config, "eager")
    if way != "eager":
        if not getattr(model, f"_supports_{way}", False):
            return None
        model = small_model(config, way)
    refusals = []
    for batch in batches(model):
        try:
            with torch.no_grad():
                report = examine(model, batch)
        except Exception as error:
            refusals.append(error)
            continue
        return {
            "scales": [one.times_sqrt for one in report.attentions],
            "q": [one.origin_q for one in report.attentions],
            "k": [one.origin_k for one in report.attentions],
            "how": [one.how for one in report.attentions],
            "hidden": sorted({f"{one.operation}: {one.reason}" for one in report.not_visible}),
        }
    raise refusals[0]


def examine_types(types: Sequence[str]) -> None:
    """Print what is seen of some types, a line of JSON each."""
    import torch
    import transformers

    from benchmarks.torchvision_operators import complete_torchvision

    def late(number: int, frame: object) -> None:
        raise LateError(f"longer than {SECONDS} s")

    complete_torchvision()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    signal.signal(signal.SIGALRM, late)
    for model_type in types:
        ways: dict[str, Any] = {}
        try:
            for way in ("eager", "sdpa"):
                signal.alarm(SECONDS)
                torch.manual_seed(0)
                ways[way] = examined(model_type, way)
            print(json.dumps({"type": model_type, "ways": ways}), flush=True)
        except (Exception, LateError) as error:
            reason = f"{type(error).__name__}: {error}".split("\n")[0]
            print(json.dumps({"type": model_type, "reason": reason}), flush=True)
        finally:
            signal.alarm(0)


def in_processes(types: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield what is seen of all types, each process going on behind the one that broke."""
    left = list(types)
    while left:
        some = left[:TYPES_OF_A_PROCESS]
        command = [sys.executable, "-W", "ignore", "-m", __spec__.name, "--types", *some]
        try:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, text=True, timeout=SECONDS * len(some), check=False
            )
            output = done.stdout
        except subprocess.TimeoutExpired as error:
            output = (error.stdout or b"").decode()
        lines = [json.loads(line) for line in output.splitlines() if line.startswith('{"type"')]
        yield from lines
        if len(lines) < len(some):
            yield {"type": some[len(lines)], "reason": "its process ended"}
        left = left[min(len(some), len(lines) + 1) :]
        print(f"{len(types) - len(left)} of {len(types)} types", file=sys.stderr)


def different(values: Sequence[str]) -> str:
    """Return the different ones of some words, in order."""
    return ", ".join(dict.fromkeys(values))


def row(of_type: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a type, in the order of :data:`HEADING`."""
    ways = {way: seen for way, seen in of_type["ways"].items() if seen is not None}
    first = ways["eager"]
    agree = "eager alone"
    if "sdpa" in ways:
        pairs = list(zip(first["scales"], ways["sdpa"]["scales"], strict=False))
        same = len(first["scales"]) == len(ways["sdpa"]["scales"]) and all(
            abs(a - b) <= AGREE * abs(a) for a, b in pairs
        )
        agree = "eager and sdpa agree" if same else "eager and sdpa **differ**"
    hidden = different([reason for seen in ways.values() for reason in seen["hidden"]])
    return (
        of_type["type"],
        str(len(first["scales"])),
        different([f"{scale:.4g}" for scale in first["scales"]]) or "–",
        different(first["q"]),
        different(first["k"]),
        agree,
        hidden.replace("|", "\\|"),
    )


def table(seen: Sequence[dict[str, Any]]) -> str:
    """Return the section of the page: counts, the table, and what could not be tried."""
    import transformers

    tried = [one for one in seen if "ways" in one]
    rows = [row(one) for one in sorted(tried, key=lambda one: one["type"])]
    both = sum("sdpa" in cells[5] for cells in rows)
    agree = sum("sdpa agree" in cells[5] for cells in rows)
    attentions = sum(int(cells[1]) for cells in rows)
    ordinary = sum(cells[2] == "1" for cells in rows)
    lines = [
        f"transformers {transformers.__version__}: {len(rows)} types with random weights, "
        f"{attentions} attentions computed eagerly. In {ordinary} types all of them have 1/√d_k; "
        f"eager and sdpa agree in {agree} of the {both} types that offer both. A type whose model "
        f"is made of others, or that no small configuration builds, is not here "
        f"({len(seen) - len(rows)} of {len(seen)}).",
        "",
        "| " + " | ".join(HEADING) + " |",
        "|" + "---|" * len(HEADING),
        *("| " + " | ".join(cells) + " |" for cells in rows),
    ]
    return "\n".join(lines)


def main() -> None:
    """Examine all types and write the page; or, of a process, some of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--types", nargs="*", help="print these alone, as JSON")
    names = parser.parse_args().types
    if names:
        examine_types(names)
        return
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    after = rest.partition(END)[2]
    section = table(list(in_processes(sorted(MODEL_MAPPING_NAMES))))
    PAGE.write_text(f"{before}{START}\n{section}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
