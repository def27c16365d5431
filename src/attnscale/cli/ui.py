"""``make ui``: the addresses of the newest sweeps, then MLflow's UI."""

import os
import shlex
import sys

from attnscale.cli.job import USER_ERRORS, reason
from attnscale.config.build import project_root
from attnscale.tracking.store import find_store
from attnscale.tracking.ui import newest_views

NEWEST = 5
"""Sweeps whose addresses are printed."""


def main() -> None:
    """Print the addresses, and become the UI's server where the store has none."""
    try:
        store = find_store(None, project_root())
        for name, address in newest_views(store, NEWEST).items():
            print(f"{name}\n    {address}", flush=True)  # noqa: T201
    except USER_ERRORS as error:
        sys.exit(reason(error))
    if not store.on_server:
        command = shlex.split(store.ui_command())
        os.execv(sys.executable, [sys.executable, "-m", *command])


if __name__ == "__main__":
    main()
