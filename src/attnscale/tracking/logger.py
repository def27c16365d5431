"""Lightning's logger interface over a :class:`~attnscale.tracking.record.Record`."""

from collections.abc import Mapping
from typing import Any

from pytorch_lightning.loggers import Logger

from attnscale.tracking.record import Record


class MLflowLogger(Logger):
    """Hands points to a record. The run's status is set by whoever created it, not by Lightning."""

    def __init__(self, record: Record) -> None:
        """Write to ``record``."""
        super().__init__()
        self.record = record

    @property
    def name(self) -> str:
        """Return the logger's name."""
        return "mlflow"

    @property
    def version(self) -> str:
        """Return the run's id."""
        return self.record.run_id

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the whole configuration is recorded when the run starts."""

    def log_metrics(
        self, metrics: Mapping[str, float], step: int | None = None, timestamp: int | None = None
    ) -> None:
        """Keep points; see :meth:`Record.points`."""
        self.record.points(metrics, step or 0, timestamp)

    def save(self) -> None:
        """Write the kept points."""
        self.record.flush()
