from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trio_alarms import StorageOperationError, _database, open_host
from trio_alarms._store import _schema
from trio_alarms._store._schema import MIGRATIONS, SCHEMA_VERSION, migrate, read_version

ROOT = Path(__file__).parents[1]

NEXT = (
    "ALTER TABLE trio_alarms_alarms ADD COLUMN note TEXT",
    "CREATE TABLE trio_alarms_notes (note TEXT)",
)
BROKEN = (*NEXT, "CREATE TABLE trio_alarms_hosts (again)")

OPENER = """
import sys, trio
from trio_alarms import open_host

async def main():
    sys.stdin.readline()
    async with open_host(sys.argv[1], name=sys.argv[2], driver=False) as host:
        await host.scheduler.schedule_alarm("job", "a", after=60)

trio.run(main)
"""
KILLED_IN_MIGRATION = """
import os, signal, sys, trio
from trio_alarms import _database, open_host

def migrate(connection, path):
    original(connection, path)
    os.kill(os.getpid(), signal.SIGKILL)

original, _database.migrate = _database.migrate, migrate

async def main():
    async with open_host(sys.argv[1]):
        pass

trio.run(main)
"""


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    """A database of the test's own."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as opened:
        yield opened


def _schema_of(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    """Every object, and every column as SQLite understands it; not how it is written."""
    objects = connection.execute(
        "SELECT type, name, tbl_name FROM sqlite_master ORDER BY type, name"
    ).fetchall()
    columns = connection.execute(
        "SELECT t.name, c.* FROM sqlite_master AS t, pragma_table_xinfo(t.name) AS c"
        " WHERE t.type = 'table' ORDER BY t.name, c.cid"
    ).fetchall()
    indices = connection.execute(
        "SELECT i.name, c.* FROM sqlite_master AS i, pragma_index_xinfo(i.name) AS c"
        " WHERE i.type = 'index' ORDER BY i.name, c.seqno"
    ).fetchall()
    return [*objects, *columns, *indices]


def _at_version(connection: sqlite3.Connection, version: int) -> None:
    """What a release with that schema version would have made."""
    connection.execute("CREATE TABLE trio_alarms_schema (version INTEGER NOT NULL)")
    for statements in MIGRATIONS[:version]:
        for statement in statements:
            connection.execute(statement)
    connection.execute("INSERT INTO trio_alarms_schema VALUES (?)", (version,))


def _migrate(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    migrate(connection, "app.db")
    connection.execute("COMMIT")


@pytest.fixture
def next_release(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As if this were a release with one more migration."""
    _release(monkeypatch, NEXT)
    return monkeypatch


def _release(monkeypatch: pytest.MonkeyPatch, *more: tuple[str, ...]) -> None:
    migrations = (*MIGRATIONS, *more)
    monkeypatch.setattr(_schema, "MIGRATIONS", migrations)
    monkeypatch.setattr(_schema, "SCHEMA_VERSION", len(migrations))
    monkeypatch.setattr(_database, "SCHEMA_VERSION", len(migrations))


def _stored(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


@pytest.mark.parametrize("version", range(SCHEMA_VERSION))
def test_a_fresh_schema_equals_a_migrated_one(connection: sqlite3.Connection, version: int) -> None:
    """From whichever version a file comes, it ends where a new one begins (R60)."""
    _at_version(connection, version)
    _migrate(connection)
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        _migrate(fresh)
        assert _schema_of(connection) == _schema_of(fresh)
        assert read_version(connection) == read_version(fresh) == SCHEMA_VERSION


def test_a_migration_of_several_versions_equals_a_fresh_schema(
    connection: sqlite3.Connection, next_release: pytest.MonkeyPatch
) -> None:
    """Only the steps that are missing run, each once (R60)."""
    _at_version(connection, SCHEMA_VERSION)
    _migrate(connection)
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        _migrate(fresh)
        assert _schema_of(connection) == _schema_of(fresh)
        assert read_version(connection) == read_version(fresh) == SCHEMA_VERSION + 1
    assert connection.execute("SELECT * FROM trio_alarms_schema").fetchall() == [
        (SCHEMA_VERSION + 1,)
    ]


def test_a_migrated_schema_is_left_alone(connection: sqlite3.Connection) -> None:
    """Migrating what is up to date changes nothing (R60)."""
    _migrate(connection)
    before = connection.total_changes
    _migrate(connection)
    assert connection.total_changes == before


def test_a_migration_never_commits_by_itself(connection: sqlite3.Connection) -> None:
    """All steps are one transaction, which the caller ends (R60)."""
    connection.execute("BEGIN IMMEDIATE")
    migrate(connection, "app.db")
    assert connection.in_transaction
    connection.execute("ROLLBACK")
    assert connection.execute("SELECT * FROM sqlite_master").fetchall() == []


def test_a_migration_that_somebody_else_made_meanwhile_is_noticed(tmp_path: Path) -> None:
    """The version is read again inside the transaction (R60)."""
    with (
        contextlib.closing(sqlite3.connect(tmp_path / "app.db", isolation_level=None)) as one,
        contextlib.closing(sqlite3.connect(tmp_path / "app.db", isolation_level=None)) as two,
    ):
        assert read_version(one) == 0
        _migrate(two)
        _migrate(one)
        assert read_version(one) == SCHEMA_VERSION


def test_our_objects_are_prefixed(connection: sqlite3.Connection) -> None:
    """Application tables may live in the same file (R60)."""
    _migrate(connection)
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]
    assert names
    assert all(name.startswith("trio_alarms_") for name in names)


def test_a_newer_schema_is_refused_inside_the_transaction_too(
    connection: sqlite3.Connection,
) -> None:
    """Nobody migrates downwards (R60)."""
    _at_version(connection, SCHEMA_VERSION)
    connection.execute("UPDATE trio_alarms_schema SET version = 999")
    connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageOperationError, match="999"):
        migrate(connection, "app.db")


VALID: dict[str, Any] = {
    "host": "default",
    "tag": "job",
    "id": "a",
    "lifecycle": "automatic",
    "run_at": 5,
    "wake_at": 7,
    "retry_at": 7,
    "repeat_every": 1_000,
    "progress": 3,
    "attempts": 8,
    "parked": 1,
    "revision": b"0123456789abcdef",
    "payload": "null",
}
MANUAL = VALID | {
    "lifecycle": "manual",
    "wake_at": 5,
    "retry_at": None,
    "repeat_every": None,
    "progress": -1,
    "attempts": 0,
    "parked": 0,
}


def _insert(connection: sqlite3.Connection, row: dict[str, Any]) -> None:
    places = ", ".join("?" * len(row))
    connection.execute(
        f"INSERT INTO trio_alarms_alarms ({', '.join(row)}) VALUES ({places})", list(row.values())
    )


@pytest.mark.parametrize("row", [VALID, MANUAL], ids=["automatic", "manual"])
def test_what_the_rules_allow_can_be_stored(
    connection: sqlite3.Connection, row: dict[str, Any]
) -> None:
    """The constraints allow what an alarm can be (R3)."""
    _migrate(connection)
    _insert(connection, row)
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        _insert(connection, row)
    _insert(connection, row | {"host": "other"})


@pytest.mark.parametrize(
    "wrong",
    [
        VALID | {"lifecycle": "eternal"},
        VALID | {"wake_at": 5},
        VALID | {"retry_at": 9},
        VALID | {"retry_at": None},
        VALID | {"repeat_every": 0},
        VALID | {"progress": -2},
        VALID | {"attempts": -1},
        VALID | {"attempts": 0},
        VALID | {"parked": 2},
        MANUAL | {"repeat_every": 1_000},
        MANUAL | {"progress": 0},
        MANUAL | {"attempts": 1},
        MANUAL | {"retry_at": 5},
        *(VALID | {column: None} for column in VALID if column not in {"retry_at", "repeat_every"}),
    ],
    ids=lambda row: str({k: v for k, v in row.items() if v != VALID[k] and v != MANUAL[k]}),
)
def test_what_the_rules_forbid_cannot_be_stored(
    connection: sqlite3.Connection, wrong: dict[str, Any]
) -> None:
    """The table itself refuses rows that no rule can have made, whoever writes them (R3, R5)."""
    _migrate(connection)
    with pytest.raises(sqlite3.IntegrityError):
        _insert(connection, wrong)


async def test_opening_migrates_and_keeps_what_is_stored(
    tmp_path: Path, mock_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later release takes a file over with its alarms; then this one refuses it (R60)."""
    path = tmp_path / "app.db"
    async with open_host(path, driver=False) as host:
        await host.scheduler.schedule_alarm("job", "a", after=60)
    with monkeypatch.context() as patch:
        _release(patch, NEXT)
        async with open_host(path, driver=False) as host:
            assert [record.ref.id for record in await host.scheduler.list_alarms()] == ["a"]
        assert _stored(path, "SELECT id, note FROM trio_alarms_alarms") == [("a", None)]
    with pytest.raises(StorageOperationError, match=f"version {SCHEMA_VERSION + 1}"):
        async with open_host(path):
            pytest.fail("it has opened")


@pytest.mark.parametrize("kind", ["old", "new"])
async def test_a_migration_that_fails_changes_nothing(
    tmp_path: Path, mock_clock: object, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A migration is atomic: what went before its failing step is undone (R60)."""
    path = tmp_path / "app.db"
    if kind == "old":
        async with open_host(path, driver=False) as host:
            await host.scheduler.schedule_alarm("job", "a", after=60)
    with monkeypatch.context() as patch:
        _release(patch, BROKEN)
        with pytest.raises(StorageOperationError, match="already exists") as caught:
            async with open_host(path):
                pytest.fail("it has opened")
        assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    names = {name for (name,) in _stored(path, "SELECT name FROM sqlite_master")}
    assert "trio_alarms_notes" not in names
    assert ("trio_alarms_alarms" in names) is (kind == "old")
    async with open_host(path, driver=False) as host:
        assert len(await host.scheduler.list_alarms()) == (1 if kind == "old" else 0)


def test_a_kill_in_a_migration_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    """A process that dies before the commit has created nothing (R60)."""
    path = tmp_path / "app.db"
    assert _run(KILLED_IN_MIGRATION, path) == -signal.SIGKILL
    assert _stored(path, "SELECT * FROM sqlite_master") == []
    assert _run(OPENER, path, "x") == 0
    assert _stored(path, "SELECT host FROM trio_alarms_alarms") == [("x",)]


def test_processes_that_open_a_new_file_at_once_all_can(tmp_path: Path) -> None:
    """The tables are created once, whoever comes first (R60)."""
    path = tmp_path / "app.db"
    openers = [_start(OPENER, path, str(number)) for number in range(4)]
    for opener in openers:
        assert opener.stdin is not None
        opener.stdin.write(b"go\n")
        opener.stdin.flush()
    assert [opener.wait() for opener in openers] == [0] * 4
    for opener in openers:
        opener.communicate()
    assert len(_stored(path, "SELECT * FROM trio_alarms_alarms")) == 4
    assert _stored(path, "SELECT * FROM trio_alarms_schema") == [(SCHEMA_VERSION,)]


def _start(program: str, *arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def _run(program: str, *arguments: object) -> int:
    with _start(program, *arguments) as process:
        process.communicate(b"go\n")
    return process.returncode
