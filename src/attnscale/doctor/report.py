"""What an examination came to: the table, the verdicts, JSON, the page."""

import difflib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from attnscale.doctor.record import Attention, NotVisible
from attnscale.doctor.verdict import FAIL, Expected, Finding, findings, scale_in_words

PATH_WIDTH = 38
COLUMNS = (
    *("attention", "how", "heads", "d_k", "scale", "× √d_k", "q, k", "std", "theory"),
    *("H/ln n", "p>.9", "verdict"),
)
"""``std`` is the spread of the logits that q · k makes, ``theory`` that of unrelated q and k."""


class UnhealthyError(AssertionError):
    """An examination that does not hold; the message has the lines that fail."""


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def row(attention: Attention) -> list[str]:
    """Return the cells of an attention, in the order of :data:`COLUMNS`."""
    how = f"{attention.how}, default" if attention.default_scale else attention.how
    name = attention.name
    extras = [
        *(["bias"] if attention.bias else []),
        *([f"mask {attention.masked:.0%}"] if attention.masked > 0 else []),
        *([f"{attention.sinks} sinks"] if attention.sinks else []),
        *([attention.end] if attention.end != "softmax" else []),
    ]
    origins = dict.fromkeys((attention.origin_q, attention.origin_k))
    return [
        name if len(name) <= PATH_WIDTH else f"…{name[1 - PATH_WIDTH :]}",
        how,
        "?" if attention.heads is None else str(attention.heads),
        str(attention.d_k),
        f"{attention.scale:.4g}",
        f"{attention.times_sqrt:.4g}",
        ", ".join(origins),
        f"{_mean(attention.spread):.2f}",
        f"{_mean(attention.predicted):.2f}",
        f"{attention.figure('entropy_norm'):.3f}",
        f"{attention.figure('saturated_90'):.2f}",
        "; ".join([scale_in_words(attention), *extras]),
    ]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines, the first a heading."""
    widths = [max(len(cells[i]) for cells in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)).rstrip() for cells in rows
    ]


@dataclass(frozen=True)
class Report:
    """What was seen of a model's attentions in one pass.

    Attributes:
        model: Its class name.
        attentions: In the order of the pass.
        not_visible: What could not be read.
        expect: The scale that is right, or None.
    """

    model: str
    attentions: tuple[Attention, ...]
    not_visible: tuple[NotVisible, ...]
    expect: Expected = None

    def __getitem__(self, name: str) -> Attention:
        """Return the attention at a path; of later calls, at ``path#1`` and so on."""
        for attention in self.attentions:
            if name == attention.name:
                return attention
        names = [attention.name for attention in self.attentions]
        near = difflib.get_close_matches(name, names, n=3)
        raise KeyError(f"{name}: no attention was seen there; there are {', '.join(near or names)}")

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Everything that is to be told, in the order of the pass."""
        told = (findings(one, self.expect, self.model) for one in self.attentions)
        return tuple(finding for each in told for finding in each)

    @property
    def healthy(self) -> bool:
        """Whether nothing fails."""
        return all(finding.level != FAIL for finding in self.findings)

    def __str__(self) -> str:
        """Return the table, what is to be told, and what could not be seen."""
        lines = aligned([COLUMNS, *map(row, self.attentions)]) if self.attentions else []
        seen: dict[tuple[str, str], list[str]] = {}
        for finding in self.findings:
            seen.setdefault((finding.level, finding.words), []).append(finding.name)
        for (level, words), names in seen.items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            lines.append(f"{level} {names[0]}{more}: {words}")
        lines += [
            f"not visible: {one.path}, {one.operation}: {one.reason}" for one in self.not_visible
        ]
        n, m = len(self.attentions), len(self.not_visible)
        lines.append(f"{self.model}: {n} attention{'s' * (n != 1)}, {m} not visible")
        return "\n".join(lines)

    def to_json(self, path: str | Path | None = None) -> str:
        """Return all of it as JSON, and write it to a file if one is named."""
        content: dict[str, Any] = {
            "model": self.model,
            "expect": self.expect,
            "healthy": self.healthy,
            "attentions": [
                {**asdict(one), "scale": one.scale, "times_sqrt": one.times_sqrt}
                for one in self.attentions
            ],
            "findings": [asdict(finding) for finding in self.findings],
            "not_visible": [asdict(one) for one in self.not_visible],
        }
        text = json.dumps(content, indent=1, ensure_ascii=False)
        if path is not None:
            Path(path).write_text(text + "\n", encoding="utf-8")
        return text

    def page(self, path: str | Path) -> Path:
        """Write a page that needs nothing else, and return its path."""
        from attnscale.doctor.page import write_page

        return write_page(
            Path(path),
            model=self.model,
            told=[str(finding) for finding in self.findings],
            attentions=self.attentions,
            not_visible=self.not_visible,
            table=(COLUMNS, [row(one) for one in self.attentions]),
        )

    def assert_healthy(self, scale: Expected = None) -> None:
        """Check that nothing fails.

        Args:
            scale: The scale that is right, instead of ``expect``.

        Raises:
            UnhealthyError: With the lines that fail; also if no attention was seen.
        """
        expect = self.expect if scale is None else scale
        report = Report(self.model, self.attentions, self.not_visible, expect)
        if not report.attentions:
            raise UnhealthyError(f"{self.model}: no attention was seen")
        failing = [str(finding) for finding in report.findings if finding.level == FAIL]
        if failing:
            raise UnhealthyError("\n".join(failing))
