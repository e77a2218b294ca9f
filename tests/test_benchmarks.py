"""The benchmark: its references do what we do, its figures are right, and it reports a miss.

Nothing here is timed.
"""

from __future__ import annotations

import ast
import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from benchmarks import (
    __main__ as program,
)
from benchmarks import (
    children,
    disk,
    dispatching,
    figures,
    files,
    load,
    page,
    references,
    report,
    rounds,
    scheduling,
    waking,
)
from benchmarks.rounds import Group, Measured, Round, Row, Rules, Sample, Work, measure
from benchmarks.sizes import QUICK
from trio_alarms._store import _alarms, _native

TINY = attrs.evolve(
    QUICK, operations=5, concurrent_operations=12, callers=4, dispatched=7, deferred_transactions=3
)
ALARMS = (
    "SELECT host, tag, id, lifecycle, run_at, wake_at, retry_at, repeat_every, progress, attempts,"
    " parked, payload FROM trio_alarms_alarms ORDER BY tag, id"
)
HOSTS = "SELECT * FROM trio_alarms_hosts"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    """Work of a few operations, whose alarms have the same deadlines each time they are made."""
    now = files.now_ms()
    monkeypatch.setattr(files, "now_ms", lambda: now)
    return Work(tmp_path, tmp_path, TINY)


@pytest.fixture
def on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the temporary folder is on, take it for a disk."""
    set_mounts(tmp_path, monkeypatch, "ext4")


def set_mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Have one file system of a kind, which holds everything."""
    mounts = tmp_path / "mounts"
    mounts.write_text(f"something / {kind} rw 0 0\n", encoding="utf-8")
    monkeypatch.setattr(disk, "MOUNTS", mounts)


def read(path: Path, sql: str) -> list[tuple[Any, ...]]:
    """What a closed file holds."""
    with closing(sqlite3.connect(path)) as database:
        return database.execute(sql).fetchall()


def plain(sql: str) -> str:
    """A statement without its white space."""
    return re.sub(r"\s+", "", sql)


# The references


def test_the_references_are_short_and_import_nothing_of_ours() -> None:
    """They can be read in one go, and cannot lean on what they are compared with."""
    text = Path(references.__file__).read_text("utf-8")
    assert len(text.splitlines()) <= 120
    nodes = list(ast.walk(ast.parse(text)))
    modules = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module or "." for node in nodes if isinstance(node, ast.ImportFrom)]
    assert sorted(modules) == ["collections.abc", "os", "sqlite3", "trio"]


def test_the_references_have_our_tables(tmp_path: Path) -> None:
    """Tables, columns, checks and indices are the same, to the letter."""
    files.make_file(tmp_path / "ours.db")
    files.make_reference_file(tmp_path / "theirs.db").close()
    schema = "SELECT name, sql FROM sqlite_master WHERE sql NOT NULL ORDER BY name"
    ours = {name: plain(sql) for name, sql in read(tmp_path / "ours.db", schema)}
    # Ours also keeps its schema's version.
    del ours["trio_alarms_schema"]
    assert ours == {name: plain(sql) for name, sql in read(tmp_path / "theirs.db", schema)}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (_alarms.READ, references.READ),
        (_alarms.WRITE, references.WRITE),
        (_alarms.DELETE, references.DELETE),
        (_alarms.EARLIEST, references.EARLIEST),
        (_native.READ, references.READ_NATIVE),
        (_native.WRITE, references.WRITE_NATIVE),
    ],
)
def test_the_references_send_our_statements(ours: str, theirs: str) -> None:
    """What is compared is the work around them."""
    assert plain(ours) == plain(theirs)


def test_the_references_are_as_durable(tmp_path: Path) -> None:
    """A write-ahead log that is synced at every commit, as ours."""
    with closing(files.make_reference_file(tmp_path / "theirs.db")) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert database.execute("PRAGMA synchronous").fetchone() == (2,)


def test_scheduling_leaves_the_same_rows(work: Work) -> None:
    """By one caller: bare, threaded, and ours in both executors."""
    contestants = scheduling.SCHEDULE.contestants
    left = [left_by(contestant, work, name) for name, contestant in contestants.items()]
    assert len(left[0][0]) == 25
    assert all(each == left[0] for each in left)


def test_many_callers_leave_the_same_rows(work: Work) -> None:
    """By four callers: batched, and ours."""
    contestants = scheduling.CONCURRENT.contestants
    batched, ours = (left_by(contestants[name], work, name) for name in ("batched", "many callers"))
    assert len(batched[0]) == 32
    assert batched == ours


def test_a_transaction_block_leaves_the_same_rows(work: Work) -> None:
    """The note of the application's, and the alarm."""
    contestants = scheduling.BLOCK.contestants
    left = [left_by(contestants[name], work, name) for name in contestants]
    assert left[0] == left[1]
    notes = [read(path, "SELECT * FROM notes ORDER BY id") for path in files_in(work)]
    assert len(notes[0]) == 25
    assert notes[0] == notes[1]


def test_dispatch_leaves_nothing(work: Work) -> None:
    """One by one, concurrently and by hand: every alarm is gone."""
    for name, contestant in dispatching.DISPATCH.contestants.items():
        alarms, _hosts = left_by(contestant, work, name)
        assert alarms == [], name


def left_by(
    contestant: rounds.Contestant, work: Work, name: str
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """The alarms and the native alarm that a contestant leaves behind."""
    folder = work.folder / name
    folder.mkdir()
    assert contestant(attrs.evolve(work, folder=folder))["seconds"] > 0
    (path,) = folder.glob("*.db")
    return read(path, ALARMS), read(path, HOSTS)


def files_in(work: Work) -> list[Path]:
    """The databases of all contestants."""
    return sorted(work.folder.glob("*/*.db"))


def test_batched_callers_share_a_commit(tmp_path: Path) -> None:
    """What is wanted at the same time costs one commit."""
    database = files.make_reference_file(tmp_path / "batched.db")
    sent: list[str] = []
    database.set_trace_callback(sent.append)
    shares = [[alarm] for alarm in files.future_alarms(100)]
    trio.run(references.batched, database, shares)
    database.close()
    assert sent.count("COMMIT") == 1
    assert sum(text.startswith("INSERT INTO trio_alarms_alarms") for text in sent) == 100


# The disk


def test_a_folder_in_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """There a commit costs nothing; the program says so and measures nothing."""
    set_mounts(tmp_path, monkeypatch, "tmpfs")
    monkeypatch.setattr(program, "GROUPS", [group_of({"one": always(1.0)}, [])])
    assert program.main(["--output", str(tmp_path)]) == program.EXIT_BAD_USE
    assert f"{tmp_path} is on tmpfs" in capsys.readouterr().err


def test_the_file_system_is_that_of_the_nearest_mount(tmp_path: Path) -> None:
    """Of two on one point the later, and a name that only begins alike does not count."""
    near = tmp_path / "a b"
    near.mkdir()
    escaped = str(near).replace(" ", r"\040")
    mounts = disk.parse_mounts(
        f"disk / ext4 rw 0 0\nover {escaped} tmpfs rw 0 0\nlater {escaped} xfs rw 0 0\n"
    )
    assert disk.file_system_of(near, mounts) == "xfs"
    assert disk.file_system_of(tmp_path / "a", mounts) == "ext4"
    assert disk.file_system_of(near, []) == "unknown"


# Rounds and figures


def always(seconds: float) -> rounds.Contestant:
    """A contestant that takes so long."""
    return lambda _: {"seconds": seconds}


def group_of(contestants: dict[str, rounds.Contestant], rows: Sequence[Row]) -> Group:
    """A group called `made`."""
    return Group("made", contestants, rows)


def ratio(bound: float, *, wanted: float | None = None) -> Row:
    """A row that compares `ours` with `theirs`."""
    figure = rounds.speed("ours", "theirs")
    return Row("speed", figure, of="theirs", at_least=True, bound=bound, wanted=wanted)


def measured_of(group: Group, samples: Sequence[rounds.Samples]) -> Measured:
    """Rounds that have measured this."""
    return Measured(group, [Round(each, 100.0, 0.1) for each in samples], [])


def test_a_ratio_is_taken_within_its_round_and_the_median_counts() -> None:
    """A round in which all were slow changes nothing."""
    samples = [
        {"ours": {"seconds": 2.0}, "theirs": {"seconds": 1.0}},
        {"ours": {"seconds": 40.0}, "theirs": {"seconds": 30.0}},
        {"ours": {"seconds": 1.0}, "theirs": {"seconds": 1.0}},
    ]
    group = group_of({}, [ratio(0.7, wanted=0.9)])
    (line,) = figures.lines_of(measured_of(group, samples), 3)
    assert line.figures == [0.5, 0.75, 1.0]
    assert line.median == 0.75
    assert (line.verdict, line.wanted_met) == ("met", False)


@pytest.mark.parametrize(
    ("at_least", "bound", "verdict"),
    [(True, 1.0, "met"), (True, 1.1, "missed"), (False, 1.0, "met"), (False, 0.9, "missed")],
)
def test_a_bound_may_be_equalled_and_not_passed(
    at_least: bool,  # noqa: FBT001 - a parameter of the test
    bound: float,
    verdict: str,
) -> None:
    """In either direction."""
    row = Row("seconds", rounds.figure("ours", "seconds"), at_least=at_least, bound=bound)
    measured = measured_of(group_of({}, [row]), [{"ours": {"seconds": 1.0}}])
    assert [line.verdict for line in figures.lines_of(measured, 1)] == [verdict]


def test_too_few_rounds_are_no_measurement() -> None:
    """However good they are, the row counts as failed."""
    samples = [{"ours": {"seconds": 1.0}, "theirs": {"seconds": 1.0}}]
    lines = figures.lines_of(measured_of(group_of({}, [ratio(0.5)]), samples), 2)
    assert [line.verdict for line in lines] == ["not measured"]
    assert figures.failed(lines) == lines


def test_the_order_turns_about_from_round_to_round(tmp_path: Path) -> None:
    """So that nobody always comes after the same one."""
    order: list[str] = []

    def noting(name: str) -> Callable[[Work], Sample]:
        def contestant(work: Work) -> Sample:
            order.append(name)
            assert list(work.folder.iterdir()) == []
            return {"seconds": 1.0}

        return contestant

    group = group_of({"theirs": noting("theirs"), "ours": noting("ours")}, [ratio(0.5)])
    measured = measure(group, Rules(3, 3, None), TINY, tmp_path, lambda _: None)
    assert order == ["theirs", "ours", "ours", "theirs", "theirs", "ours"]
    assert len(measured.kept) == 3
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The loads of the rounds to come."""
    left: list[float] = []
    monkeypatch.setattr(rounds.LoadMeter, "read", lambda _: left.pop(0))
    monkeypatch.setattr(rounds, "probe", lambda _: 200.0)
    return left


def test_a_loaded_round_is_dropped_counted_and_run_again(
    tmp_path: Path, loads: list[float]
) -> None:
    """Only for its load, which is told."""
    loads += [0.1, 0.9, 0.5]
    told: list[str] = []
    group = group_of({"ours": always(1.0), "theirs": always(1.0)}, [ratio(0.5)])
    measured = measure(group, Rules(2, 9, 0.5), TINY, tmp_path, told.append)
    assert [each.load for each in measured.kept] == [0.1, 0.5]
    assert [each.load for each in measured.dropped] == [0.9]
    assert [text.endswith("dropped") for text in told] == [False, True, False]
    (line,) = figures.lines_of(measured, 2)
    assert (line.dropped, line.verdict) == (1, "met")


def test_a_machine_that_stays_loaded_is_given_up(tmp_path: Path, loads: list[float]) -> None:
    """After as many tries as may be made."""
    loads += [0.9] * 4
    measured = measure(group_of({}, [ratio(0.5)]), Rules(2, 4, 0.5), TINY, tmp_path, lambda _: None)
    assert (len(measured.kept), len(measured.dropped)) == (0, 4)


def test_load_is_what_others_compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk is none, and what we compute ourselves is taken off."""
    stat = tmp_path / "stat"
    monkeypatch.setattr(load, "_STAT", stat)
    stat.write_text("cpu 100 100 100 100 100 100 100 100 0 0\ncpu0 0\n", "ascii")
    meter = load.LoadMeter.begin()
    assert meter.read() == 0
    stat.write_text("cpu 100 100 100 9100 9100 100 100 100 0 0\ncpu0 0\n", "ascii")
    assert meter.read() == 0
    stat.write_text("cpu 1000100 100 100 9100 9100 100 100 100 0 0\ncpu0 0\n", "ascii")
    assert meter.read() > 1
    monkeypatch.setattr(load, "_our_seconds", lambda: meter.ours + 1e6)
    assert meter.read() == 0


def test_percentiles_are_values_that_were_measured() -> None:
    """The least that so many do not exceed."""
    assert waking.percentiles([float(value) for value in range(200, 0, -1)]) == {
        "p50": 100.0,
        "p99": 198.0,
    }
    assert waking.percentiles([3.0]) == {"p50": 3.0, "p99": 3.0}


# The program


@pytest.fixture
def two_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that keeps its bound, and one that does not."""
    contestants = {"ours": always(2.0), "theirs": always(1.0)}
    groups = [
        Group("kept", contestants, [ratio(0.5, wanted=0.6)]),
        Group("missed", contestants, [ratio(0.51)]),
    ]
    monkeypatch.setattr(program, "GROUPS", groups)
    monkeypatch.setattr(program, "draw_if_possible", lambda *_: None)
    monkeypatch.setattr(rounds.LoadMeter, "read", lambda _: 0.25)
    monkeypatch.setattr(rounds, "probe", lambda _: 200.0)


@pytest.mark.usefixtures("on_disk", "two_groups")
def test_a_missed_bound_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the table, on stderr and by the exit code of a full run."""
    assert program.main(["--output", str(tmp_path)]) == program.EXIT_MISSED
    told = capsys.readouterr()
    assert "1 of 2 rows miss their bound" in told.err
    kept, missed = (line for line in told.out.splitlines() if line.startswith("speed"))
    assert kept.startswith("speed    theirs   0.500  0.500\N{EN DASH}0.500   ≥ 0.5   ≥ 0.6     met")
    assert "MISSED" in missed
    assert "more than 0.5 CPUs busy were dropped and run again: none" in told.out


@pytest.mark.usefixtures("on_disk", "two_groups")
def test_bounds_do_not_count_in_a_quick_run_or_where_they_are_met(tmp_path: Path) -> None:
    """Its figures come of too little; and `--only` chooses groups."""
    assert program.main(["--output", str(tmp_path), "--quick"]) == 0
    assert program.main(["--output", str(tmp_path), "--only", "kep"]) == 0
    assert program.main(["--output", str(tmp_path), "--only", "other"]) == program.EXIT_BAD_USE


@pytest.mark.usefixtures("on_disk", "two_groups")
def test_a_run_is_read_again_as_it_was(tmp_path: Path) -> None:
    """With every round, and what each contestant took."""
    program.main(["--output", str(tmp_path), "--rounds", "2"])
    run = report.read_json(tmp_path / "full.json")
    assert [(line.group, line.verdict) for line in run.lines] == [
        ("kept", "met"),
        ("missed", "missed"),
    ]
    assert [each["samples"]["ours"] for each in run.rounds["kept"]["kept"]] == [
        {"seconds": 2.0}
    ] * 2
    report.write_json(run, tmp_path / "again.json")
    assert report.read_json(tmp_path / "again.json") == run


@pytest.mark.usefixtures("on_disk", "two_groups")
def test_the_page_shows_both_runs_between_its_marks(tmp_path: Path) -> None:
    """And nothing else of it changes."""
    program.main(["--output", str(tmp_path)])
    run = report.read_json(tmp_path / "full.json")
    text = page.text_of([run, run])
    assert "| measure | of | bound | we want | first run | second run |" in text
    assert text.count("0.500 **") == 0
    assert text.count("MISSED") == 2
    before = f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n"
    after = page.filled(before, text)
    assert after == f"before\n{page.BEGIN}\n\n{text}\n\n{page.END}\nafter\n"
    assert page.filled(after, text) == after
    with pytest.raises(ValueError, match="has no"):
        page.filled("no marks", text)


def test_our_page_has_the_marks() -> None:
    """So that the tables have a place."""
    text = page.PAGE.read_text("utf-8")
    assert page.filled(text, "new").count("new\n\n<!-- benchmark: end -->") == 1


def test_the_table_of_the_issue_is_whole() -> None:
    """Its sixteen rows; latency has two percentiles, growth four operations, idling two figures."""
    rows = [row for group in program.GROUPS for row in group.rows]
    assert len(rows) == 16 + 1 + 3 + 1
    names = [group.name for group in program.GROUPS]
    assert len(set(names)) == len(names)


# Children


async def test_statements_are_noted_inside_the_block_alone(tmp_path: Path) -> None:
    """Those of every connection that is opened in it."""
    connect = sqlite3.connect
    path = tmp_path / "noted.db"
    with children.statements_noted() as noted, closing(sqlite3.connect(path)) as database:
        database.execute("SELECT 1")
    assert noted == ["SELECT 1"]
    assert sqlite3.connect is connect


async def test_deferred_wakes_write_the_native_alarm_twice(work: Work) -> None:
    """Once for the guard and once for the deadlines, as long as no guard is renewed (R18)."""
    counted = await children.deferred(str(work.folder / "deferred.db"), "3")
    assert 2 <= counted["writes"] <= 2 + counted["seconds"]
