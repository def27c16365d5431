"""A claim, and the parts that it has: text, statistic, judges.

A part is a statistic, with the judge that reads what theory computes, or the judge that reads what
was trained and the experiments that train it. A claim that says two things has a part for each; its
verdict is that of all of them together.
"""

from collections.abc import Callable
from dataclasses import dataclass
from string import ascii_lowercase

from attnscale.analysis.rates import Results
from attnscale.claims.evidence import Evidence
from attnscale.claims.judgement import Judgement


@dataclass(frozen=True, kw_only=True)
class Part:
    """What a claim says, or one of the things.

    Attributes:
        text: That thing; empty where it is all of the claim.
        statistic: What settles it.
        theory: Judge of the evidence that theory gives, or None where only training can tell.
        training: Judge of the runs of ``experiments``, or None.
        experiments: Configurations in ``conf/experiment/`` that settle it by training.
    """

    text: str = ""
    statistic: str
    theory: Callable[[Evidence], Judgement] | None = None
    training: Callable[[Results], Judgement] | None = None
    experiments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """A claim.

    Attributes:
        number: Where it stands in the list.
        text: What is claimed.
        parts: What it says.
    """

    number: int
    text: str
    parts: tuple[Part, ...]

    @property
    def labelled(self) -> dict[str, Part]:
        """The parts by label: ``3``, or ``3a``, ``3b`` … where there are several."""
        if len(self.parts) == 1:
            return {str(self.number): self.parts[0]}
        pairs = zip(ascii_lowercase, self.parts, strict=False)
        return {f"{self.number}{letter}": part for letter, part in pairs}

    @property
    def experiments(self) -> tuple[str, ...]:
        """The experiments of all parts."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.experiments))
