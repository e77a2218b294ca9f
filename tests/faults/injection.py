"""A storage that fails at its n-th statement, as SQLite would, and what must hold afterwards."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import attrs

from trio_alarms import AlarmHost, StorageOperationError, StorageOptions
from trio_alarms._episodes import leaves
from trio_alarms._store import _connection

Kind: TypeAlias = Literal["busy", "full", "I/O error", "read-only", "corrupt"]
# "refused": the statement did nothing and the transaction, if any, stays open. "rolled back":
# SQLite has also rolled the transaction back by itself. "landed": a COMMIT took place all the same.
Manner: TypeAlias = Literal["refused", "rolled back", "landed"]

CODES: Final[dict[Kind, tuple[str, int]]] = {
    "busy": ("SQLITE_BUSY", sqlite3.SQLITE_BUSY),
    "full": ("SQLITE_FULL", sqlite3.SQLITE_FULL),
    "I/O error": ("SQLITE_IOERR_WRITE", sqlite3.SQLITE_IOERR_WRITE),
    "read-only": ("SQLITE_READONLY", sqlite3.SQLITE_READONLY),
    "corrupt": ("SQLITE_CORRUPT", sqlite3.SQLITE_CORRUPT),
}
# What SQLite does in which case: only a full disk and an I/O error roll back by themselves, and
# only after an I/O error may a commit be durable.
MANNERS: Final[list[tuple[Kind, Manner]]] = [
    *((kind, "refused") for kind in CODES),
    ("full", "rolled back"),
    ("I/O error", "rolled back"),
    ("I/O error", "landed"),
]

APPLICATION_INSERT: Final = "INSERT INTO items (id) VALUES (?)"

_connect = sqlite3.connect


@attrs.define
class Fault:
    """A failure of the `at`-th statement, or of that and all that follow (`lasting`).

    While it lasts `ROLLBACK` works: it needs nothing of the disk. A single one strikes any
    statement.
    """

    kind: Kind
    manner: Manner = "refused"
    at: int = 1
    lasting: bool = False
    passed: int = 0
    # The statements that failed.
    struck: list[str] = attrs.field(factory=list)

    def strikes(self, sql: str) -> bool:
        """Count a statement; whether it fails."""
        self.passed += 1
        if self.passed < self.at or (self.passed > self.at and not self.lasting):
            return False
        if self.lasting and sql.lstrip().upper().startswith("ROLLBACK"):
            return False
        self.struck.append(sql)
        return True

    def error(self) -> sqlite3.Error:
        """The error that SQLite raises."""
        name, code = CODES[self.kind]
        kind = sqlite3.DatabaseError if self.kind == "corrupt" else sqlite3.OperationalError
        error = kind(f"an injected fault: {self.kind}")
        error.sqlite_errorname = name
        error.sqlite_errorcode = code
        return error


class Injector:
    """Where a fault is put in force; nothing fails without one."""

    fault: Fault | None = None
    injected = 0

    @contextmanager
    def inject(self, fault: Fault) -> Iterator[Fault]:
        """Have the fault in force inside the block, on every connection made by the package."""
        self.fault = fault
        try:
            yield fault
        finally:
            self.fault = None
            self.injected += len(fault.struck)


def faulty_connections(injector: Injector) -> Callable[..., sqlite3.Connection]:
    """A `sqlite3.connect` whose connections fail when the injector says so."""

    class FaultyConnection(_connection._RawConnection):
        _authorizer: Any = None

        def set_authorizer(self, authorizer: Any) -> None:
            self._authorizer = authorizer
            super().set_authorizer(authorizer)

        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            execute = super().execute
            return self._struck(arguments[0], lambda: execute(*arguments))

        def executemany(self, *arguments: Any) -> sqlite3.Cursor:
            executemany = super().executemany
            return self._struck(arguments[0], lambda: executemany(*arguments))

        def _struck(self, sql: str, run: Callable[[], sqlite3.Cursor]) -> sqlite3.Cursor:
            fault = injector.fault
            if fault is None or not fault.strikes(sql):
                return run()
            if fault.manner == "landed" and sql.startswith("COMMIT"):
                run()
            elif fault.manner == "rolled back" and self.in_transaction:
                super().set_authorizer(None)
                sqlite3.Connection.execute(self, "ROLLBACK")
                super().set_authorizer(self._authorizer)
            raise fault.error()

    def connect(*arguments: Any, **keywords: Any) -> sqlite3.Connection:
        fault = injector.fault
        if fault is not None and fault.strikes("(connect)"):
            raise fault.error()
        keywords["factory"] = FaultyConnection
        return _connect(*arguments, **keywords)

    return connect


def look(path: Path, *statements: str) -> list[list[tuple[Any, ...]]]:
    """What is durable, through a connection of the test's own that no fault strikes."""
    with closing(_connect(path, isolation_level=None, timeout=0)) as connection:
        return [connection.execute(statement).fetchall() for statement in statements]


def run_sql(path: Path, script: str) -> None:
    """Change the file through a connection of the test's own."""
    with closing(_connect(path, isolation_level=None, timeout=0)) as connection:
        connection.executescript(script)


def require_unlocked(path: Path) -> None:
    """No transaction is left open: another connection gets to write at once."""
    with closing(_connect(path, isolation_level=None, timeout=0)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")


def require_idle(host: AlarmHost) -> None:
    """Nobody has the turn to write, no scope is open and no pass is under way."""
    runtime = host._runtime
    assert runtime.database.transaction is None
    assert not runtime.database.queue._held
    assert not runtime.wakes.scopes_open
    assert runtime.passes.current is None
    assert not runtime.database.writer.in_transaction


def require_storage_errors(error: BaseException | None, fault: Fault) -> None:
    """Nothing but storage errors came out, and one of them has the fault as its cause."""
    if error is None:
        return
    assert isinstance(error, Exception)
    single = list(leaves(error))
    assert single
    causes = []
    for leaf in single:
        if isinstance(leaf, sqlite3.Error):
            # What a function of run_sync raises passes unchanged (R10).
            assert fault.struck[0] == APPLICATION_INSERT
            return
        assert isinstance(leaf, StorageOperationError), leaf
        causes.append(getattr(leaf.__cause__, "sqlite_errorname", None))
    assert CODES[fault.kind][0] in causes


def storage_options(executor: Any) -> StorageOptions:
    """Impatient storage: in a thread, which no clock sees, it waits for no lock at all."""
    return StorageOptions(
        executor=executor, synchronous="off", busy_timeout=0.1 if executor == "inline" else 0
    )
