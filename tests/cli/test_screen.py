"""The tables at the end of a run and of a sweep."""

from attnscale.cli.screen import run_table, sweep_table
from attnscale.experiment import Result
from attnscale.sweep.state import Job

METRICS = {
    "val/best_loss": 0.25,
    "val/loss": 0.75,
    "train/loss": 0.5,
    "val/explained_variance": 0.125,
    "val/perplexity": 2.125,
    "test/loss": 0.375,
}
LAST = {
    "last val loss": "0.75",
    "last train loss": "0.5",
    "last explained variance": "0.125",
    "last val perplexity": "2.125",
}


def test_what_is_not_of_the_best_epoch_is_called_last() -> None:
    result = Result(objective=0.25, metrics=METRICS, name="r", folder="f")
    table = dict(line.split("  ", 1) for line in run_table(result, "ui").splitlines())
    cells = {label.strip(): text.strip() for label, text in table.items()}
    assert cells["best val loss"] == "0.25"
    assert cells["test loss"] == "0.375"
    assert {label: cells[label] for label in LAST} == LAST
    assert not {"train loss", "explained variance", "val perplexity"} & cells.keys()


def test_best_and_last_loss_of_a_job_stand_side_by_side() -> None:
    job = Job(index=0, name="r", status="FINISHED", result=Result(objective=0.25, metrics=METRICS))
    head, _, row = sweep_table([job]).splitlines()
    names = [name.strip() for name in head.split("  ") if name.strip()]
    cells = [cell.strip() for cell in row.split("  ") if cell.strip()]
    assert names[3:5] == ["best val loss", "last val loss"]
    shown = dict(zip(names, cells, strict=True))
    assert {label: shown[label] for label in LAST} == LAST


def test_what_must_be_known_to_read_bleu_stands_with_it() -> None:
    figures = {"test/bleu": 0.0, "test/bleu_ceiling": 0.0, "test/bleu_references": 0.0}
    result = Result(objective=0.25, metrics=figures, name="r", folder="f")
    remark = "0 whatever the model, as no reference has four tokens"
    assert f"of test BLEU      {remark}" in run_table(result, "ui").splitlines()
    jobs = [Job(index=i, name="r", status="FINISHED", result=result) for i in (0, 1)]
    assert sweep_table(jobs).count(f"BLEU: {remark}.") == 1
