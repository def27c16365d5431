"""What a statistic says of a claim.

A verdict is computed, never written: a claim holds where the statistic says so, fails where it says
the opposite, depends where both are found, and is open where only training can tell and no run is
at hand.
"""

from collections.abc import Sequence
from dataclasses import dataclass

HOLDS, FAILS, DEPENDS, OPEN = "holds", "fails", "depends", "open"


@dataclass(frozen=True)
class Judgement:
    """What a statistic says of a claim.

    Attributes:
        verdict: "holds", "fails", "depends" or "open".
        value: The statistic's value, with its interval where it is measured.
    """

    verdict: str
    value: str


def verdict_of(*findings: bool) -> str:
    """Return what several findings for a claim say together."""
    return HOLDS if all(findings) else DEPENDS if any(findings) else FAILS


def together(verdicts: Sequence[str]) -> str:
    """Return one verdict for several: open ones say nothing beside others."""
    settled = set(verdicts) - {OPEN}
    if not settled:
        return OPEN
    return settled.pop() if len(settled) == 1 else DEPENDS
