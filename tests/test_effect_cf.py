from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest

from trio_alarms._errors import StorageOperationError
from trio_alarms._model import AlarmRef, AlarmRow
from trio_alarms._store._alarms import read, write
from trio_alarms._store._effect_cf import drop_effect_cf, has_effect_cf_tables, read_effect_cf
from trio_alarms._store._schema import migrate
from trio_alarms._time import MAX_DURATION_MS, MAX_INSTANT_MS, MIN_INSTANT_MS

T = 1_700_000_000_000
HOUR = 3_600_000
MAX_JAVASCRIPT_DATE = 8_640_000_000_000_000

# The tables as effect-cf's releases created them.
FIRST_ALARMS = """
CREATE TABLE effect_cf_scheduled_alarms (
  storage_id TEXT PRIMARY KEY,
  alarm_id TEXT NOT NULL,
  tag TEXT NOT NULL,
  run_at INTEGER NOT NULL,
  repeat_every_ms INTEGER,
  payload TEXT NOT NULL
);
CREATE INDEX idx_effect_cf_scheduled_alarms_run_at_storage_id
  ON effect_cf_scheduled_alarms (run_at, storage_id);
"""
WAKING_ALARMS = """
CREATE TABLE effect_cf_scheduled_alarms (
  storage_id TEXT PRIMARY KEY,
  alarm_id TEXT NOT NULL,
  tag TEXT NOT NULL,
  run_at INTEGER NOT NULL,
  wake_at INTEGER NOT NULL DEFAULT 0,
  repeat_every_ms INTEGER,
  payload TEXT NOT NULL
);
CREATE INDEX idx_effect_cf_scheduled_alarms_wake_at_storage_id
  ON effect_cf_scheduled_alarms (wake_at, storage_id);
"""
LIVING_ALARMS = """
CREATE TABLE effect_cf_scheduled_alarms (
  storage_id TEXT PRIMARY KEY,
  alarm_id TEXT NOT NULL,
  tag TEXT NOT NULL,
  lifecycle TEXT NOT NULL DEFAULT 'automatic',
  run_at INTEGER NOT NULL,
  wake_at INTEGER NOT NULL DEFAULT 0,
  repeat_every_ms INTEGER,
  payload TEXT NOT NULL
);
CREATE INDEX idx_effect_cf_scheduled_alarms_lifecycle_wake_at_storage_id
  ON effect_cf_scheduled_alarms (lifecycle, wake_at, storage_id);
"""
ADD_LIFECYCLE = (
    "ALTER TABLE effect_cf_scheduled_alarms ADD COLUMN lifecycle TEXT NOT NULL DEFAULT 'automatic';"
)
ADD_WAKE_AT = (
    "ALTER TABLE effect_cf_scheduled_alarms ADD COLUMN wake_at INTEGER NOT NULL DEFAULT 0;"
)
ORDERED_ATTEMPTS = """
CREATE TABLE effect_cf_alarm_attempts (
  storage_id TEXT PRIMARY KEY,
  revision TEXT NOT NULL,
  attempts INTEGER NOT NULL,
  parked INTEGER NOT NULL,
  retry_at INTEGER,
  ordered INTEGER NOT NULL DEFAULT 0,
  progress INTEGER NOT NULL
);
CREATE INDEX idx_effect_cf_alarm_attempts_ordered
  ON effect_cf_alarm_attempts (storage_id) WHERE ordered = 1;
"""
ATTEMPTS = """
CREATE TABLE effect_cf_alarm_attempts (
  storage_id TEXT PRIMARY KEY,
  revision TEXT NOT NULL,
  attempts INTEGER NOT NULL,
  parked INTEGER NOT NULL,
  retry_at INTEGER,
  progress INTEGER NOT NULL
);
"""
SHAPES = {
    "first": FIRST_ALARMS,
    "ordered attempts": FIRST_ALARMS + ORDERED_ATTEMPTS,
    "attempts": FIRST_ALARMS + ATTEMPTS,
    "wakes": WAKING_ALARMS + ATTEMPTS,
    "wakes added": FIRST_ALARMS + ATTEMPTS + ADD_WAKE_AT,
    "lifecycle": LIVING_ALARMS + ATTEMPTS,
    "lifecycle added to wakes": WAKING_ALARMS + ATTEMPTS + ADD_LIFECYCLE,
    "lifecycle and wakes added": FIRST_ALARMS + ATTEMPTS + ADD_LIFECYCLE + ADD_WAKE_AT,
    "all but attempts": LIVING_ALARMS,
}
COUNTING_SHAPES = [name for name, shape in SHAPES.items() if "alarm_attempts" in shape]
LIVING_SHAPES = [name for name, shape in SHAPES.items() if "lifecycle TEXT" in shape]


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    """A connection inside the transaction of an import."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as opened:
        yield opened


def _make(connection: sqlite3.Connection, shape: str) -> None:
    connection.executescript(SHAPES[shape])
    connection.execute("BEGIN IMMEDIATE")


def _storage_id(tag: object, id: object) -> str:
    return f"effect-cf-alarm:{tag}:{id}"


def _insert(connection: sqlite3.Connection, table: str, values: dict[str, Any]) -> None:
    places = ", ".join("?" * len(values))
    connection.execute(
        f"INSERT INTO {table} ({', '.join(values)}) VALUES ({places})", list(values.values())
    )


def _add_alarm(connection: sqlite3.Connection, tag: object, id: object, **values: object) -> None:
    alarm: dict[str, Any] = {
        "storage_id": _storage_id(tag, id),
        "alarm_id": id,
        "tag": tag,
        "run_at": T,
        "repeat_every_ms": None,
        "payload": "null",
    }
    _insert(connection, "effect_cf_scheduled_alarms", alarm | values)


def _add_attempts(connection: sqlite3.Connection, tag: str, id: str, **values: object) -> None:
    attempts: dict[str, Any] = {
        "storage_id": _storage_id(tag, id),
        "revision": "f3b1c2d4-0000-4000-8000-000000000000",
        "attempts": 0,
        "parked": 0,
        "retry_at": None,
        "progress": -1,
    }
    _insert(connection, "effect_cf_alarm_attempts", attempts | values)


def _read_one(connection: sqlite3.Connection) -> AlarmRow:
    (row,) = read_effect_cf(connection)
    return row


def _refusal(connection: sqlite3.Connection) -> str:
    changes = connection.total_changes
    with pytest.raises(StorageOperationError) as caught:
        read_effect_cf(connection)
    assert caught.value.operation == "import"
    assert caught.value.outcome == "rolled back"
    assert connection.total_changes == changes
    return str(caught.value)


def test_a_file_without_the_tables_has_nothing_to_take_over(
    connection: sqlite3.Connection,
) -> None:
    """Only effect-cf's table of alarms counts (R63)."""
    assert not has_effect_cf_tables(connection)
    connection.executescript(
        ATTEMPTS + "CREATE VIEW effect_cf_scheduled_alarms AS SELECT 1 AS storage_id"
    )
    assert not has_effect_cf_tables(connection)


@pytest.mark.parametrize("shape", SHAPES)
def test_an_alarm_is_read_from_every_shape(connection: sqlite3.Connection, shape: str) -> None:
    """Identity, deadline, repeat and payload are kept from every historical table (R63)."""
    _make(connection, shape)
    assert has_effect_cf_tables(connection)
    assert read_effect_cf(connection) == []
    payload = '{"user":"é","n":[1,2.5,null]}'
    _add_alarm(connection, "app/expire", "s:1", payload=payload, repeat_every_ms=60_000)
    row = _read_one(connection)
    assert row == AlarmRow(
        ref=AlarmRef("app/expire", "s:1"),
        lifecycle="automatic",
        run_at=T,
        wake_at=T,
        retry_at=None,
        repeat_every=60_000,
        progress=-1,
        attempts=0,
        parked=False,
        revision=row.revision,
        payload=payload,
    )


@pytest.mark.parametrize("shape", COUNTING_SHAPES)
def test_attempts_are_read_from_every_shape(connection: sqlite3.Connection, shape: str) -> None:
    """Attempts, parking, retry deadline and progress are kept (R63)."""
    _make(connection, shape)
    _add_alarm(connection, "job", "a")
    _add_attempts(connection, "job", "a", attempts=3, retry_at=T + 4_000, progress=7)
    _add_alarm(connection, "job", "b", run_at=T + 2 * HOUR)
    _add_attempts(connection, "job", "b", attempts=8, parked=1, retry_at=T + HOUR)
    _add_alarm(connection, "job", "c")
    backing_off, parked, fresh = read_effect_cf(connection)
    assert (backing_off.attempts, backing_off.parked) == (3, False)
    assert (backing_off.retry_at, backing_off.wake_at) == (T + 4_000, T + 4_000)
    assert backing_off.progress == 7
    assert (parked.attempts, parked.parked, parked.progress) == (8, True, -1)
    assert (parked.retry_at, parked.wake_at) == (T + HOUR, T + 2 * HOUR)
    assert (fresh.attempts, fresh.parked, fresh.retry_at, fresh.progress) == (0, False, None, -1)


@pytest.mark.parametrize("shape", LIVING_SHAPES)
def test_the_lifecycle_is_read_from_every_shape(connection: sqlite3.Connection, shape: str) -> None:
    """A manual alarm stays one (R63)."""
    _make(connection, shape)
    _add_alarm(connection, "job", "a", lifecycle="automatic")
    _add_alarm(connection, "job", "b", lifecycle="manual")
    assert [row.lifecycle for row in read_effect_cf(connection)] == ["automatic", "manual"]


def test_a_manual_alarm_keeps_nothing_of_an_automatic_one(connection: sqlite3.Connection) -> None:
    """A manual alarm has no repeat, progress, attempts, parking or retry (R5, R63)."""
    _make(connection, "lifecycle")
    _add_alarm(connection, "job", "a", lifecycle="manual", repeat_every_ms=60_000)
    _add_attempts(connection, "job", "a", attempts=8, parked=1, retry_at=T + HOUR, progress=3)
    row = _read_one(connection)
    assert (row.repeat_every, row.progress, row.attempts) == (None, -1, 0)
    assert (row.parked, row.retry_at, row.wake_at) == (False, None, T)


def test_a_stored_wake_is_computed_anew(connection: sqlite3.Connection) -> None:
    """The wake follows from the deadlines, whatever an older release left there (R3, R63)."""
    _make(connection, "wakes")
    _add_alarm(connection, "job", "a", wake_at=0)
    _add_alarm(connection, "job", "b", wake_at=T + HOUR, run_at=-5)
    _add_attempts(connection, "job", "b", attempts=1, retry_at=0)
    assert [row.wake_at for row in read_effect_cf(connection)] == [T, 0]


def test_every_alarm_gets_a_revision_of_its_own(connection: sqlite3.Connection) -> None:
    """Revisions are new and random (R20, R63)."""
    _make(connection, "first")
    for id in "ab":
        _add_alarm(connection, "job", id)
    revisions = [row.revision for row in read_effect_cf(connection) + read_effect_cf(connection)]
    assert len(set(revisions)) == 4
    assert {len(revision) for revision in revisions} == {16}


def test_attempts_of_an_alarm_that_is_gone_are_passed_over(connection: sqlite3.Connection) -> None:
    """An orphaned count is no alarm (R63)."""
    _make(connection, "attempts")
    _add_attempts(connection, "job", "gone", attempts=3)
    _add_alarm(connection, "job", "a")
    assert _read_one(connection).ref == AlarmRef("job", "a")


@pytest.mark.parametrize(
    ("stored", "kept"),
    [
        (T + 0.25, T + 1),
        (-1, -1),
        (str(T), T),
        (MAX_INSTANT_MS, MAX_INSTANT_MS),
        (MAX_JAVASCRIPT_DATE, MAX_INSTANT_MS),
        (1e300, MAX_INSTANT_MS),
        (-MAX_JAVASCRIPT_DATE, MIN_INSTANT_MS),
    ],
)
def test_an_instant_is_rounded_up_and_bounded(
    connection: sqlite3.Connection, stored: object, kept: int
) -> None:
    """Nothing fires early, and what is beyond our last instant is due at that (R63)."""
    _make(connection, "attempts")
    _add_alarm(connection, "job", "a", run_at=stored)
    _add_attempts(connection, "job", "a", attempts=1, retry_at=stored)
    row = _read_one(connection)
    assert (row.run_at, row.retry_at, row.wake_at) == (kept, kept, kept)


@pytest.mark.parametrize(
    ("stored", "kept"),
    [(1, 1), (0.5, 1), (MAX_DURATION_MS, MAX_DURATION_MS), (1e300, MAX_DURATION_MS)],
)
def test_a_period_is_kept_up_to_the_longest(
    connection: sqlite3.Connection, stored: object, kept: int
) -> None:
    """A period under today's floor is kept, for the floor applies when it is used (R8, R63)."""
    _make(connection, "first")
    _add_alarm(connection, "job", "a", repeat_every_ms=stored)
    assert _read_one(connection).repeat_every == kept


def test_counts_beyond_the_budget_are_kept(connection: sqlite3.Connection) -> None:
    """A stored count above the budget stays (R28, R63)."""
    _make(connection, "attempts")
    _add_alarm(connection, "job", "a")
    _add_attempts(connection, "job", "a", attempts=10**12, parked=1, progress=2**53)
    row = _read_one(connection)
    assert (row.attempts, row.parked, row.progress) == (10**12, True, 2**53)
    # Parked without a retry deadline: due at its own.
    assert (row.retry_at, row.wake_at) == (None, T)


@pytest.mark.parametrize("payload", ["", "{", "not JSON", "NaN", '"\\ud800"', "a\0b", "7"])
def test_a_payload_is_kept_as_it_is(connection: sqlite3.Connection, payload: str) -> None:
    """What cannot be decoded is not deleted, and fails when it is due (R28, R63)."""
    _make(connection, "first")
    _add_alarm(connection, "job", "a", payload=payload)
    assert _read_one(connection).payload == payload


def test_identities_are_told_apart_by_tag_and_id(connection: sqlite3.Connection) -> None:
    """A tag and an id are never concatenated (R3, R63)."""
    _make(connection, "first")
    _add_alarm(connection, "a:b", "c", storage_id="1")
    _add_alarm(connection, "a", "b:c", storage_id="2")
    _add_alarm(connection, "t" * 512, "é" * 512, storage_id="3")
    refs = [row.ref for row in read_effect_cf(connection)]
    assert refs == [AlarmRef("a:b", "c"), AlarmRef("a", "b:c"), AlarmRef("t" * 512, "é" * 512)]


@pytest.mark.parametrize(
    ("alarm", "problem"),
    [
        ({"run_at": "soon"}, "run_at"),
        ({"run_at": b"\1"}, "run_at"),
        ({"run_at": float("inf")}, "run_at"),
        ({"repeat_every_ms": 0}, "repeat_every_ms"),
        ({"repeat_every_ms": -60_000}, "repeat_every_ms"),
        ({"repeat_every_ms": float("inf")}, "repeat_every_ms"),
        ({"payload": b'"secret"'}, "payload"),
        ({"lifecycle": "eternal"}, "lifecycle"),
        ({"lifecycle": b"manual"}, "lifecycle"),
    ],
)
def test_an_alarm_that_cannot_be_kept_is_named(
    connection: sqlite3.Connection, alarm: dict[str, object], problem: str
) -> None:
    """The error names tag, id and column, and never a payload; nothing is changed (R63)."""
    _make(connection, "lifecycle")
    _add_alarm(connection, "job", "fine")
    _add_alarm(connection, "job", "odd", **({"payload": '"secret"'} | alarm))
    message = _refusal(connection)
    assert "'job'" in message
    assert "'odd'" in message
    assert problem in message
    assert "secret" not in message


@pytest.mark.parametrize(
    ("attempts", "problem"),
    [
        ({"attempts": -1}, "attempts"),
        ({"attempts": 1.5}, "attempts"),
        ({"attempts": "many"}, "attempts"),
        ({"parked": 2, "attempts": 8}, "parked"),
        ({"parked": -1, "attempts": 8}, "parked"),
        ({"parked": 1, "attempts": 0}, "parked"),
        ({"retry_at": "later"}, "retry_at"),
        ({"progress": -2}, "progress"),
        ({"progress": 0.5}, "progress"),
    ],
)
def test_attempts_that_cannot_be_kept_are_named(
    connection: sqlite3.Connection, attempts: dict[str, object], problem: str
) -> None:
    """A count that effect-cf never wrote is not guessed at (R63)."""
    _make(connection, "attempts")
    _add_alarm(connection, "job", "odd")
    _add_attempts(connection, "job", "odd", **attempts)
    message = _refusal(connection)
    assert "'odd'" in message
    assert problem in message


@pytest.mark.parametrize("value", ["", "x" * 513, "a\0b", b"blob", "\udcff"])
@pytest.mark.parametrize("column", ["tag", "alarm_id"])
def test_an_identity_that_we_refuse_is_named(
    connection: sqlite3.Connection, column: str, value: str | bytes
) -> None:
    """An alarm that nobody could cancel is not taken over (R63)."""
    _make(connection, "first")
    _add_alarm(connection, "job", "a")
    stored = value.encode(errors="surrogateescape") if isinstance(value, str) else value
    cast = "CAST(? AS TEXT)" if isinstance(value, str) else "?"
    connection.execute(f"UPDATE effect_cf_scheduled_alarms SET {column} = {cast}", (stored,))
    message = _refusal(connection)
    assert column in message
    assert len(message) < 300


def test_text_that_is_not_utf8_is_named(connection: sqlite3.Connection) -> None:
    """Bytes that are no text do not keep the error from naming the alarm (R63)."""
    _make(connection, "first")
    _add_alarm(connection, "job", "odd")
    connection.execute("UPDATE effect_cf_scheduled_alarms SET payload = CAST(x'ff' AS TEXT)")
    message = _refusal(connection)
    assert "'odd'" in message
    assert "payload" in message
    connection.execute("SELECT 'text stays text' AS x")
    assert connection.text_factory is str


def test_an_alarm_that_is_stored_twice_is_named(connection: sqlite3.Connection) -> None:
    """One identity has one alarm (R3, R63)."""
    _make(connection, "first")
    _add_alarm(connection, "job", "odd")
    _add_alarm(connection, "job", "odd", storage_id="another")
    message = _refusal(connection)
    assert "'odd'" in message
    assert "twice" in message


@pytest.mark.parametrize(
    ("statement", "column"),
    [
        ("ALTER TABLE effect_cf_scheduled_alarms DROP COLUMN payload", "payload"),
        ("ALTER TABLE effect_cf_alarm_attempts DROP COLUMN progress", "progress"),
    ],
)
def test_a_table_of_another_shape_is_refused(
    connection: sqlite3.Connection, statement: str, column: str
) -> None:
    """A table that effect-cf never had is not guessed at (R63)."""
    _make(connection, "attempts")
    connection.execute(statement)
    assert column in _refusal(connection)


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16le", "UTF-16be"])
def test_the_encoding_of_the_file_does_not_matter(
    connection: sqlite3.Connection, encoding: str
) -> None:
    """Text is the same in every encoding that SQLite has (R63)."""
    connection.execute(f"PRAGMA encoding = '{encoding}'")
    _make(connection, "first")
    _add_alarm(connection, "é", "☃", payload='"😀"')
    row = _read_one(connection)
    assert (row.ref, json.loads(row.payload)) == (AlarmRef("é", "☃"), "😀")


@pytest.mark.parametrize("shape", SHAPES)
def test_dropping_leaves_nothing_of_effect_cf(connection: sqlite3.Connection, shape: str) -> None:
    """The old tables and their indices go, and the application's stay (R63)."""
    connection.execute("CREATE TABLE application (x)")
    _make(connection, shape)
    drop_effect_cf(connection)
    assert not has_effect_cf_tables(connection)
    names = connection.execute("SELECT name FROM sqlite_master").fetchall()
    assert names == [("application",)]
    connection.execute("ROLLBACK")
    assert has_effect_cf_tables(connection)


def test_what_is_read_can_be_stored(connection: sqlite3.Connection) -> None:
    """Every row that is taken over fits the checks of our own table (R63)."""
    _make(connection, "lifecycle")
    _add_alarm(connection, "job", "a", repeat_every_ms=1, run_at=T + 0.5)
    _add_attempts(connection, "job", "a", attempts=10**12, parked=1, retry_at=-1, progress=0)
    _add_alarm(connection, "job", "b", lifecycle="manual", repeat_every_ms=1)
    _add_attempts(connection, "job", "b", attempts=1, retry_at=T + HOUR, progress=0)
    _add_alarm(connection, "job", "c", run_at=-1)
    _add_attempts(connection, "job", "c", retry_at=0)
    migrate(connection, "app.db")
    rows = read_effect_cf(connection)
    for row in rows:
        write(connection, "default", row)
    assert [read(connection, "default", row.ref) for row in rows] == rows
