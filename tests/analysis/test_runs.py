"""The state of a run, and finding runs in a store."""

import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from attnscale.analysis.settings import Asked, find_runs
from attnscale.tracking.record import FAILED, FINISHED, Record
from attnscale.tracking.runs import OBJECTIVE, Run, finite, plain_text
from attnscale.tracking.store import Store

LARGEST = 1.7976931348623157e308
"""What MLflow makes of an infinity."""


def recorded(
    status: str = "FINISHED",
    *,
    tags: Mapping[str, str] | None = None,
    metrics: Mapping[str, float] | None = None,
    parameters: Mapping[str, str] | None = None,
) -> Run:
    figures = {OBJECTIVE: 0.5} if metrics is None else dict(metrics)
    return Run.stored(
        run_id="id", status=status, tags=tags or {}, parameters=parameters or {}, metrics=figures
    )


DIVERGED = {"diverged": "true", "diverged.metric": "train/loss", "diverged.step": "40"}


@pytest.mark.parametrize(
    ("run", "state", "reason"),
    [
        (recorded(), "finished", ""),
        (recorded(tags={"diverged": "false"}), "finished", ""),
        (recorded(tags={"error": "left over"}), "finished", ""),
        # A figure that stopped being finite outweighs what the process ended with.
        (recorded(tags=DIVERGED), "diverged", "train/loss at step 40"),
        (recorded("FAILED", tags=DIVERGED), "diverged", "train/loss at step 40"),
        (recorded(tags={"diverged": "true"}), "diverged", "? at step ?"),
        (recorded(metrics={OBJECTIVE: math.nan}), "diverged", "val/best_loss is not finite"),
        (recorded(metrics={OBJECTIVE: LARGEST}), "diverged", "val/best_loss is not finite"),
        (recorded(metrics={OBJECTIVE: -LARGEST}), "diverged", "val/best_loss is not finite"),
        (recorded(metrics={OBJECTIVE: math.inf}), "diverged", "val/best_loss is not finite"),
        (recorded(metrics={"val/loss": 0.5}), "failed", "has no val/best_loss"),
        (recorded("FAILED", tags={"error": "ValueError: x\n  at y"}), "failed", "ValueError: x"),
        (recorded("FAILED"), "failed", "no reason recorded"),
        (recorded("FAILED", tags={"error": ""}), "failed", ""),
        (recorded("KILLED", tags={"error": "interrupted"}), "killed", "interrupted"),
        (recorded("KILLED"), "killed", "no reason recorded"),
        (recorded("RUNNING"), "running", "still running"),
        (recorded("SCHEDULED"), "failed", "no reason recorded"),
    ],
)
def test_the_state_of_a_run_and_its_reason(run: Run, state: str, reason: str) -> None:
    assert (run.outcome, run.reason) == (state, reason)
    assert (run.value(OBJECTIVE) is not None) == (state == "finished")


def test_only_numbers_that_may_be_drawn_are_kept() -> None:
    figures = {OBJECTIVE: 0.5, "a": math.nan, "b": LARGEST, "c": -LARGEST, "d": 1e30, "e": 0.0}
    run = recorded(metrics=figures)
    assert run.metrics == {OBJECTIVE: 0.5, "d": 1e30, "e": 0.0}
    # A curve may be worth drawing up to where it left the numbers.
    assert run.recorded == set(figures)
    assert run.value("a") is None
    assert run.value("never") is None
    assert [finite(x) for x in (1e299, 1e301, -1e301, math.inf)] == [True, False, False, False]


@pytest.mark.parametrize(
    ("given", "seed"), [("7", 7), ("-3", -3), ("null", -1), ("1.5", -1), ("", -1), (None, -1)]
)
def test_the_seed(given: str | None, seed: int) -> None:
    parameters = {} if given is None else {"seed": given}
    assert recorded(parameters=parameters).seed == seed


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ('"none"', "none"),
        ("none", "none"),
        ("64", "64"),
        ("null", "null"),
        ('["a"]', '["a"]'),
        ('"שלום"', "שלום"),
        ('"', '"'),
        ('"say \\"x\\""', 'say "x"'),
    ],
)
def test_a_parameter_as_it_was_written(given: str, text: str) -> None:
    assert plain_text(given) == text
    assert recorded(parameters={"a.b": given}).parameters == {"a.b": text}


GROUP = "found"


def _write(store: Store, name: str, tags: Mapping[str, str], loss: float, status: str) -> str:
    record = Record.start(store, experiment=GROUP, name=name, tags=tags)
    record.parameters({"seed": 0, "attention": {"scale": name}})
    record.points({OBJECTIVE: loss}, 1)
    record.end(status)
    return record.run_id


@pytest.fixture(scope="module")
def ids(store: Store) -> dict[str, str]:
    """Two sweeps with two runs each, and a run of none."""
    made = {}
    for sweep in ("first", "second"):
        tags = {"kind": "sweep", "sweep": sweep}
        Record.start(store, experiment=GROUP, name=f"sweep {sweep}", tags=tags).end(FINISHED)
        for job, (scale, loss) in enumerate((("sqrt", 0.25), ("none", math.inf))):
            made[f"{sweep} {scale}"] = _write(
                store, scale, {"kind": "run", "sweep": sweep, "job": str(job)}, loss, FINISHED
            )
    made["alone"] = _write(store, "cosine", {"kind": "run", "error": "e"}, 0.75, FAILED)
    return made


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (Asked("latest", (), None, GROUP), ["second sqrt", "second none"]),
        (Asked("first", (), None, GROUP), ["first sqrt", "first none"]),
        (Asked("/some/where/multirun/first", (), None, GROUP), ["first sqrt", "first none"]),
        (Asked("multirun/first/", (), None, GROUP), ["first sqrt", "first none"]),
        (
            Asked("second, first,latest", (), None, GROUP),
            ["second sqrt", "second none", "first sqrt", "first none"],
        ),
        (
            Asked("latest", (), "metrics.`val/best_loss` = 0.25", GROUP),
            ["first sqrt", "second sqrt"],
        ),
        (Asked("latest", (), "attributes.status = 'FAILED'", GROUP), ["alone"]),
        (Asked("latest", (), "attributes.status = 'KILLED'", GROUP), []),
    ],
)
def test_finding_what_was_asked_for(
    store: Store, ids: dict[str, str], asked: Asked, names: list[str]
) -> None:
    assert [run.run_id for run in find_runs(store, asked)] == [ids[name] for name in names]


def test_runs_by_id_come_before_everything_else_and_once(store: Store, ids: dict[str, str]) -> None:
    wanted = (ids["alone"], ids["first none"], ids["alone"])
    alone, diverged = find_runs(store, Asked("first", wanted, "params.seed = '5'", GROUP))
    assert (alone.run_id, alone.outcome, alone.reason) == (ids["alone"], "failed", "e")
    assert (alone.parameters["attention.scale"], alone.seed, alone.sweep) == ("cosine", 0, "")
    # Recorded as an infinity.
    assert (diverged.run_id, diverged.outcome) == (ids["first none"], "diverged")
    assert diverged.metrics == {}
    assert diverged.sweep == "first"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (Asked("never", (), None, GROUP), "sweep=never: no runs of a sweep of that name"),
        (Asked(str(Path("/a/never")), (), None, GROUP), "sweep=never"),
        (Asked("first,never", (), None, GROUP), "sweep=never"),
        (Asked("latest", ("0" * 32,), None, GROUP), f"runs: no run {'0' * 32} in this store"),
        (Asked("latest", (), "nonsense", GROUP), "filter=nonsense: "),
        (Asked("latest", (), None, "empty"), "tracking.experiment=empty: no such experiment"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(
    store: Store, ids: dict[str, str], asked: Asked, message: str
) -> None:
    with pytest.raises(ValueError, match=r"^(sweep|runs|filter|tracking)") as caught:
        find_runs(store, asked)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
