"""What a report says of an examination, and how it is kept."""

import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from attnscale.attention.stats import Sample, measure
from attnscale.doctor import Report, examine
from attnscale.doctor.recovery import FIGURES
from tests.doctor.attention import D_K, N_HEADS, WAYS, Attention, Block, batch, model


@pytest.fixture(scope="module")
def report() -> Report:
    torch.manual_seed(0)
    blocks = nn.Sequential(Block(WAYS["eager"][0]), Block(WAYS["fused, default"][0]))
    return examine(blocks, batch(), expect="sqrt")


def test_attentions_are_found_by_their_path(report: Report) -> None:
    assert report["1.attention"].how == "fused"
    with pytest.raises(KeyError, match=r"0\.attn: .*0\.attention"):
        report["0.attn"]


def test_later_calls_have_a_number() -> None:
    attention = model(WAYS["eager"][0])
    report = examine(attention, forward=lambda m: [m(batch()), m(batch())])
    assert [one.name for one in report.attentions] == ["(model)", "(model)#1"]
    assert report["(model)#1"].call == 1


def test_the_table_has_a_line_for_each(report: Report) -> None:
    lines = str(report).splitlines()
    assert lines[0].split()[:4] == ["attention", "how", "heads", "d_k"]
    assert re.match(r"0\.attention +eager +5 +12 +0\.2887 +1 +raw", lines[1])
    assert lines[-1] == "Sequential: 2 attentions, 0 not visible"


def test_json_has_all_of_it(report: Report, tmp_path: Path) -> None:
    text = report.to_json(tmp_path / "r.json")
    content = json.loads((tmp_path / "r.json").read_text())
    assert content == json.loads(text)
    assert content["healthy"] is True
    assert [one["scale"] for one in content["attentions"]] == pytest.approx([D_K**-0.5] * 2)


def test_the_page_needs_nothing_else(report: Report, tmp_path: Path) -> None:
    page = report.page(tmp_path / "r.html").read_text()
    assert "0.attention" in page
    assert not re.search(r"""(src|href)=["']https?:""", page)
    assert list(tmp_path.iterdir()) == [tmp_path / "r.html"]


def test_nothing_that_was_seen_is_not_healthy() -> None:
    empty = examine(nn.Linear(3, 3), torch.zeros(1, 3))
    with pytest.raises(AssertionError, match="no attention was seen"):
        empty.assert_healthy()


@pytest.mark.parametrize(
    ("expect", "fails"),
    [
        ("sqrt", False),
        ("none", True),
        (D_K**-0.5, False),
        ({"0.*": "sqrt", "1.*": "none"}, True),
        ({"1.*": "sqrt"}, False),
    ],
)
def test_what_is_expected_may_differ_by_path(
    expect: str | float | dict[str, str | float], fails: bool, report: Report
) -> None:
    if fails:
        with pytest.raises(AssertionError, match=r"FAIL \d.attention: scale 0.2887"):
            report.assert_healthy(scale=expect)
    else:
        report.assert_healthy(scale=expect)


@pytest.mark.parametrize("way", ["eager", "fused, causal", "in place"])
def test_the_figures_are_those_of_the_projects_statistics(way: str) -> None:
    attention, x = model(WAYS[way][0]), batch()
    (record,) = examine(attention, x).attentions
    q, k = (
        p(x).detach().double().unflatten(-1, (N_HEADS, -1)).transpose(1, 2)
        for p in (attention.q, attention.k)
    )
    keep = None if way == "eager" else torch.ones(20, 20, dtype=torch.bool).tril()
    logits = q @ k.mT * D_K**-0.5
    hidden = logits if keep is None else logits.masked_fill(~keep, -torch.inf)
    sample = Sample(weights=hidden.softmax(-1), logits=logits, scores=q @ k.mT, q=q, k=k, keep=keep)
    for name, values in measure(sample, FIGURES).items():
        assert record.figures[name] == pytest.approx(values.tolist(), rel=1e-6), name


def test_the_prediction_is_what_unrelated_queries_and_keys_have() -> None:
    attention = model(WAYS["eager"][0])
    (record,) = examine(attention, batch()).attentions
    # Keys of another batch have nothing to do with the queries of this one.
    q = attention.q(batch()).detach().unflatten(-1, (N_HEADS, -1)).transpose(1, 2)
    squares = []
    for seed in range(20):
        other = attention.k(batch(100 + seed)).detach()
        k = other.unflatten(-1, (N_HEADS, -1)).transpose(1, 2)
        squares.append((q @ k.mT * D_K**-0.5).var(dim=-1).mean(dim=(0, 2)))
    measured = torch.stack(squares).mean(dim=0).sqrt().tolist()
    assert record.predicted == pytest.approx(measured, rel=0.05)


def test_a_model_of_the_project_is_read_in_its_own_modes() -> None:
    from attnscale.attention import MultiHeadAttention

    for scale, factor in (("sqrt", D_K**-0.5), ("none", 1.0), ("mup", 8 / D_K)):
        torch.manual_seed(0)
        attention = MultiHeadAttention(d_model=60, n_heads=5, d_k=D_K, d_v=7, scale=scale)
        (record,) = examine(attention, batch()).attentions
        assert record.scale == pytest.approx(factor, rel=1e-6), scale


def test_a_model_stays_as_it_was() -> None:
    attention = model(WAYS["eager"][0]).train()
    before = {name: value.clone() for name, value in attention.state_dict().items()}
    hooks = len(nn.modules.module._global_forward_hooks)
    examine(attention, batch())
    assert attention.training
    assert len(nn.modules.module._global_forward_hooks) == hooks
    assert all(torch.equal(value, before[name]) for name, value in attention.state_dict().items())


def test_an_error_of_the_model_is_the_models() -> None:
    class Broken(Attention):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match=r"^mine$"):
        examine(Broken(WAYS["eager"][0]), batch())
    assert len(examine(model(WAYS["eager"][0]), batch()).attentions) == 1
