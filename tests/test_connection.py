"""Our SQLite connection: who controls its transaction, and what a function can leave behind."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from trio_alarms import StorageOperationError
from trio_alarms._store._connection import (
    Connection,
    failure_kind,
    first_keyword,
    is_busy,
    is_corrupt,
    open_reader,
    open_writer,
    use_wal,
)

CONTROL = [
    "BEGIN",
    "begin immediate",
    "COMMIT",
    "End Transaction",
    "ROLLBACK",
    "SAVEPOINT mine",
    "RELEASE mine",
    "release savepoint mine",
    "ROLLBACK TO mine",
    "  -- a comment\n commit",
    "/* one */ /* two */ ROLLBACK;",
    ";;COMMIT",
    "\ufeffCOMMIT",
    "COMMIT /* trio_alarms */",
    "RELEASE trio_alarms_savepoint /* trio_alarms */",
]


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A database with an application's table."""
    path = tmp_path / "alarms.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, note TEXT UNIQUE)")
    return str(path)


@pytest.fixture
def connection(path: str) -> Iterator[Connection]:
    """The connection that writes."""
    connection = open_writer(path, synchronous="full", busy_timeout_ms=0)
    use_wal(connection)
    yield connection
    connection.close()


def stored(path: str) -> list[Any]:
    """The ids that are durable."""
    with closing(sqlite3.connect(path)) as other:
        return [row[0] for row in other.execute("SELECT id FROM items ORDER BY id")]


def _execute(sql: str, raw: sqlite3.Connection) -> None:
    raw.execute(sql)


def insert(connection: Connection, id: int) -> None:
    """Add an item the application's way."""
    connection.execute("INSERT INTO items (id) VALUES (?)", (id,))


def test_the_writer_is_in_wal_mode_and_syncs_every_commit(path: str) -> None:
    """The writer has a write-ahead log and `synchronous=full` (R60)."""
    with closing(open_writer(path, synchronous="full", busy_timeout_ms=50)) as connection:
        use_wal(connection)
        raw = connection.raw
        assert raw.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert raw.execute("PRAGMA synchronous").fetchone() == (2,)
        assert raw.execute("PRAGMA busy_timeout").fetchone() == (50,)


@pytest.mark.parametrize("statement", CONTROL)
def test_transaction_control_in_a_statement_is_refused(
    connection: Connection, path: str, statement: str
) -> None:
    """Transaction control in application SQL is refused, however it is written (R10)."""
    connection.begin()
    insert(connection, 1)
    with pytest.raises(StorageOperationError, match="refused") as caught:
        connection.execute(statement, ())
    assert caught.value.operation == "execute"
    with pytest.raises(StorageOperationError, match="refused"):
        connection.executemany(statement, [()])
    with pytest.raises(StorageOperationError):
        connection.query(statement, ())
    assert connection.in_transaction
    insert(connection, 2)
    connection.commit()
    assert stored(path) == [1, 2]


@pytest.mark.parametrize("statement", ["EXPLAIN COMMIT", "EXPLAIN QUERY PLAN ROLLBACK"])
def test_the_authorizer_refuses_what_the_text_does_not_show(
    connection: Connection, statement: str
) -> None:
    """Transaction control is refused by SQLite's authorizer, not only by its first word (R10)."""
    connection.begin()
    with pytest.raises(StorageOperationError, match="refused") as caught:
        connection.execute(statement, ())
    assert isinstance(caught.value.__cause__, sqlite3.DatabaseError)
    assert connection.in_transaction


@pytest.mark.parametrize(
    "use",
    [
        lambda raw: raw.execute("COMMIT"),
        lambda raw: raw.execute("END"),
        lambda raw: raw.execute("ROLLBACK"),
        lambda raw: raw.execute("BEGIN"),
        lambda raw: raw.commit(),
        lambda raw: raw.rollback(),
        lambda raw: raw.executescript("INSERT INTO items (id) VALUES (9)"),
        lambda raw: raw.executescript("COMMIT; INSERT INTO items (id) VALUES (9)"),
        lambda raw: raw.__enter__() and raw.__exit__(None, None, None),
        lambda raw: raw.execute("RELEASE trio_alarms_savepoint"),
        lambda raw: raw.execute("ROLLBACK TO Trio_Alarms_Savepoint"),
    ],
)
def test_a_function_cannot_end_the_transaction(connection: Connection, path: str, use: Any) -> None:
    """A function of the application's cannot commit, roll back or touch our savepoint (R10)."""
    connection.begin()
    insert(connection, 1)

    def function(raw: sqlite3.Connection) -> None:
        raw.execute("INSERT INTO items (id) VALUES (2)")
        use(raw)

    with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
        connection.call(function)
    assert connection.in_transaction
    insert(connection, 3)
    assert stored(path) == []
    connection.commit()
    assert stored(path) == [1, 3]


def test_a_statement_that_a_function_prepared_stays_refused_outside_of_it(
    connection: Connection, path: str
) -> None:
    """A savepoint prepared inside a function, and so cached, is refused in a statement (R10)."""
    connection.begin()

    def function(raw: sqlite3.Connection) -> None:
        raw.execute("SAVEPOINT mine")
        raw.execute("RELEASE mine")

    connection.call(function)
    for statement in ("SAVEPOINT mine", "RELEASE mine"):
        with pytest.raises(StorageOperationError, match="refused"):
            connection.execute(statement, ())
    insert(connection, 1)
    connection.commit()
    assert stored(path) == [1]


def test_our_own_control_statements_leave_nothing_cached_that_applications_send(
    connection: Connection, path: str
) -> None:
    """After our own BEGIN and COMMIT are cached, a function's plain ones are refused (R10)."""
    for id in (1, 2):
        connection.begin()
        insert(connection, id)
        connection.commit()
    connection.begin()
    for statement in ("COMMIT", "BEGIN IMMEDIATE", "ROLLBACK", "RELEASE trio_alarms_savepoint"):
        with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
            connection.call(partial(_execute, statement))
    connection.rollback()
    assert stored(path) == [1, 2]


def test_another_file_cannot_be_attached(connection: Connection, tmp_path: Path) -> None:
    """It would outlive its block, and a commit over two files is not atomic (R10)."""
    other = str(tmp_path / "other.db")
    with pytest.raises(StorageOperationError, match="ATTACH or DETACH is refused"):
        connection.execute("ATTACH ? AS other", (other,))
    with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
        connection.call(lambda raw: raw.execute("ATTACH ? AS other", (other,)))
    assert [name for _, name, _ in connection.execute("PRAGMA database_list", ())] == ["main"]


@pytest.mark.parametrize(
    "pragma",
    [
        "synchronous = off",
        "JOURNAL_MODE = delete",
        "busy_timeout = 100000",
        "main.synchronous(0)",
        "locking_mode = exclusive",
        "wal_autocheckpoint = 0",
        "query_only = 0",
        "writable_schema = 1",
    ],
)
def test_settings_that_durability_depends_on_are_refused(
    connection: Connection, pragma: str
) -> None:
    """A pragma that would take durability away is refused; reading it is fine (R10, R60)."""
    connection.begin()
    with pytest.raises(StorageOperationError, match="PRAGMA"):
        connection.execute(f"PRAGMA {pragma}", ())
    connection.rollback()
    assert connection.execute("PRAGMA synchronous", ()) == [(2,)]


@pytest.mark.parametrize(
    ("sql", "parameters"),
    [
        ("SELEC 1", ()),
        ("INSERT INTO items (id) VALUES (1)", ()),
        ("INSERT INTO items (id) VALUES (?)", (2**64,)),
        ("INSERT INTO items (note) VALUES (?)", ("\ud800",)),
        ("INSERT INTO items (note) VALUES (?)", (object(),)),
        ("INSERT INTO items (note) VALUES (?)", ()),
        ("INSERT INTO items (note) VALUES (?)", 7),
        ("SELECT 1; SELECT 2", ()),
        ("SELECT '\0'", ()),
        (b"SELECT 1", ()),
        (None, ()),
    ],
)
def test_failing_sql_is_a_storage_error_with_its_cause(
    connection: Connection, path: str, sql: Any, parameters: Any
) -> None:
    """Failing SQL is a `StorageOperationError` from what the driver raised (R10)."""
    connection.begin()
    insert(connection, 1)
    with pytest.raises(StorageOperationError) as caught:
        connection.execute(sql, parameters)
    assert caught.value.__cause__ is not None
    assert caught.value.outcome == "rolled back"
    connection.commit()
    assert stored(path) == [1]


@pytest.mark.parametrize("operation", ["execute", "query"])
@pytest.mark.parametrize(("parameters", "given"), [(7, "7"), (None, "None"), (object(), "object")])
def test_parameters_that_are_none_are_named(
    connection: Connection, operation: str, parameters: Any, given: str
) -> None:
    """What is neither a sequence nor a mapping is refused by the name of the argument (R10)."""
    words = f"^{operation}: params must be a sequence or a mapping, not .*{given}$"
    connection.begin()
    with pytest.raises(StorageOperationError, match=words) as caught:
        getattr(connection, operation)("SELECT ?", parameters)
    assert caught.value.operation == operation
    assert isinstance(caught.value.__cause__, TypeError)


def test_any_sequence_or_mapping_gives_parameters(connection: Connection) -> None:
    """Parameters need not be a tuple, a list or a dict (R10)."""
    assert connection.query("SELECT ?, ?", range(2)) == [(0, 1)]
    assert connection.query("SELECT :id", MappingProxyType({"id": 5})) == [(5,)]


def test_an_error_of_a_long_statement_is_short(connection: Connection) -> None:
    """SQLite quotes all of what it cannot read; our error shows its beginning (R10)."""
    connection.begin()
    with pytest.raises(StorageOperationError, match="near") as caught:
        connection.execute("x" * 100_000, ())
    assert len(str(caught.value)) < 400
    connection.rollback()


def test_executemany_is_all_rows_or_none(connection: Connection, path: str) -> None:
    """A failing run of `executemany` undoes the runs before it (R10)."""
    connection.begin()
    with pytest.raises(StorageOperationError):
        connection.executemany("INSERT INTO items (id) VALUES (?)", [(1,), (2,), (1,)])

    def rows() -> Iterator[tuple[int]]:
        yield (5,)
        raise KeyError("no more")

    with pytest.raises(KeyError):
        connection.executemany("INSERT INTO items (id) VALUES (?)", rows())
    insert(connection, 7)
    connection.commit()
    assert stored(path) == [7]


class TestFunctions:
    """What `call` promises about a function of the application's (R10)."""

    def test_its_result_and_changes_are_kept(self, connection: Connection, path: str) -> None:
        """What a function returns is returned, and its changes are the transaction's (R10)."""
        connection.begin()

        def function(raw: sqlite3.Connection) -> int:
            return raw.execute("INSERT INTO items (id) VALUES (1)").rowcount

        assert connection.call(function) == 1
        connection.commit()
        assert stored(path) == [1]

    @pytest.mark.parametrize(
        "error", [ValueError("v"), sqlite3.OperationalError("s"), KeyboardInterrupt()]
    )
    def test_what_it_raises_passes_unchanged_and_undoes_it(
        self, connection: Connection, path: str, error: BaseException
    ) -> None:
        """What a function raises is the same object; all that it changed is undone (R10)."""
        connection.begin()
        insert(connection, 1)

        def function(raw: sqlite3.Connection) -> None:
            raw.execute("INSERT INTO items (id) VALUES (2)")
            raw.execute("SAVEPOINT inner_one")
            raw.execute("DELETE FROM items")
            raise error

        with pytest.raises(type(error)) as caught:
            connection.call(function)
        assert caught.value is error
        insert(connection, 3)
        connection.commit()
        assert stored(path) == [1, 3]

    @pytest.mark.parametrize(
        "statements",
        [
            ["SAVEPOINT a"],
            ["savepoint 'a b'"],
            ["SAVEPOINT a", "SAVEPOINT b", "RELEASE b"],
            ["SAVEPOINT a", "ROLLBACK TO a"],
            ["SAVEPOINT a", "SAVEPOINT a", "RELEASE a"],
            ["/* c */ SAVEPOINT a;", "SAVEPOINT b", "ROLLBACK TO SAVEPOINT a"],
            ["SAVEPOINT [a]", "rollback transaction to savepoint a"],
        ],
    )
    def test_a_savepoint_left_open_undoes_it(
        self, connection: Connection, path: str, statements: list[str]
    ) -> None:
        """A function that leaves a savepoint open is undone, and that is an error (R10)."""
        connection.begin()

        def function(raw: sqlite3.Connection) -> None:
            raw.execute("INSERT INTO items (id) VALUES (2)")
            for statement in statements:
                raw.execute(statement)

        with pytest.raises(StorageOperationError, match="savepoint"):
            connection.call(function)
        insert(connection, 3)
        connection.commit()
        assert stored(path) == [3]

    @pytest.mark.parametrize(
        "statements",
        [
            ["SAVEPOINT a", "RELEASE a"],
            ['SAVEPOINT "a"', "RELEASE SAVEPOINT A"],
            ["SAVEPOINT a", "SAVEPOINT b", "RELEASE a"],
            ["SAVEPOINT a", "SAVEPOINT a", "RELEASE a", "RELEASE a"],
            ["SAVEPOINT a", "SAVEPOINT b", "ROLLBACK TO a", "RELEASE a"],
            ["-- note\nSAVEPOINT a", "ROLLBACK TO a;", "RELEASE\ta ;"],
            ["SAVEPOINT `a`", "RELEASE [a]"],
            ["SAVEPOINT a -- why", "RELEASE /* this */ a /* why */"],
            ['SAVEPOINT "say ""a"""', 'RELEASE "SAY ""A"""'],
        ],
    )
    def test_balanced_savepoints_are_allowed(
        self, connection: Connection, path: str, statements: list[str]
    ) -> None:
        """Balanced savepoints, as ORMs use them, are allowed in a function (R10)."""
        connection.begin()

        def function(raw: sqlite3.Connection) -> None:
            for statement in statements:
                raw.execute(statement)
            raw.execute("INSERT INTO items (id) VALUES (2)")

        connection.call(function)
        connection.commit()
        assert stored(path) == [2]

    def test_its_cursor_cannot_keep_a_snapshot(self, connection: Connection, path: str) -> None:
        """An unfinished SELECT that a function returns keeps no later write out (R10, C24)."""
        connection.begin()
        connection.executemany("INSERT INTO items (id) VALUES (?)", [(1,), (2,)])
        cursor = connection.call(lambda raw: raw.execute("SELECT id FROM items"))
        connection.commit()
        with closing(sqlite3.connect(path)) as other:
            other.execute("INSERT INTO items (id) VALUES (3)")
            other.commit()
        connection.begin()
        insert(connection, 4)
        connection.commit()
        assert stored(path) == [1, 2, 3, 4]
        with pytest.raises(sqlite3.ProgrammingError):
            cursor.fetchone()

    def test_its_cursor_cannot_keep_commits_from_happening(
        self, connection: Connection, path: str
    ) -> None:
        """An unfinished INSERT … RETURNING that a function keeps blocks no commit (R10)."""
        kept: list[Any] = []

        def function(raw: sqlite3.Connection) -> None:
            kept.append(raw.cursor())
            kept[0].execute("INSERT INTO items (id) VALUES (1), (2) RETURNING id")
            kept.append(raw.execute("INSERT INTO items (id) VALUES (3), (4) RETURNING id"))

        connection.begin()
        connection.call(function)
        connection.commit()
        assert stored(path) == [1, 2, 3, 4]

    def test_it_cannot_close_the_connection(self, connection: Connection, path: str) -> None:
        """A function that closes what it was given, as many do, is undone and told so (R10)."""

        def function(raw: sqlite3.Connection) -> None:
            with closing(raw) as given:
                given.execute("INSERT INTO items (id) VALUES (1)")

        connection.begin()
        with pytest.raises(sqlite3.ProgrammingError):
            connection.call(function)
        insert(connection, 2)
        connection.commit()
        assert stored(path) == [2]

    def test_settings_that_it_changes_are_put_back(self, connection: Connection) -> None:
        """What a function sets on the connection does not reach our own statements (R10)."""
        connection.begin()

        def function(raw: sqlite3.Connection) -> None:
            raw.row_factory = sqlite3.Row
            raw.text_factory = bytes
            raw.isolation_level = "DEFERRED"
            with pytest.raises(sqlite3.DatabaseError):
                raw.isolation_level = None
            raw.isolation_level = "IMMEDIATE"

        connection.call(function)
        assert connection.execute("SELECT 'x'", ()) == [("x",)]
        assert connection.raw.isolation_level is None
        connection.commit()

    @pytest.mark.parametrize("swallows", [True, False])
    def test_after_sqlite_rolled_back_it_writes_nothing(
        self, connection: Connection, path: str, *, swallows: bool
    ) -> None:
        """Once SQLite has rolled back by itself, a function that goes on stores nothing (R10)."""
        connection.begin()
        insert(connection, 1)

        def function(raw: sqlite3.Connection) -> None:
            with pytest.raises(sqlite3.IntegrityError):
                raw.execute("INSERT OR ROLLBACK INTO items (id) VALUES (1)")
            for statement in (
                "INSERT INTO items (id) VALUES (2)",
                "INSERT INTO items (id) VALUES (2)",
                "CREATE TABLE more (id)",
                "DELETE FROM items",
            ):
                with pytest.raises(sqlite3.OperationalError):
                    raw.execute(statement)
            if not swallows:
                raise ValueError("not swallowed")

        if swallows:
            connection.call(function)
        else:
            with pytest.raises(ValueError, match="not swallowed"):
                connection.call(function)
        assert not connection.in_transaction
        assert stored(path) == []
        connection.begin()
        insert(connection, 5)
        connection.commit()
        assert stored(path) == [5]


def test_a_savepoint_that_cannot_be_undone_undoes_everything(
    connection: Connection, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a savepoint cannot be undone, never is more kept than was asked for (R13)."""
    connection.begin()
    insert(connection, 1)
    control = connection._control

    def fail(sql: str) -> None:
        if sql.startswith(("ROLLBACK TO", "RELEASE")):
            raise sqlite3.OperationalError("disk I/O error")
        control(sql)

    monkeypatch.setattr(connection, "_control", fail)
    with pytest.raises(sqlite3.OperationalError), connection.atomic():
        insert(connection, 2)
    assert not connection.in_transaction
    assert stored(path) == []


def test_what_could_not_be_rolled_back_is_never_committed(
    connection: Connection, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a rollback that failed, the next transaction does not go on with the old one (R11)."""

    def fail(_: str) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    connection.begin()
    insert(connection, 1)
    with monkeypatch.context() as patched:
        patched.setattr(connection, "_control", fail)
        with pytest.raises(sqlite3.OperationalError):
            connection.rollback()
    connection.begin()
    insert(connection, 2)
    connection.commit()
    assert stored(path) == [2]


def test_savepoints_nest(connection: Connection, path: str) -> None:
    """Undoing or keeping the innermost savepoint leaves the outer ones as they are (R13)."""

    def fail() -> None:
        with connection.atomic():
            insert(connection, 2)
            with connection.atomic():
                insert(connection, 3)
            raise ValueError("inner")

    connection.begin()
    with connection.atomic():
        insert(connection, 1)
        with pytest.raises(ValueError, match="inner"):
            fail()
        with connection.atomic():
            insert(connection, 4)
    connection.commit()
    assert stored(path) == [1, 4]


class TestQueries:
    """Reading, with the connection of either kind."""

    @pytest.mark.parametrize(
        "sql",
        [
            "INSERT INTO items (id) VALUES (1)",
            "WITH one AS (SELECT 1) INSERT INTO items (id) SELECT * FROM one",
            "CREATE TABLE more (id)",
            "PRAGMA query_only = 0",
            "  delete from items",
        ],
    )
    def test_they_cannot_write(self, connection: Connection, path: str, sql: str) -> None:
        """A query that would write is refused and changes nothing, in and out of a transaction."""
        reader = open_reader(path, busy_timeout_ms=0)
        with closing(reader), pytest.raises(StorageOperationError):
            reader.query(sql, ())
        connection.begin()
        with pytest.raises(StorageOperationError):
            connection.query(sql, ())
        insert(connection, 5)
        connection.commit()
        assert stored(path) == [5]

    def test_they_see_the_transaction_on_its_own_connection_only(
        self, connection: Connection, path: str
    ) -> None:
        """The writer's query sees what is not committed, the reader's only what is (R12)."""
        with closing(open_reader(path, busy_timeout_ms=0)) as reader:
            connection.begin()
            insert(connection, 1)
            assert connection.query("SELECT id FROM items", ()) == [(1,)]
            assert reader.query("SELECT id FROM items", ()) == []
            connection.commit()
            assert reader.query("VALUES (1), (2)", ()) == [(1,), (2,)]
            assert reader.query("SELECT id FROM items WHERE id = :id", {"id": 1}) == [(1,)]


def test_errors_are_told_apart(path: str, tmp_path: Path) -> None:
    """A lock and a damaged file are told apart from everything else (R11, R51)."""
    with closing(sqlite3.connect(path)) as holder, closing(sqlite3.connect(path)) as other:
        holder.execute("BEGIN IMMEDIATE")
        other.execute("PRAGMA busy_timeout = 0")
        with pytest.raises(sqlite3.OperationalError) as busy:
            other.execute("BEGIN IMMEDIATE")
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"not a database, but long enough to be looked at" * 100)
    with closing(sqlite3.connect(broken)) as other, pytest.raises(sqlite3.DatabaseError) as damage:
        other.execute("SELECT * FROM sqlite_master")
    assert is_busy(busy.value)
    assert not is_corrupt(busy.value)
    assert is_corrupt(damage.value)
    assert not is_busy(damage.value)
    assert not is_busy(None)
    assert not is_busy(ValueError())
    assert failure_kind(busy.value) == "SQLITE_BUSY"
    assert failure_kind(OSError()) == "OSError"


@pytest.mark.parametrize(
    ("sql", "keyword"),
    [
        ("select 1", "SELECT"),
        ("\n\t COMMIT", "COMMIT"),
        ("--x\n--y\nEND", "END"),
        ("/* a */;/* b\n */ begin", "BEGIN"),
        ("--only a comment", ""),
        ("", ""),
        ("/* never closed commit", ""),
    ],
)
def test_first_keyword(sql: str, keyword: str) -> None:
    """The first keyword is found past whitespace, comments and empty statements (R10)."""
    assert first_keyword(sql) == keyword
