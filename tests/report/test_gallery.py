"""Which attention a report shows: told by what attends to what, not by names."""

import numpy as np

from attnscale.figures.attention import Map
from attnscale.report.gallery import shown_path


def attention(path: str, queries: str, keys: str) -> Map:
    weights = np.ones((1, len(queries), len(keys)))
    return Map(path=path, weights=weights, queries=list(queries), keys=list(keys))


def test_the_last_attention_between_two_sides_is_shown() -> None:
    within, other = attention("a", "ich", "ich"), attention("d", "see", "see")
    across = [attention("b", "see", "ich"), attention("c", "see", "ich")]
    assert shown_path([within, *across, other]) == "c"


def test_without_one_the_last_is_shown() -> None:
    assert shown_path([attention("x.cross", "abc", "abc"), attention("y", "de", "de")]) == "y"
    assert shown_path([]) is None
