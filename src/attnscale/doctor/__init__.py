"""The doctor: the scale that any PyTorch model's attentions really use, and their health.

    report = attnscale.doctor.examine(model, batch)
    print(report)
    report.assert_healthy(scale="sqrt")

It needs torch alone: no Hydra, Lightning or MLflow.
"""

from attnscale.doctor.comparison import Comparison, compare
from attnscale.doctor.examination import examine
from attnscale.doctor.record import Attention, NotVisible
from attnscale.doctor.report import Report, UnhealthyError
from attnscale.doctor.verdict import Finding

__all__ = [
    "Attention",
    "Comparison",
    "Finding",
    "NotVisible",
    "Report",
    "UnhealthyError",
    "compare",
    "examine",
]
