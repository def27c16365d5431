import json
import math

import pytest
from mlflow.entities import Param
from mlflow.utils import validation

from attnscale.tracking.names import (
    MAX_NAME_LENGTH,
    MAX_VALUE_LENGTH,
    flatten,
    parameters,
    rounded,
    safe_name,
)

PLAIN = (
    "val/loss",
    "attention/encoder.0.self/head3/entropy_norm",
    "grad_norm/layers.0.attention/q",
    "data-set_2 a.b",
    "_u",
    "_uXYZ_",
    "u0041_",
    ".hidden",
    "a..b",
)
STRANGE = (
    "",
    " ",
    ".",
    "..",
    "/",
    "//",
    "/a",
    "a/",
    "a//b",
    "../a",
    "./a",
    "a/..",
    "a/../b",
    "a:b",
    "a b\n",
    "a\tb",
    "a\x00b",
    "é",
    "e\u0301",
    "Ж",
    "漢字",
    "😀",
    "x=1,y=2",
    "C:\\a",
    "a%b",
    "a_u00e9_b",
    "_u00e9_",
    "_u005f_u00e9_",
    "_u1f600_",
    "_u002e_",
    "_u002f_",
    "_u002e_.",
    "__u00e9__",
    "__u00e9é",
    "éu00e9__",
    "é_u00e9__",
    "_é",
    "..a",
)


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_name_stays_as_it_is(name: str) -> None:
    assert safe_name(name) == name
    validation._validate_metric_name(safe_name(name))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("é", "__u00e9__"),
        ("😀!", "__u1f600____u0021__"),
        ("a:b", "a__u003a__b"),
        ("a\nb", "a__u000a__b"),
        ("__u00e9__", "__u005f___u00e9__"),
        ("_u00e9_", "_u00e9_"),
        ("..a", "__u002e__.a"),
        ("..", "__u002e__."),
        ("a/./b", "a/__u002e__/b"),
        ("a//b", "a/__u002f__/b"),
    ],
)
def test_what_is_not_allowed_is_escaped(name: str, safe: str) -> None:
    assert safe_name(name) == safe


@pytest.mark.parametrize(
    "name", [*STRANGE, *("a" * n for n in (250, 251, 400)), "é" * 300, "/" * 300]
)
def test_mlflow_takes_every_name(name: str) -> None:
    safe = safe_name(name)
    validation._validate_metric_name(safe)  # type: ignore[no-untyped-call]
    assert safe.isascii()
    assert 1 <= len(safe) <= MAX_NAME_LENGTH <= validation.MAX_ENTITY_KEY_LENGTH


def test_different_names_stay_different() -> None:
    names = [*PLAIN, *STRANGE]
    assert len({safe_name(name) for name in names}) == len(set(names)) == len(names)


def test_long_names_stay_different() -> None:
    names = ["a" * n for n in range(240, 300)] + [f"{'é' * 80}{i}" for i in range(20)]
    assert len({safe_name(name) for name in names}) == len(names)
    assert safe_name("a" * 250) == "a" * 250
    assert safe_name("a" * 251).startswith("a" * 233 + "_")


def test_a_configuration_is_flattened() -> None:
    config = {
        "model": {"d_k": 64, "d_v": None, "inner": {"norm": "pre"}},
        "seed": 3,
        "lr": 1e-3,
        "shuffle": True,
        "betas": [0.9, 0.98],
        "nothing": {},
        "text": "a = 'ü'",
        "limit": math.inf,
    }
    assert dict(flatten(config)) == {
        "model.d_k": "64",
        "model.d_v": "null",
        "model.inner.norm": "pre",
        "seed": "3",
        "lr": "0.001",
        "shuffle": "true",
        "betas": "[0.9, 0.98]",
        "nothing": "{}",
        "text": "a = 'ü'",
        "limit": "Infinity",
    }


def test_lists_and_mappings_in_them_are_json() -> None:
    value = [{"a": [1, "é"]}, None]
    ((key, text),) = flatten({"x": value})
    assert key == "x"
    assert json.loads(text) == value
    assert "é" in text


@pytest.mark.parametrize(
    "length",
    [
        0,
        1,
        MAX_VALUE_LENGTH - 1,
        MAX_VALUE_LENGTH,
        MAX_VALUE_LENGTH + 1,
        2 * MAX_VALUE_LENGTH,
        20000,
    ],
)
def test_a_long_value_is_kept_whole(length: int) -> None:
    text = "".join(chr(ord("a") + i % 26) for i in range(length))
    made = parameters({"a": {"b": text}, "c": 1})
    n_parts = max(1, math.ceil(length / MAX_VALUE_LENGTH))
    assert list(made) == ["a.b", *(f"a.b/{part}" for part in range(2, n_parts + 1)), "c"]
    assert "".join(value for name, value in made.items() if name != "c") == text
    assert MAX_VALUE_LENGTH <= validation.MAX_PARAM_VAL_LENGTH
    for name, value in made.items():
        checked = validation._validate_param(name, value)  # type: ignore[no-untyped-call]
        assert checked == Param(name, value)


def test_the_keys_of_parameters_are_safe() -> None:
    assert parameters({"a": {"é": 1}, "b": "x"}) == {"a.__u00e9__": "1", "b": "x"}


def test_different_keys_stay_different_parameters() -> None:
    made = parameters({"a.b": 1, "a": {"b": 2}})
    assert sorted(made.values()) == ["1", "2"]
    made = parameters({"a": "x" * (MAX_VALUE_LENGTH + 1), "a/2": "other"})
    assert sorted(made.values(), key=len) == ["x", "other", "x" * MAX_VALUE_LENGTH]


def test_a_long_key_with_a_long_value() -> None:
    made = parameters({"k" * MAX_NAME_LENGTH: "x" * (2 * MAX_VALUE_LENGTH)})
    assert len(made) == 2
    assert all(len(name) <= MAX_NAME_LENGTH for name in made)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("0.30000000000000004", "0.3"),
        ("1.2000000000000002e-05", "1.2e-05"),
        ("-0.30000000000000004", "-0.3"),
        ("[0.1, 0.30000000000000004]", "[0.1, 0.3]"),
        ("1e-3", "1e-3"),
        ("0.125", "0.125"),
        ("123456789012345678", "123456789012345678"),
        ("/tmp/0.30000000000000004", "/tmp/0.30000000000000004"),
        ("v0.30000000000000004", "v0.30000000000000004"),
    ],
)
def test_a_number_has_the_decimals_that_a_double_holds(text: str, shown: str) -> None:
    assert rounded(text) == shown


def test_a_runs_names_and_places_are_no_parameters() -> None:
    config = {
        "folder": "/runs/1",
        "checkpoint": "/runs/0/last.ckpt",
        "tracking": {"run_name": "a", "uri": None},
        "tags": {"note": "b"},
        "trainer": {"default_root_dir": "/runs/1", "max_epochs": 2},
        "data": {"dir": "/data"},
    }
    assert parameters(config) == {
        "tags.note": "b",
        "trainer.max_epochs": "2",
        "data.dir": "/data",
    }
