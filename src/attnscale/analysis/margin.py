"""The margin δ: a difference in loss below it does not matter.

    δ = max(relative · mean of sqrt, absolute, 2 · s of none_equiv − sqrt)

``margin.relative`` (2 % by default) and ``margin.absolute`` (in the unit of the loss) stand in the
configuration of the runs. ``none_equiv`` is ``sqrt`` in exact arithmetic (Adam and SGD), so the
standard deviation s of its paired differences is what rounding alone does to a run; differences of
that size are no findings.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from attnscale.analysis.comparison import Values

RELATIVE, ABSOLUTE = "margin.relative", "margin.absolute"
DEFAULT_RELATIVE = 0.02
CONTROL = "none_equiv"
CONTROL_STDS = 2.0


@dataclass(frozen=True)
class Margin:
    """A margin.

    Attributes:
        value: δ in the unit of the loss, positive.
        source: Where it comes from, in words.
    """

    value: float
    source: str


def make_margin(
    reference: Values, parameters: Mapping[str, str], control: Values | None = None
) -> Margin | None:
    """Return the margin of comparisons with a setting.

    Args:
        reference: Losses of ``sqrt``, by replicate.
        parameters: Parameters of one of its runs, dotted key to text.
        control: Losses of ``none_equiv`` with everything else equal, by replicate, or None.

    Returns:
        The largest of the three; None where it would be 0.
    """
    relative = float(parameters.get(RELATIVE, DEFAULT_RELATIVE))
    absolute = float(parameters.get(ABSOLUTE, 0.0))
    mean = sum(reference.values()) / len(reference)
    margins = [
        Margin(relative * abs(mean), f"{100 * relative:.3g} % of sqrt's mean"),
        Margin(absolute, ABSOLUTE),
    ]
    shared = [] if control is None else [key for key in reference if key in control]
    if control is not None and len(shared) > 1:
        noise = float(np.std([control[key] - reference[key] for key in shared], ddof=1))
        margins.append(
            Margin(
                CONTROL_STDS * noise, f"{CONTROL_STDS:g} standard deviations of none_equiv − sqrt"
            )
        )
    largest = max(margins, key=lambda margin: margin.value)
    return largest if largest.value > 0 else None
