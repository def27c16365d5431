"""Rows as tables."""

from attnscale.figures.page import markdown_table, table_of
from tests.support.documents import rows_of


def test_a_bar_does_not_end_a_cell() -> None:
    table = markdown_table(["a|b", "c"], [["|x| | y", None], [1.5, "z|"]])
    assert rows_of(table) == [{"a|b": "|x| | y", "c": ""}, {"a|b": "1.5", "c": "z|"}]


def test_rows_with_named_values_are_a_table() -> None:
    table = table_of("t", [{"a": 1, "b": None}, {"b": 2.5, "a": "x"}], "words")
    assert (table.name, table.columns, table.caption) == ("t", ["a", "b"], "words")
    assert table.rows == [[1, None], ["x", 2.5]]
    assert (table_of("t", [], "words").columns, table_of("t", [], "words").rows) == ([], [])
