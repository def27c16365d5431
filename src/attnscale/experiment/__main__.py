"""One process of a run of several: ``torchrun -m attnscale.experiment FILE``. Knows no Hydra."""

import argparse
import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from attnscale.config.schema import TrainConfig
from attnscale.config.section import typed
from attnscale.config.targets import Targets
from attnscale.experiment.processes import RESULT_FILE, save_failure
from attnscale.experiment.train import train
from attnscale.signals import end_on_signals, stopped_status
from attnscale.tracking.record import Record
from attnscale.tracking.store import find_store


def main(path: Path, allow: Sequence[str]) -> int:
    """Train as one of several, with the configuration in a file; return the exit status."""
    end_on_signals()
    rank = int(os.environ["RANK"])
    task = json.loads(path.read_text(encoding="utf-8"))
    config = typed(TrainConfig, task["config"])
    folder = Path(config.folder)
    try:
        record = None
        if rank == 0 and task["run_id"]:
            record = Record.attach(find_store(task["store"], folder), task["run_id"])
        result = train(config, record, Targets(tuple(allow)))
        if record is not None:
            record.flush(patient=True)
        if rank == 0:
            result.save(folder / RESULT_FILE)
    except KeyboardInterrupt as stop:
        return stopped_status(stop)
    except Exception as error:
        traceback.print_exc()
        save_failure(folder, rank, error)
        sys.stderr.flush()
        # Without waiting for the others: they may be waiting for this process.
        os._exit(1)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--allow", action="append", default=[])
    parser.add_argument("path", type=Path)
    arguments = parser.parse_args()
    sys.exit(main(arguments.path, arguments.allow))
