"""The login of a run store: used, and written down nowhere."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.tracking_server import Server, tracking_server

SECRET = "t0p/s3cr@t"
QUOTED = "t0p%2Fs3cr%40t"  # as RFC 3986 writes it in an address
SHORT = (
    "trainer.max_epochs=1",
    "trainer.limit_train_batches=2",
    "trainer.limit_val_batches=1",
    "trainer.limit_test_batches=1",
    "callbacks.attention_stats=null",
)


@pytest.fixture
def server() -> Iterator[Server]:
    with tracking_server(f"me:{SECRET}") as listening:
        yield listening


def files_with_secret(folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    secrets = (SECRET.encode(), QUOTED.encode())
    return [path for path in files if any(s in path.read_bytes() for s in secrets)]


def assert_hidden(done: "subprocess.CompletedProcess[str]", folder: Path) -> None:
    assert SECRET not in done.stdout + done.stderr
    assert QUOTED not in done.stdout + done.stderr
    assert files_with_secret(folder) == []


@pytest.mark.parametrize(
    ("form", "more"),
    [
        pytest.param("key", (), marks=pytest.mark.slow),
        ("key", ("-m", "model.d_k=8")),
        pytest.param("variable", (), marks=pytest.mark.slow),
        pytest.param("file", ("-m", "model.d_k=8"), marks=pytest.mark.slow),
        pytest.param("interpolation", ("-m", "model.d_k=8"), marks=pytest.mark.slow),
        pytest.param("key", ("trainer=ddp_cpu",), marks=pytest.mark.slow),
    ],
)
def test_a_login_in_the_address_is_used_and_written_nowhere(
    shell: Any, server: Server, form: str, more: tuple[str, ...]
) -> None:
    uri = f"http://me:{QUOTED}@127.0.0.1:{server.port}"
    conf = shell.path / "conf"
    (conf / "tracking").mkdir(parents=True)
    (conf / "tracking" / "mine.yaml").write_text(f"defaults: [mlflow]\nuri: {uri}\n")
    arguments, variables = {
        "key": ((f"tracking.uri={uri}",), {}),
        "variable": ((), {"MLFLOW_TRACKING_URI": uri}),
        "file": (("tracking=mine", f"hydra.searchpath=[{conf}]"), {}),
        "interpolation": (("tracking.uri=${oc.env:STORE}",), {"STORE": uri}),
    }[form]
    done = shell(*more, *arguments, *SHORT, extra=variables)
    assert done.returncode == 0, done.stderr
    (conf / "tracking" / "mine.yaml").unlink()
    assert_hidden(done, shell.path)
    assert f"Recording to {server.uri} (" in done.stdout
    heard = "\n".join(server.heard)
    assert "FINISHED" in heard
    assert "grad_norm/q" in heard
    assert '"git.commit"' in heard
    assert SECRET not in heard
    assert QUOTED not in heard


def test_a_wrong_address_is_one_line_without_its_secret(shell: Any) -> None:
    uri = f"postgresql+psycopg2://me:{QUOTED}@127.0.0.1:1/db"
    done = shell(f"tracking.uri={uri}", *SHORT, timeout=15)
    assert done.returncode == 1
    shown = "postgresql+psycopg2://***@127.0.0.1:1/db"
    assert done.stderr.startswith(f"tracking.uri={shown}: the run store fails: ")
    assert len(done.stderr.splitlines()) == 1
    assert_hidden(done, shell.path)
