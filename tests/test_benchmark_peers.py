"""The comparison with other packages: its figures, its verdicts and its page. None is installed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import __main__ as program
from benchmarks.peers import child, environments, figures, measuring, table
from benchmarks.peers.catalogue import (
    FULL,
    MEASURES,
    OURS,
    PEERS,
    Kind,
    Measure,
    Peer,
    Setting,
    trials,
)
from benchmarks.peers.environments import Environment
from benchmarks.peers.figures import Cell
from benchmarks.peers.measuring import Sample

BY_NAME = {measure.name: measure for measure in MEASURES}
OTHER = Peer("other", "Other", "job scheduler", ())
QUEUE = Peer("queue", "Queue", "bare queue", ())
WAL_FULL = {"journal_mode": "wal", "synchronous": 2}


def sample(
    trial: str, peer: Peer, answer: dict[str, Any], *, turn: int = 0, setting: Setting = "full"
) -> Sample:
    """An answer of a child."""
    return Sample(turn, trial, peer.module, setting, answer, 200.0, 0.1)


def results(
    samples: Iterable[Sample], peers: Iterable[Peer] = (OURS, OTHER, QUEUE), **reasons: str
) -> table.Results:
    """A run of these."""
    made = [Environment(peer, None, {"Python": "3"}, reasons.get(peer.module)) for peer in peers]
    return table.Results({"CPU": "one"}, FULL, 1, made, list(samples))


def rate(count: int, seconds: float, **more: Any) -> dict[str, Any]:
    """The answer of a measure of speed."""
    return {"count": count, "seconds": seconds, "pragmas": WAL_FULL, **more}


@pytest.mark.parametrize(("share", "expected"), [(0.5, 2), (0.99, 4), (0.0, 1)])
def test_percentile_is_one_of_the_values(share: float, expected: int) -> None:
    """It is the smallest that so many do not exceed."""
    assert figures.percentile([4, 1, 3, 2], share) == expected


def test_each_measure_reads_its_own_trials() -> None:
    """Rates, ratios, percentiles and shares, in the units that the table names."""
    answers = {
        "schedule_1": rate(100, 0.5),
        "few": rate(10, 1.0),
        "many": rate(10, 3.0),
        "wake": {"latencies": [0.004, 0.002, 0.009]},
        "idle": {"cpu": 0.01, "seconds": 20.0},
        "recovery": {"seconds": 0.05},
    }
    found = {name: figures.value_of(name, answers) for name in BY_NAME}
    assert found["schedule_1"] == 200
    assert found["growth"] == pytest.approx(3)
    assert found["wake_p50"] == pytest.approx(4)
    assert found["wake_p99"] == pytest.approx(9)
    assert found["idle"] == pytest.approx(30)
    assert found["recovery"] == pytest.approx(50)
    assert found["dispatch"] is None


def test_each_trial_is_an_order_that_a_child_reads_back(tmp_path: Path) -> None:
    """What the parent writes on the command line is what the child does."""
    for trial in trials(FULL):
        order = child.Order(folder=tmp_path, **trial.order)
        assert child.Order.parse(order.text()) == order


@pytest.mark.parametrize(
    ("measure", "ours", "theirs", "expected"),
    [
        ("schedule_1", [300.0], [100.0], "ahead"),
        ("schedule_1", [100.0], [300.0], "behind"),
        ("schedule_1", [100.0], [104.0], "level"),
        ("wake_p50", [1.0], [3.0], "ahead"),
        ("wake_p50", [3.0], [1.0], "behind"),
        ("growth", [1.19], [0.9], "level"),
        ("growth", [1.3], [0.9], "behind"),
        ("idle", [5.0], [0.1], "level"),
        ("idle", [0.1], [90.0], "ahead"),
    ],
)
def test_standing(measure: str, ours: list[float], theirs: list[float], expected: str) -> None:
    """Who is ahead depends on the measure's direction; differences that mean nothing are level."""
    assert figures.standing(BY_NAME[measure], Cell(ours), Cell(theirs)) == expected


def test_standing_is_of_the_medians() -> None:
    """One round that is far off decides nothing."""
    cell = Cell([1.0, 100.0, 101.0])
    assert figures.standing(BY_NAME["schedule_1"], cell, Cell([10.0])) == "ahead"


def test_a_lost_job_is_behind_and_an_unmeasured_one_is_not_compared() -> None:
    """Only of an interrupted job it is known what no figure means."""
    lost = Cell((), ("the job is no longer stored: it is lost",))
    assert figures.standing(BY_NAME["recovery"], Cell([10.0]), lost) == "ahead"
    assert figures.standing(BY_NAME["recovery"], Cell([10.0]), Cell()) is None
    assert figures.standing(BY_NAME["dispatch"], Cell([10.0]), lost) is None
    assert figures.standing(BY_NAME["recovery"], Cell(), lost) is None


@pytest.mark.parametrize(
    ("measure", "kind", "setting", "expected"),
    [
        ("schedule_1", "job scheduler", "full", True),
        ("schedule_1", "bare queue", "full", False),
        ("schedule_100", "bare queue", "full", True),
        ("wake_p99", "bare queue", "full", True),
        ("recovery", "bare queue", "full", True),
        ("dispatch", "bare queue", "full", False),
        ("schedule_1", "job scheduler", "default", False),
    ],
)
def test_where_we_are_to_be_ahead(
    measure: str, kind: Kind, setting: Setting, *, expected: bool
) -> None:
    """At our durability: of schedulers everywhere, of bare queues where they do the same."""
    peer = Peer("peer", "Peer", kind, ())
    assert figures.required(BY_NAME[measure], peer, setting) is expected


def test_only_what_is_not_to_be_is_reported_as_behind() -> None:
    """A bare queue may lead with one caller, and anybody with less durability."""
    run = results(
        [
            sample("schedule_1", OURS, rate(100, 1.0)),
            sample("schedule_1", OTHER, rate(200, 1.0)),
            sample("schedule_1", OTHER, rate(900, 1.0), setting="default"),
            sample("schedule_1", QUEUE, rate(300, 1.0)),
        ]
    )
    assert table.behind(run) == ["schedule a job, 1 caller: Other"]
    text = table.text(run)
    assert "BEHIND 2.00" in text
    assert "behind 3.00" in text
    assert "behind 9.00" in text


def test_what_could_not_be_measured_says_why() -> None:
    """Neither a package that does not install nor one that dies is left out silently."""
    run = results(
        [
            sample("dispatch", OURS, rate(100, 1.0)),
            sample("dispatch", QUEUE, {"problem": "OperationalError: database is locked"}),
        ],
        other="does not install: Requires-Python >=3.13",
    )
    for shown in (table.text(run), table.markdown(run)):
        assert "does not install: Requires-Python >=3.13" in shown
        assert "database is locked" in shown
    assert "not compared" in table.markdown(run)


def test_failures_and_time_limits_are_said() -> None:
    """A rate does not hide that calls failed or jobs were left."""
    failed = rate(90, 1.0, failed=10, error="TimeoutError: pool")
    assert figures.notes_of(failed) == ["10 of 100 calls failed: TimeoutError: pool"]
    stopped = child.dispatched(30.0, 1_000, 400)
    assert [note.split(";")[0] for note in figures.notes_of(stopped)] == [
        "stopped at the time limit"
    ]
    assert figures.notes_of({"latencies": [], "missing": 2})
    assert not figures.notes_of(rate(1, 1.0))


def test_a_cell_gathers_rounds_and_their_first_notes() -> None:
    """A value for each round that gave one, and no note that only a number tells from another."""
    samples = [
        sample("recovery", OTHER, {"never": f"leased for {seconds} s more"}, turn=turn)
        for turn, seconds in enumerate((117, 116))
    ]
    samples.append(sample("recovery", OTHER, {"seconds": 0.5}, turn=2))
    samples.append(sample("recovery", OTHER, {"seconds": 9.0}, turn=2, setting="default"))
    cell = figures.cell_of(BY_NAME["recovery"], OTHER.module, "full", samples)
    assert cell == Cell([500.0], ["leased for 117 s more"])


def test_pragmas_are_those_that_were_read() -> None:
    """Each combination once, in words."""
    samples = [sample("idle", OTHER, {"pragmas": WAL_FULL}, turn=turn) for turn in range(2)]
    samples.append(
        sample("idle", OTHER, {"pragmas": {"journal_mode": "delete", "synchronous": 1}}, turn=2)
    )
    found = figures.pragmas_of(OTHER.module, "full", samples)
    assert found == ["wal, FULL", "delete, NORMAL"]


def test_results_survive_their_json() -> None:
    """What was measured once can be shown again."""
    run = results([sample("schedule_1", OURS, rate(1, 1.0))], PEERS)
    again = program.from_json(json.loads(json.dumps(program.as_json(run))))
    assert table.markdown(again) == table.markdown(run)


def test_the_page_has_its_place_for_the_tables() -> None:
    """Filling replaces what stands between the marks, and nothing else, however often."""
    page = program.PAGE.read_text("utf-8")
    once = table.fill(page, "| first |")
    twice = table.fill(once, "| second |")
    assert "| second |" in twice
    assert "| first |" not in twice
    assert twice.replace("second", "first") == once
    assert once.partition(table.BEGIN)[0] == page.partition(table.BEGIN)[0]
    with pytest.raises(ValueError, match="marks"):
        table.fill("no marks", "")


def test_contestants_take_turns(tmp_path: Path) -> None:
    """Another begins in each round; a peer with one setting is measured once."""
    here = Path("python")
    made = [Environment(peer, here, {}) for peer in (OURS, OTHER)]
    made.append(Environment(QUEUE, None, {}, "does not install"))
    bench = measuring.Bench(made, FULL, 3, tmp_path, ("full", "default"), (), print, print)
    orders = [
        [(each.peer.module, setting) for each, setting in bench.contestants(turn)]
        for turn in range(3)
    ]
    assert orders[0] == [("ours", "full"), ("other", "full"), ("other", "default")]
    assert [order[0] for order in orders] == orders[0]
    assert all(sorted(order) == sorted(orders[0]) for order in orders)


def test_a_child_without_an_answer_is_a_problem() -> None:
    """Its last line of error output says what happened; else its last line is the answer."""
    assert measuring.last_answer("", "Traceback\nImportError: greenlet\n") == {
        "problem": "ImportError: greenlet"
    }
    assert measuring.last_answer('{"started": 1}\n{"count": 2}\n', "noise") == {"count": 2}


def test_why_pip_failed() -> None:
    """The line about the Python that is needed says more than that nothing was found."""
    output = "WARNING: x\nERROR: Requires-Python >=3.13\nERROR: No matching distribution\n"
    assert environments.why(output) == "ERROR: Requires-Python >=3.13"
    assert environments.why("WARNING: x\nERROR: no\n") == "ERROR: no"
    assert environments.why("") == "no reason given"


def test_every_peer_has_pins_and_an_adapter() -> None:
    """Each requirement but our own names one version."""
    for peer in PEERS:
        text = (environments.REQUIREMENTS / f"{peer.module}.txt").read_text("utf-8")
        pins = [line for line in text.splitlines() if line and not line.startswith("#")]
        assert pins
        assert peer is OURS or all("==" in pin for pin in pins)
        assert (environments.REQUIREMENTS.parent / f"{peer.module}.py").exists()


def test_cloned_rows_differ_where_they_are_told_to(tmp_path: Path) -> None:
    """One row becomes as many as wanted; a column that is left out gets the table's default."""
    file = tmp_path / "jobs.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE jobs (number INTEGER PRIMARY KEY, id TEXT, due REAL)")
        connection.execute("INSERT INTO jobs (id, due) VALUES ('job', 5)")
        connection.commit()
    child.clone(file, 3, {"jobs": {"number": "", "id": "template.id || n"}})
    with closing(sqlite3.connect(file)) as connection:
        rows = connection.execute("SELECT number, id, due FROM jobs ORDER BY number").fetchall()
    assert rows == [(1, "job", 5), (2, "job1", 5), (3, "job2", 5)]
    assert child.count_rows(file, "jobs WHERE due = 5") == 3


def test_jobs_are_counted_when_they_start() -> None:
    """The last one that is expected tells; what ran before is forgotten."""
    told: list[str] = []
    runs = child.Runs()
    runs.note(7)
    runs.expect(2, lambda: told.append("enough"))
    runs.note(0)
    assert not told
    runs.note(1)
    assert told == ["enough"]
    assert [index for index, _ in runs.started] == [0, 1]


def test_a_measure_says_for_whom_it_counts() -> None:
    """Of bare queues we must lead in what they do as we do."""
    against: dict[str, Measure] = {
        name: each for name, each in BY_NAME.items() if "bare queue" in each.against
    }
    assert sorted(against) == ["recovery", "schedule_100", "wake_p50", "wake_p99"]
