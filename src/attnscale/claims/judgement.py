"""What a statistic says of a claim.

A verdict is computed, never written: a claim holds where the statistic says so, fails where it says
the opposite, depends where both are found, and is open where what is at hand cannot tell.
"""

from collections.abc import Iterable
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


def together(verdicts: Iterable[str]) -> str:
    """Return one verdict for several: of sizes, of experiments, of the parts of a claim.

    To hold, all must hold. Beside open ones a failure stands, since a claim is about all of them;
    both together depend.
    """
    verdicts = set(verdicts)
    settled = verdicts - {OPEN}
    if len(settled) > 1:
        return DEPENDS
    return OPEN if not settled or (settled == {HOLDS} and OPEN in verdicts) else settled.pop()
