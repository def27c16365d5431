"""An MLflow server that keeps only what it was told, for those who read all of it."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

EXPERIMENT = {
    "experiment_id": "1",
    "lifecycle_stage": "active",
    "artifact_location": "mlflow-artifacts:/1",
}
RUN = {
    "info": {
        "run_id": "5eed",
        "experiment_id": "1",
        "status": "RUNNING",
        "start_time": 1,
        "artifact_uri": "mlflow-artifacts:/1/5eed/artifacts",
        "lifecycle_stage": "active",
    }
}


@dataclass
class Server:
    """Answers as MLflow does; what it hears is the address and body of each request.

    Attributes:
        port: Where it listens on 127.0.0.1.
        login: ``name:password`` that it wants, or None.
        status: HTTP status of its answers to those who may ask.
    """

    port: int
    login: str | None
    status: int
    heard: list[str] = field(default_factory=list)

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def tracking_server(login: str | None = None, status: int = 200) -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            server.heard.append(f"{self.path} {body}")
            name = self.path.partition("?")[0].rpartition("/mlflow/")[2]
            experiment = {**EXPERIMENT, "name": "attnscale"}
            answer = {
                "experiments/get-by-name": {"experiment": experiment},
                "runs/create": {"run": RUN},
                "runs/get": {"run": RUN},
                "runs/update": {"run_info": RUN["info"]},
            }.get(name, {})
            wanted = f"Basic {base64.b64encode((login or '').encode()).decode()}"
            refused = login is not None and self.headers.get("Authorization") != wanted
            content = b"You are not authenticated." if refused else json.dumps(answer).encode()
            self.send_response(401 if refused else status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_PATCH = _answer  # noqa: N815

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        server = Server(listening.server_port, login, status)
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield server
        listening.shutdown()
