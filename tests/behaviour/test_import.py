from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.test_effect_cf import COUNTING_SHAPES, LIVING_SHAPES, SHAPES
from trio_alarms import (
    Alarm,
    AlarmDue,
    AlarmService,
    AlarmStatus,
    InvalidAlarmRefError,
    InvalidScheduleConfigurationError,
    StorageOperationError,
    StorageOptions,
    import_effect_cf,
    open_host,
    process_due,
)
from trio_alarms import _import as importing
from trio_alarms._store._session import Session
from trio_alarms.testing import open_test_host

ROOT = Path(__file__).parents[2]
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
T = int(EPOCH.timestamp() * 1000)
HOUR = 3_600_000

# A process that imports, and is killed at a point of its own choice.
KILLED = """
import os, signal, sys, trio
from trio_alarms import import_effect_cf, _import as importing
from trio_alarms._store._session import Session

def kill(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def kill_after(function):
    def call(*given):
        function(*given)
        kill()
    return call

point = sys.argv[2]
if point == "before the old tables are dropped":
    importing.drop_effect_cf = kill
elif point == "before the commit":
    Session.commit = kill
elif point == "after the commit":
    Session.commit = kill_after(Session.commit)
elif point == "after it has returned":
    pass
trio.run(import_effect_cf, sys.argv[1])
kill()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where effect-cf has its file."""
    return tmp_path / "worker.db"


def _execute(path: Path, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return connection.execute(sql, parameters).fetchall()


def _write(path: Path, shape: str, *alarms: dict[str, Any]) -> None:
    """A file of effect-cf's, with what its shape has columns for."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(SHAPES[shape])
        for alarm in alarms:
            stored = {
                "storage_id": f"effect-cf-alarm:{alarm['tag']}:{alarm['alarm_id']}",
                "run_at": T,
                "repeat_every_ms": None,
                "payload": "null",
                **alarm,
            }
            counts = stored.pop("counts", None)
            _insert(connection, "effect_cf_scheduled_alarms", stored)
            if counts is not None:
                counted = {
                    "storage_id": stored["storage_id"],
                    "revision": "f3b1c2d4-0000-4000-8000-000000000000",
                    "attempts": 0,
                    "parked": 0,
                    "retry_at": None,
                    "progress": -1,
                    **counts,
                }
                _insert(connection, "effect_cf_alarm_attempts", counted)


def _insert(connection: sqlite3.Connection, table: str, values: dict[str, Any]) -> None:
    columns = ", ".join(values)
    places = ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({places})", list(values.values()))


def _dump(path: Path) -> list[str]:
    """Everything that is stored: schema and rows."""
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


def _contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(directory.iterdir())}


def _effect_cf_tables(path: Path) -> list[str]:
    found = _execute(path, "SELECT name FROM sqlite_master WHERE name LIKE '%effect_cf%'")
    return [name for (name,) in found]


def _host_row(path: Path, name: str = "default") -> tuple[int, int | None] | None:
    found = _execute(
        path, "SELECT managed, native_alarm - ? FROM trio_alarms_hosts WHERE name = ?", T, name
    )
    return found[0] if found else None


def _alarm(id: str, **values: Any) -> dict[str, Any]:
    return {"tag": "job", "alarm_id": id, **values}


class Jobs(AlarmService, key="app/jobs"):
    """What the application was before, in Python."""

    job = Alarm(dict[str, int] | None, tag="job")


# What is taken over.


@pytest.mark.parametrize("shape", SHAPES)
async def test_alarms_of_every_shape_are_taken_over(
    path: Path, mock_clock: object, shape: str
) -> None:
    """Identity, deadline, repeat and payload are kept from every historical table (R63)."""
    _write(
        path,
        shape,
        _alarm("once", run_at=T + 5_000, payload='{"n":1}'),
        _alarm("repeating", run_at=T + 3_000, repeat_every_ms=90_000),
        {"tag": "other/tag", "alarm_id": "once", "run_at": T - 7_000, "payload": "[1,2]"},
    )
    assert await import_effect_cf(path) == 3
    assert _effect_cf_tables(path) == []
    assert _host_row(path) == (1, -7_000)
    async with open_test_host(path, epoch=EPOCH) as harness:
        records = await harness.host.scheduler.list_alarms()
        assert [(record.ref.tag, record.ref.id, record.payload) for record in records] == [
            ("other/tag", "once", "[1,2]"),
            ("job", "repeating", "null"),
            ("job", "once", '{"n":1}'),
        ]
        assert [(record.status.run_at - EPOCH).total_seconds() for record in records] == [-7, 3, 5]
        assert [record.status.repeat_every for record in records] == [
            None,
            timedelta(seconds=90),
            None,
        ]
        assert {record.status.lifecycle for record in records} == {"automatic"}
        assert {record.status.attempts for record in records} == {0}
        assert {record.status.progress for record in records} == {None}


@pytest.mark.parametrize("shape", COUNTING_SHAPES)
async def test_attempts_of_every_shape_are_taken_over(
    path: Path, mock_clock: object, shape: str
) -> None:
    """Attempts, parking, retry deadline and progress are kept (R63)."""
    _write(
        path,
        shape,
        _alarm("backs off", counts={"attempts": 3, "retry_at": T + 4_000, "progress": 7}),
        _alarm("parked", counts={"attempts": 8, "parked": 1, "retry_at": T + HOUR}),
        _alarm("fresh", run_at=T + 1_000),
    )
    assert await import_effect_cf(path) == 3
    assert _host_row(path) == (1, 1_000)
    async with open_test_host(path, epoch=EPOCH) as harness:
        scheduler = harness.host.scheduler
        statuses = {r.ref.id: r.status for r in await scheduler.list_alarms()}
        assert statuses["backs off"] == AlarmStatus(
            run_at=EPOCH,
            retry_at=EPOCH + timedelta(seconds=4),
            wake_at=EPOCH + timedelta(seconds=4),
            attempts=3,
            parked=False,
            lifecycle="automatic",
            repeat_every=None,
            progress=7,
        )
        parked = statuses["parked"]
        assert (parked.attempts, parked.parked, parked.progress) == (8, True, None)
        assert parked.wake_at == EPOCH + timedelta(hours=1)
        assert (statuses["fresh"].attempts, statuses["fresh"].progress) == (0, None)
        # A replayed notice changes nothing; the cursor was taken over.
        again = await scheduler.schedule_alarm("job", "backs off", after=60, progress=7)
        assert again == statuses["backs off"]


@pytest.mark.parametrize("shape", LIVING_SHAPES)
async def test_lifecycles_of_every_shape_are_taken_over(
    path: Path, mock_clock: object, shape: str
) -> None:
    """A manual alarm stays one (R32, R63)."""
    _write(path, shape, _alarm("a", lifecycle="manual"), _alarm("b", lifecycle="automatic"))
    assert await import_effect_cf(path) == 2
    found = _execute(path, "SELECT id, lifecycle FROM trio_alarms_alarms ORDER BY id")
    assert found == [("a", "manual"), ("b", "automatic")]


async def test_what_was_taken_over_runs(path: Path, mock_clock: object) -> None:
    """Imported alarms are dispatched like any other, with their payloads decoded (R63)."""
    _write(
        path,
        "lifecycle",
        _alarm("overdue", run_at=T - HOUR, payload='{"n":1}'),
        _alarm("repeating", run_at=T, repeat_every_ms=60_000),
        _alarm("backs off", counts={"attempts": 1, "retry_at": T + 4_000}),
        _alarm("undecodable", payload='"text"'),
    )
    handled: list[tuple[str, Any, int]] = []

    async def note(event: AlarmDue[Any]) -> None:
        handled.append((event.id, event.payload, event.attempts))

    await import_effect_cf(path)
    registration = Jobs.handlers(Jobs.job.handled_by(note))
    async with open_test_host(path, epoch=EPOCH, alarms=registration) as harness:
        await harness.advance(0)
        assert handled == [("overdue", {"n": 1}, 0), ("repeating", None, 0)]
        await harness.advance(60)
        assert handled[2:] == [("backs off", None, 1), ("repeating", None, 0)]
        (kept,) = [r for r in await harness.host.scheduler.list_alarms() if r.ref.id[0] == "u"]
        assert kept.payload == '"text"'
        assert kept.status.attempts > 0


async def test_the_host_becomes_managed(path: Path, mock_clock: object) -> None:
    """An import that took over an alarm hands the native alarm to the scheduler (R35, R63)."""
    async with open_host(path, driver=False) as host:
        await host.native_alarm.set(host.now() + timedelta(seconds=1))
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SHAPES["first"])
    assert await import_effect_cf(path) == 0
    assert _host_row(path) == (0, 1_000)
    _write(path, "first", _alarm("a", run_at=T + 9_000))
    assert await import_effect_cf(path) == 1
    assert _host_row(path) == (1, 9_000)


async def test_tables_without_alarms_are_dropped(path: Path, mock_clock: object) -> None:
    """An import of nothing returns 0 and leaves the host unmanaged (R35, R63)."""
    _write(path, "lifecycle")
    assert await import_effect_cf(path) == 0
    assert _effect_cf_tables(path) == []
    assert _host_row(path) is None


async def test_a_second_import_finds_nothing(path: Path, mock_clock: object) -> None:
    """The old tables are gone, so nothing is taken over twice (R63)."""
    _write(path, "attempts", _alarm("a"))
    assert await import_effect_cf(path) == 1
    before = _dump(path)
    assert await import_effect_cf(path) == 0
    assert _dump(path) == before


@pytest.mark.parametrize("journal_mode", ["delete", "wal"])
async def test_without_the_tables_nothing_is_written(
    path: Path, mock_clock: object, journal_mode: str
) -> None:
    """A file of somebody else's stays as it is, to the byte (R63)."""
    _execute(path, f"PRAGMA journal_mode = {journal_mode}")
    _execute(path, "CREATE TABLE app (x)")
    before = _contents(path.parent)
    assert await import_effect_cf(path) == 0
    assert _contents(path.parent) == before


async def test_the_applications_tables_stay(path: Path, mock_clock: object) -> None:
    """Only effect-cf's own tables are dropped, with their indices (R63)."""
    _write(path, "ordered attempts", _alarm("a"))
    _execute(path, "CREATE TABLE effect_cf_notes (x)")
    _execute(path, "CREATE INDEX notes ON effect_cf_notes (x)")
    await import_effect_cf(path)
    assert sorted(_effect_cf_tables(path)) == ["effect_cf_notes"]


async def test_alarms_join_those_that_the_host_has(path: Path, mock_clock: object) -> None:
    """The native alarm is reconciled over both (R20, R63)."""
    async with open_test_host(path, epoch=EPOCH) as harness:
        await harness.host.scheduler.schedule_alarm("job", "ours", after=5)
    _write(path, "wakes", _alarm("theirs", run_at=T + 9_000))
    assert await import_effect_cf(path) == 1
    assert _host_row(path) == (1, 5_000)
    _write(path, "wakes", _alarm("earlier", run_at=T + 1_000))
    assert await import_effect_cf(path) == 1
    assert _host_row(path) == (1, 1_000)
    found = _execute(path, "SELECT id FROM trio_alarms_alarms ORDER BY run_at")
    assert found == [("earlier",), ("ours",), ("theirs",)]


async def test_an_import_is_for_one_host(path: Path, mock_clock: object) -> None:
    """The alarms become those of the host that is named, and no other is in the way (R63)."""
    async with open_test_host(path, epoch=EPOCH) as harness:
        await harness.host.scheduler.schedule_alarm("job", "a", after=5)
    _write(path, "wakes", _alarm("a", run_at=T + 9_000))
    assert await import_effect_cf(path, name="other") == 1
    assert _host_row(path) == (1, 5_000)
    assert _host_row(path, "other") == (1, 9_000)


async def test_revisions_are_new(path: Path, mock_clock: object) -> None:
    """Imported rows have random revisions like all others (R20, R63)."""
    _write(path, "attempts", *(_alarm(str(n), counts={}) for n in range(50)))
    await import_effect_cf(path)
    revisions = {r for (r,) in _execute(path, "SELECT revision FROM trio_alarms_alarms")}
    assert len(revisions) == 50
    assert {len(revision) for revision in revisions} == {16}


async def test_what_is_parked_already_is_not_reported(
    path: Path, mock_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    """An import begins no parked episode (R16, R63)."""
    _write(path, "attempts", _alarm("a", counts={"attempts": 8, "parked": 1}))
    await import_effect_cf(path)
    assert caplog.records == []


async def test_it_works_without_a_mock_clock(path: Path) -> None:
    """An import runs in a worker thread in a process of its own (R63)."""
    _write(path, "wakes", _alarm("a"))
    assert await import_effect_cf(str(path)) == 1


# What is refused.


async def _refusal(path: Any, **options: Any) -> StorageOperationError:
    with pytest.raises(StorageOperationError) as caught:
        await import_effect_cf(path, **options)
    assert caught.value.outcome == "rolled back"
    return caught.value


async def test_an_alarm_that_the_host_has_already_changes_nothing(
    path: Path, mock_clock: object
) -> None:
    """A `{tag, id}` that is there is an error that names it, on neither side a change (R63)."""
    async with open_test_host(path, epoch=EPOCH) as harness:
        await harness.host.scheduler.schedule_alarm("job", "b", after=5, payload="secret")
    _write(path, "wakes", *(_alarm(id, payload='"secret"') for id in "abc"))
    before = _dump(path)
    error = await _refusal(path)
    assert error.operation == "import"
    assert "'job'" in str(error)
    assert "'b'" in str(error)
    assert "secret" not in str(error)
    assert _dump(path) == before


async def test_an_alarm_that_cannot_be_kept_leaves_the_file_as_it_is(
    path: Path, mock_clock: object
) -> None:
    """What we cannot represent is named, and not even our tables are created (R63)."""
    _write(path, "wakes", _alarm("a"), _alarm("odd", run_at="soon", payload='"secret"'))
    before = _contents(path.parent)
    error = await _refusal(path)
    assert "'odd'" in str(error)
    assert "secret" not in str(error)
    assert _contents(path.parent) == before


async def test_tables_of_another_shape_are_refused(path: Path, mock_clock: object) -> None:
    """A table of that name that effect-cf never wrote is left alone (R63)."""
    _execute(path, "CREATE TABLE effect_cf_scheduled_alarms (x)")
    before = _contents(path.parent)
    await _refusal(path)
    assert _contents(path.parent) == before


@pytest.mark.parametrize("name", ["", "x" * 129, "a\0b", 5, None])
async def test_a_bad_host_name_is_refused(path: Path, mock_clock: object, name: Any) -> None:
    """Names follow the rules of hosts, before anything is touched (R62)."""
    _write(path, "wakes", _alarm("a"))
    before = _contents(path.parent)
    with pytest.raises(InvalidAlarmRefError, match="name"):
        await import_effect_cf(path, name=name)
    assert _contents(path.parent) == before


@pytest.mark.parametrize("database", [None, 5, b"worker.db", "", "a\0b"])
async def test_what_is_no_path_is_refused(mock_clock: object, database: Any) -> None:
    """A database is a path (api: Errors)."""
    with pytest.raises(InvalidScheduleConfigurationError, match="database"):
        await import_effect_cf(database)


class Spelling(os.PathLike[str]):
    """A path that is neither a str nor a `Path`."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __fspath__(self) -> str:
        return self._path


@pytest.mark.parametrize("kind", [str, Path, Spelling])
async def test_a_missing_file_is_not_created(
    path: Path, mock_clock: object, kind: type[Any]
) -> None:
    """An import is of a file that is there (R60, R63)."""
    for missing in (path, path.parent / "no" / "such.db", path.parent / ("x" * 300)):
        error = await _refusal(kind(missing))
        assert isinstance(error.__cause__, OSError)
        assert error.operation == "open"
    assert list(path.parent.iterdir()) == []


async def test_memory_has_nothing_to_take_over(mock_clock: object) -> None:
    """A private file is new by definition (R63)."""
    assert isinstance((await _refusal(":memory:")).__cause__, FileNotFoundError)


async def test_an_open_host_is_refused(path: Path, mock_clock: object) -> None:
    """An import holds the host's lock (R62, R63)."""
    _write(path, "wakes", _alarm("a"))
    async with open_host(path, driver=False):
        error = await _refusal(path)
        assert error.operation == "lock"
        assert str(os.getpid()) in str(error)
        assert len(_effect_cf_tables(path)) > 0
    assert await import_effect_cf(path) == 1


async def test_another_host_of_the_file_may_be_open(path: Path, mock_clock: object) -> None:
    """Whatever its `StorageOptions` are: an import has none of its own (R62, R63)."""
    _write(path, "wakes", _alarm("a", run_at=T + 1_000))
    storage = StorageOptions(executor="inline", busy_timeout=1)
    async with open_host(path, name="other", storage=storage) as other:
        await other.scheduler.schedule_alarm("job", "a", after=60)
        assert await import_effect_cf(path) == 1
        assert await other.scheduler.cancel_alarm("job", "a")
    assert _host_row(path) == (1, 1_000)


async def test_inside_a_block_of_the_same_file_it_does_not_wait_for_ever(
    path: Path, autojump_clock: object
) -> None:
    """An import cannot have the turn that its own task keeps (R12)."""
    _write(path, "wakes", _alarm("a"))
    async with open_host(path, name="other") as other:
        async with other.scheduler.transaction():
            error = await _refusal(path)
        assert "turn" in str(error)
        assert await import_effect_cf(path) == 1


# All of it, or nothing.


@pytest.mark.parametrize("point", ["drop_effect_cf", "commit", "put"])
async def test_a_failure_in_the_middle_changes_nothing(
    path: Path, mock_clock: object, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """One transaction: whatever fails, both sides are as they were (R63)."""
    async with open_test_host(path, epoch=EPOCH) as harness:
        await harness.host.scheduler.schedule_alarm("job", "ours", after=5)
    _write(path, "lifecycle", *(_alarm(id) for id in "abc"))
    before = _dump(path)
    calls = 0

    def fail(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == (2 if point == "put" else 1):
            raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(importing if point == "drop_effect_cf" else Session, point, fail)
        error = await _refusal(path)
    assert isinstance(error.__cause__, sqlite3.OperationalError)
    assert _dump(path) == before
    assert await import_effect_cf(path) == 3


def _run_killed(path: Path, point: str) -> int:
    return subprocess.run(
        [sys.executable, "-c", KILLED, str(path), point],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    ).returncode


@pytest.mark.parametrize(
    ("point", "imported"),
    [
        ("before the old tables are dropped", False),
        ("before the commit", False),
        ("after the commit", True),
        ("after it has returned", True),
    ],
)
async def test_a_kill_leaves_all_of_it_or_nothing(
    path: Path, mock_clock: object, point: str, *, imported: bool
) -> None:
    """A process that dies in an import leaves the old tables, or the new rows (R63)."""
    _write(path, "lifecycle", *(_alarm(id) for id in "abc"))
    assert _run_killed(path, point) == -signal.SIGKILL
    assert bool(_effect_cf_tables(path)) is not imported
    assert await import_effect_cf(path) == (0 if imported else 3)
    assert len(_execute(path, "SELECT * FROM trio_alarms_alarms")) == 3
    assert _host_row(path) == (1, 0)


async def test_a_cancelled_import_has_changed_nothing(path: Path, mock_clock: object) -> None:
    """Wherever it is cancelled: what raises `Cancelled` has left the old tables (R63)."""
    assert await _import_and_cancel(path, range(25)) == {0, 1}


async def test_an_import_that_is_cancelled_beside_a_thread_has_changed_nothing(path: Path) -> None:
    """With a worker thread, too, it is all of it or nothing (R63)."""
    assert 0 in await _import_and_cancel(path, range(0, 1000, 40))


async def _import_and_cancel(path: Path, delays: range) -> set[int]:
    """Cancel an import after each number of checkpoints; what it had imported by then."""
    outcomes = set()
    for checkpoints in delays:
        _remove(path)
        _write(path, "lifecycle", _alarm("a"))
        imported = 0
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_after, scope, checkpoints)
                imported = await import_effect_cf(path)
                nursery.cancel_scope.cancel()
        outcomes.add(imported)
        assert bool(_effect_cf_tables(path)) is (imported == 0)
        assert await import_effect_cf(path) == 1 - imported
    return outcomes


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


async def _cancel_after(scope: trio.CancelScope, checkpoints: int) -> None:
    for _ in range(checkpoints):
        await trio.lowlevel.checkpoint()
    scope.cancel()


# While another process has the file.


async def test_another_processs_lock_is_waited_for_without_blocking(
    path: Path, autojump_clock: object
) -> None:
    """The loop goes on meanwhile, and the import can be cancelled (R11)."""
    _write(path, "wakes", _alarm("a"))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with trio.move_on_after(1) as scope:
            await import_effect_cf(path)
        assert scope.cancelled_caught
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_commit_after, 2, other)
            assert await import_effect_cf(path) == 1
    assert trio.current_time() == pytest.approx(3, abs=0.1)


async def test_another_processs_lock_is_not_waited_for_longer_than_the_busy_timeout(
    path: Path, autojump_clock: object
) -> None:
    """The error has SQLite's own as its cause (R11, R60)."""
    _write(path, "wakes", _alarm("a"))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        error = await _refusal(path)
    assert isinstance(error.__cause__, sqlite3.OperationalError)
    assert trio.current_time() == pytest.approx(5, abs=0.1)


async def _commit_after(seconds: float, connection: sqlite3.Connection) -> None:
    await trio.sleep(seconds)
    connection.execute("COMMIT")


async def test_a_log_that_was_not_checkpointed_is_read(path: Path, mock_clock: object) -> None:
    """Rows that only a write-ahead log holds, as a killed process leaves it, count (R63)."""
    _write(path, "wakes", _alarm("a"))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode = wal")
        other.execute("PRAGMA wal_autocheckpoint = 0")
        other.execute("UPDATE effect_cf_scheduled_alarms SET alarm_id = 'b', storage_id = 'b'")
        copy = path.parent / "copy.db"
        shutil.copy(path, copy)
        shutil.copy(f"{path}-wal", f"{copy}-wal")
    assert await import_effect_cf(copy) == 1
    assert _execute(copy, "SELECT id FROM trio_alarms_alarms") == [("b",)]


async def test_the_file_becomes_a_host_at_once(path: Path, mock_clock: object) -> None:
    """What a takeover looks like in an application: import, open, run (R63)."""
    _write(path, "wakes", _alarm("a", run_at=T - 1))
    handled: list[str] = []

    async def note(event: AlarmDue[Any]) -> None:
        handled.append(event.id)

    await import_effect_cf(path)
    async with open_test_host(path, epoch=EPOCH, alarms=process_due(note), driver=True) as harness:
        await harness.settle()
    assert handled == ["a"]
