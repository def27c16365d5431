"""The page of an examination: one HTML file that needs nothing else."""

from collections.abc import Sequence
from pathlib import Path

from attnscale.doctor.record import Attention, NotVisible
from attnscale.figures.chart import Spec, data, nominal, quantitative, top
from attnscale.figures.page import Figure, Section, Table, page_html
from attnscale.files import write_text

SPREAD, THEORY = "q · k of this batch", "unrelated q and k"


def _chart(attentions: Sequence[Attention]) -> Spec:
    rows = [
        {"attention": f"{index:03d} {one.name}", "of": kind, "spread": sum(each) / len(each)}
        for index, one in enumerate(attentions)
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


def _heads(attentions: Sequence[Attention]) -> list[list[object]]:
    return [
        [one.name, head, one.scales[head], one.spread[head], *values, one.first_key[head]]
        for one in attentions
        if len(one.spread) == len(one.scales)
        for head, values in enumerate(zip(*one.figures.values(), strict=True))
    ]


def write_page(
    path: Path,
    *,
    model: str,
    told: Sequence[str],
    attentions: Sequence[Attention],
    not_visible: Sequence[NotVisible],
    table: tuple[Sequence[str], Sequence[Sequence[str]]],
) -> Path:
    """Write the page of a report, and return its path.

    Args:
        path: The file.
        model: Class name.
        told: What is to be told, a line each.
        attentions: What was read.
        not_visible: What could not be read.
        table: Headings and rows of the table of attentions.
    """
    sections = [Section(title="What is to be told", text=told or ["Nothing is unusual."])]
    if attentions:
        figure = Figure(
            name="spread",
            spec=_chart(attentions),
            caption="How far q · k spreads the logits of a row, and how far it would with "
            "unrelated q and k of the same sizes; mean over heads.",
        )
        columns, rows = table
        names = list(attentions[0].figures)
        heads = Table(
            name="",
            caption="Figures of each head.",
            columns=["attention", "head", "scale", "spread", *names, "first key"],
            rows=_heads(attentions),
        )
        means = Table(name="", columns=columns, rows=rows, caption="Mean over heads.")
        sections += [
            Section(title="Attentions", figures=[figure], tables=[means]),
            Section(title="Heads", tables=[heads]),
        ]
    if not_visible:
        lost = [f"{one.path}, {one.operation}: {one.reason}" for one in not_visible]
        sections.append(Section(title="Not visible", text=lost))
    n, m = len(attentions), len(not_visible)
    lead = [f"{n} attentions were read in one pass; {m} were not visible."]
    write_text(path, page_html(f"Attention of {model}", lead, sections))
    return path
