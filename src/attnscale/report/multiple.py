"""Several settings compared with one reference, as one family.

    interval of each of m:  level 1 − (1 − level)/m            (Bonferroni)
    p of rank i of m:       max over j ≤ i of (m − j + 1) · p_j  (Holm 1979)

so that all m intervals hold the truth together at ``level`` or more, and no setting without an
effect is called a finding in that share of families. An interval can include 0 where Holm's p is
below 1 − level: Holm rejects more, and has no intervals. `statistics.verdict` goes by the interval.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from attnscale.report.statistics import Difference, Runs, compare


def compare_all(
    reference: Runs,
    others: Mapping[str, Runs],
    level: float = 0.95,
    *,
    lower_is_better: bool = True,
) -> dict[str, Difference]:
    """Compare several settings with one reference; each difference is other − reference.

    Comparisons without a p value, because a side has one seed, do not count in m.

    Args:
        reference: Seed -> finite value of the setting that all are compared with.
        others: The other settings by name: all that were looked at, for the level counts them.
        level: Of all intervals together, in (0, 1).
        lower_is_better: Whether a lower value is the better one; passed on.

    Raises:
        ValueError: As `compare`.
    """

    def at(level: float) -> dict[str, Difference]:
        return {
            name: compare(runs, reference, level, lower_is_better=lower_is_better)
            for name, runs in others.items()
        }

    p_values = {name: d.p_value for name, d in at(level).items() if d.p_value is not None}
    adjusted = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    corrected = 1 - (1 - level) / max(1, len(p_values))
    return {name: replace(d, p_adjusted=adjusted.get(name)) for name, d in at(corrected).items()}


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p values for their number (Holm 1979), in the order given.

    Raises:
        ValueError: A p value outside [0, 1].
    """
    p = np.asarray(p_values, dtype=float)
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"p values {list(p_values)}: all must be in [0, 1]")
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(steps, 1)
    return [float(value) for value in adjusted]
