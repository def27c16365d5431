from jaxtyping import install_import_hook

# Before anything imports attnscale: only what is imported later has its annotations checked. The
# numeric tower lets an int stand for a float, as it does for mypy.
install_import_hook(
    ["attnscale.attention", "attnscale.model", "attnscale.metric", "attnscale.bleu"],
    "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))",
)

import gc  # noqa: E402
import sqlite3  # noqa: E402
from pathlib import Path  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """Freeze what is imported: each run would look through it again, half of a short run's time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an MLflow store without runs: copying it is quicker than making its tables."""
    from attnscale.tracking.store import find_store, open_client

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    open_client(find_store(f"sqlite:///{path}", path.parent))
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path
