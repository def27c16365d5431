"""The login of a run store: used, and written down nowhere."""

import subprocess
import sys
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

GUARDED = """
import base64, os, sys

folder, login = sys.argv[1:]
os.environ |= {
    "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{folder}/server.db",
    "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
    "_MLFLOW_SERVER_ARTIFACT_DESTINATION": f"{folder}/artifacts",
    "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
}
from mlflow.server import app
from werkzeug.serving import make_server

wanted = "Basic " + base64.b64encode(login.encode()).decode()

def guarded(environ, start):
    if environ.get("HTTP_AUTHORIZATION") == wanted:
        return app(environ, start)
    start("401 Unauthorized", [("Content-Type", "text/plain")])
    return [b"You are not authenticated."]

server = make_server("127.0.0.1", 0, guarded, threaded=True)
print(server.server_port, flush=True)
server.serve_forever()
"""
"""MLflow's own server behind a login; its own login needs packages that a server alone wants."""


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


@pytest.mark.slow
def test_a_run_a_sweep_and_what_reads_them_at_a_server_of_mlflow(
    shell: Any, tmp_path: Path
) -> None:
    (tmp_path / "served").mkdir()
    command = [sys.executable, "-c", GUARDED, str(tmp_path / "served"), f"me:{SECRET}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            place = f"127.0.0.1:{int(process.stdout.readline())}"
            login = (f"tracking.uri=http://me:{QUOTED}@{place}",)
            variables = {"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": SECRET}
            run = shell(*login, *SHORT)
            checkpoint = f"checkpoint={shell.result()['last_checkpoint']}"
            for done in (
                run,
                shell(checkpoint, *login, "trainer.max_epochs=2"),
                shell("-m", "model.d_k=8,16", *login, *SHORT, whole=True),
                shell(*login, app="src.report"),
                shell(f"tracking.uri=http://{place}", app="src.curves", extra=variables),
            ):
                assert done.returncode == 0, done.stderr
                assert_hidden(done, tmp_path)
            refused = shell(checkpoint, f"tracking.uri=http://{place}", "trainer.max_epochs=3")
            assert refused.returncode == 1
            assert "MLFLOW_TRACKING_USERNAME" in refused.stderr
            assert len(refused.stderr.splitlines()) == 1
        finally:
            process.kill()
    assert list((tmp_path / "served").rglob("config.yaml"))
    assert list((tmp_path / "served").rglob("index.html"))
