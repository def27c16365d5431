"""What a scale mode may want to know of the training data, by name."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

STATISTICS: dict[str, Callable[[npt.NDArray[np.int64]], float]] = {
    "length_p97_5": lambda lengths: float(np.percentile(lengths, 97.5)),
}
"""Name to function of the training sequences' lengths: tokens, without marks of begin and end."""


def data_statistics(data: Any, names: tuple[str, ...]) -> Mapping[str, float]:
    """Return statistics of a data module's training set.

    Args:
        data: A data module; its ``train_lengths()`` is called if there is something to measure.
        names: Which, of :data:`STATISTICS`.

    Raises:
        ValueError: If a name is unknown.
    """
    unknown = [name for name in names if name not in STATISTICS]
    if unknown:
        raise ValueError(f"unknown statistics of the data: {', '.join(unknown)}")
    if not names:
        return {}
    lengths = data.train_lengths()
    return {name: STATISTICS[name](lengths) for name in names}
