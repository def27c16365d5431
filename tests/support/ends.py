"""Ends of jobs that nobody wishes for, as a callback."""

import os
import signal
import sys
import time
from typing import Any

import pytorch_lightning as pl


class Ending(pl.Callback):
    """Ends its process after the first epoch, or stays in it."""

    def __init__(self, how: str) -> None:
        self.how = how

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        if self.how == "raise":
            raise RuntimeError("planted")
        if self.how == "exit":
            os._exit(9)
        if self.how == "leave":
            sys.exit(0)
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "hang":
            time.sleep(1000)
