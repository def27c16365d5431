"""The page of an examination: one HTML file that needs nothing else."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attnscale.figures.chart import Spec, data, nominal, quantitative, top
from attnscale.figures.page import Figure, Section, Table, page_html
from attnscale.files import write_text

if TYPE_CHECKING:
    from attnscale.doctor.report import Report

SPREAD, THEORY = "q · k of this batch", "unrelated q and k"


def _chart(report: "Report") -> Spec:
    rows = [
        {"attention": f"{index:03d} {one.name}", "of": kind, "spread": sum(each) / len(each)}
        for index, one in enumerate(report.attentions)
        for kind, each in ((SPREAD, one.spread), (THEORY, one.predicted))
    ]
    body: Spec = {
        "data": data(rows),
        "width": 480,
        "mark": {"type": "point", "filled": True, "size": 50},
        "encoding": {
            "y": nominal("attention", title=None, axis={"labelLimit": 320}),
            "x": quantitative("spread", title="standard deviation of a row's logits"),
            "color": nominal("of", title=None),
            "shape": nominal("of", title=None),
        },
    }
    return top(body, {})


def _heads(report: "Report") -> list[list[object]]:
    return [
        [one.name, head, one.scales[head], one.spread[head], *values, one.first_key[head]]
        for one in report.attentions
        if len(one.spread) == len(one.scales)
        for head, values in enumerate(zip(*one.figures.values(), strict=True))
    ]


def write_page(
    report: "Report", path: Path, columns: Sequence[str], rows: Sequence[Sequence[object]]
) -> Path:
    """Write the page of a report.

    Args:
        report: The report.
        path: The file.
        columns: Headings of its table.
        rows: Rows of its table.
    """
    told = [str(finding) for finding in report.findings] or ["Nothing is unusual."]
    sections = [Section(title="What is to be told", text=told)]
    if report.attentions:
        figure = Figure(
            name="spread",
            spec=_chart(report),
            caption="How far q · k spreads the logits of a row, and how far it would with "
            "unrelated q and k of the same sizes; mean over heads.",
        )
        table = Table(name="", columns=columns, rows=rows, caption="Mean over heads.")
        names = list(report.attentions[0].figures)
        heads = Table(
            name="",
            caption="Figures of each head.",
            columns=["attention", "head", "scale", "spread", *names, "first key"],
            rows=_heads(report),
        )
        sections += [
            Section(title="Attentions", figures=[figure], tables=[table]),
            Section(title="Heads", tables=[heads]),
        ]
    if report.not_visible:
        lost = [f"{one.path}, {one.operation}: {one.reason}" for one in report.not_visible]
        sections.append(Section(title="Not visible", text=lost))
    n = len(report.attentions)
    lead = [f"{n} attentions were read in one pass; {len(report.not_visible)} were not visible."]
    write_text(path, page_html(f"Attention of {report.model}", lead, sections))
    return path
