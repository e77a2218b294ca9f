"""One SQLite connection of ours, and its guard against transaction control (R10, R60)."""

from __future__ import annotations

import re
import sqlite3
import weakref
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeGuard, TypeVar, cast

from .._arguments import describe
from .._errors import StorageOperationError
from ._files import database_uri

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ._seam import Seam

T = TypeVar("T")
_Opened = TypeVar("_Opened", sqlite3.Cursor, sqlite3.Blob)

# What a statement of the application's can raise: SQLite's errors, and those of Python's binding
# for values that it cannot pass on (an int over 64 bits, a lone surrogate, a wrong type).
STATEMENT_ERRORS: Final = (sqlite3.Error, OverflowError, ValueError, TypeError)

_CACHED_STATEMENTS: Final = 256
# What an error of ours repeats of SQLite's at most (characters).
_LONGEST_MESSAGE: Final = 300
# A WAL that a long reader made grow is cut back to this once it is checkpointed (bytes).
_WAL_SIZE_LIMIT: Final = 4 * 1024 * 1024

# Settings that durability or our own statements depend on; reading them is fine.
_PROTECTED_PRAGMAS: Final = frozenset(
    {
        "busy_timeout",
        "journal_mode",
        "journal_size_limit",
        "locking_mode",
        "query_only",
        "synchronous",
        "wal_autocheckpoint",
        "writable_schema",
    }
)
_CONTROL_KEYWORDS: Final = frozenset({"BEGIN", "COMMIT", "END", "ROLLBACK", "SAVEPOINT", "RELEASE"})
_READING_KEYWORDS: Final = frozenset({"SELECT", "WITH", "VALUES", "EXPLAIN", "PRAGMA"})

_FIRST_KEYWORD: Final = re.compile(
    r"(?:[\s;\ufeff]|--[^\n]*(?:\n|\Z)|/\*.*?(?:\*/|\Z))*([A-Za-z]*)", re.DOTALL
)
# The words and quoted names of a statement, with everything between them left out.
_WORD: Final = re.compile(
    r"""--[^\n]*|/\*.*?(?:\*/|\Z)|("(?:[^"]|"")*"|'(?:[^']|'')*'|`(?:[^`]|``)*`|\[[^\]]*\]|[\w$]+)""",
    re.DOTALL,
)

_OUR_SAVEPOINT: Final = "trio_alarms_savepoint"
_OPEN_SAVEPOINT: Final = f"SAVEPOINT {_OUR_SAVEPOINT} /* trio_alarms */"
_RELEASE_SAVEPOINT: Final = f"RELEASE {_OUR_SAVEPOINT} /* trio_alarms */"
_UNDO_SAVEPOINT: Final = f"ROLLBACK TO {_OUR_SAVEPOINT} /* trio_alarms */"


def first_keyword(sql: str) -> str:
    """The keyword that a statement begins with, after whitespace and comments, in capitals."""
    match = _FIRST_KEYWORD.match(sql)
    return "" if match is None else match.group(1).upper()


def is_busy(error: BaseException | None) -> bool:
    """Whether another connection's lock is what kept a statement from running."""
    return _primary_code(error) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def is_corrupt(error: BaseException | None) -> bool:
    """Whether SQLite found the file damaged."""
    return _primary_code(error) in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def failure_kind(error: BaseException | None) -> str:
    """SQLite's name for what went wrong, for telling one episode of failures from another."""
    return str(getattr(error, "sqlite_errorname", type(error).__name__))


def _primary_code(error: BaseException | None) -> int | None:
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


class _RawConnection(sqlite3.Connection):
    """A connection that is closed with its host, and whose opened cursors can be found.

    An unfinished `SELECT` keeps its snapshot, after which nothing can be written once another
    process has committed; an unfinished `INSERT … RETURNING` keeps every commit from happening.
    """

    @contextmanager
    def opened_are_closed(self) -> Iterator[None]:
        """Close, on leaving, every cursor and blob that the body has opened.

        It is of another class inside: noting each cursor costs a quarter of a statement, which
        only a function of the application's is to pay.
        """
        kind = type(self)
        self.__class__ = _noting(kind)  # pyright: ignore[reportAttributeAccessIssue]  # same layout
        opened = self._opened = weakref.WeakSet[sqlite3.Cursor | sqlite3.Blob]()
        try:
            yield
        finally:
            self.__class__ = kind
            for each in list(opened):
                each.close()


class _Noting(sqlite3.Connection):
    """Notes what is opened; for the time of `_RawConnection.opened_are_closed`."""

    _opened: weakref.WeakSet[sqlite3.Cursor | sqlite3.Blob]

    def close(self) -> None:
        raise sqlite3.ProgrammingError("the connection is closed with its host, not before")

    def cursor(self, *arguments: Any, **keywords: Any) -> Any:
        return self._noted(super().cursor(*arguments, **keywords))

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        return self._noted(super().execute(*arguments))

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        return self._noted(super().executemany(*arguments))

    def executescript(self, *arguments: Any) -> sqlite3.Cursor:
        return self._noted(super().executescript(*arguments))

    def blobopen(self, *arguments: Any, **keywords: Any) -> sqlite3.Blob:
        return self._noted(super().blobopen(*arguments, **keywords))

    def _noted(self, opened: _Opened) -> _Opened:
        self._opened.add(opened)
        return opened


def _noting(kind: type[_RawConnection]) -> type[_RawConnection]:
    """The same kind of connection, of the same layout, with its openings noted."""
    return type(f"_Noting{kind.__name__}", (_Noting, kind), {})


class Connection:
    """A connection whose transaction is controlled by us alone.

    An authorizer refuses `BEGIN`, `COMMIT` and their like while `_controlling` is false. It is
    asked when a statement is *prepared*, and Python caches prepared statements; therefore our
    own control statements carry a comment that no application sends, and statements of the
    application are looked at before they are sent as well.
    """

    def __init__(
        self, raw: _RawConnection, synchronous: Literal["full", "normal", "off"] = "full"
    ) -> None:
        self.raw = raw
        self._synchronous: Literal["full", "normal", "off"] = synchronous
        # Invariant: whether SQLite's level is the one above; see `begin`.
        self._synced = True
        # Invariant: true only while one of our own control statements runs.
        self._controlling = False
        # Invariant: true only while a function of the application's runs in `call`.
        self._savepoints_allowed = False
        self._refused: str | None = None
        self.seam: Seam | None = None
        raw.set_authorizer(self._authorize)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open; false after SQLite has rolled back by itself."""
        return self.raw.in_transaction

    def close(self) -> None:
        """Close it; what is not committed is lost."""
        self.raw.close()

    def begin(self, *, synced: bool = True) -> None:
        """Begin a write transaction; `sqlite3.OperationalError` while another writer holds it.

        Not `synced` its commit is not waited for until the disk has it: a crash of the system, but
        not of the process, may undo it together with all that comes before the next synced one.
        """
        # Open only where rolling back has failed; nobody may commit that.
        self.rollback()
        if synced is not self._synced:
            level = self._synchronous if synced or self._synchronous == "off" else "normal"
            self._control(f"PRAGMA synchronous = {level} /* trio_alarms */")
            self._synced = synced
        self._control("BEGIN IMMEDIATE /* trio_alarms */")

    def commit(self) -> None:
        """Commit the open transaction."""
        if self.seam is not None:
            self.seam.before_commit()
        self._control("COMMIT /* trio_alarms */")
        if self.seam is not None:
            self.seam.after_commit()

    def rollback(self) -> None:
        """Roll back what is open, if anything is.

        A transaction that stayed open would keep every other process from writing: hence the
        second try.
        """
        for last_try in (False, True):
            if not self.raw.in_transaction:
                return
            try:
                self._control("ROLLBACK /* trio_alarms */")
            except sqlite3.Error:
                if last_try:
                    raise

    def savepoint(self) -> None:
        """Open a savepoint inside the innermost one."""
        self._control(_OPEN_SAVEPOINT)

    def release(self) -> None:
        """Keep what was done since the innermost savepoint."""
        self._control(_RELEASE_SAVEPOINT)

    def undo(self) -> None:
        """Undo what was done since the innermost savepoint, and close it.

        Nothing is left to undo where SQLite has rolled back the transaction by itself. Where it
        cannot be undone, all of the transaction is: never is more kept than was asked for.
        """
        if not self.raw.in_transaction:
            return
        try:
            self._control(_UNDO_SAVEPOINT)
            self.release()
        except sqlite3.Error:
            self.rollback()
            raise

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """A savepoint around a block of code: an exception undoes what the block did."""
        self.savepoint()
        try:
            yield
            if self.raw.in_transaction:
                self.release()
        except BaseException:
            self.undo()
            raise

    @contextmanager
    def _atomic_around_application(self, operation: str) -> Iterator[None]:
        """As `atomic`; what its own statements raise is ours, what the block raises is not."""
        raised: BaseException | None = None
        try:
            with self.atomic():
                try:
                    yield
                except BaseException as error:
                    raised = error
                    raise
        except sqlite3.Error as error:
            if error is raised:
                raise
            raise StorageOperationError(f"{operation}: {error}", operation=operation) from error

    def execute(self, sql: str, parameters: Any) -> list[tuple[Any, ...]]:
        """Run one statement of the application's."""
        sql = _plain(sql)
        self._refuse_control(sql, "execute")
        with self._translated("execute"):
            return self.raw.execute(sql, _bindable(parameters, "execute")).fetchall()

    def executemany(self, sql: str, rows: Iterable[Any]) -> None:
        """Run one statement of the application's for every row: all of them, or none."""
        sql = _plain(sql)
        self._refuse_control(sql, "executemany")
        try:
            each = iter(rows)
        except Exception as error:
            raise StorageOperationError(
                f"executemany: rows must be an iterable of parameters, not {describe(rows)}",
                operation="executemany",
            ) from error
        with self.atomic(), self._translated("executemany"):
            self.raw.executemany(sql, (_bindable(row, "executemany") for row in each))

    def query(self, sql: str, parameters: Any) -> list[tuple[Any, ...]]:
        """Run one statement that only reads."""
        sql = _plain(sql)
        if issubclass(type(sql), str) and first_keyword(sql) not in _READING_KEYWORDS:
            raise StorageOperationError(
                "query: the SQL must only read (SELECT, VALUES, WITH, EXPLAIN or PRAGMA); write"
                " in a transaction block with tx.execute",
                operation="query",
            )
        if not self.raw.in_transaction:
            with self._translated("query"):
                return self.raw.execute(sql, _bindable(parameters, "query")).fetchall()
        with self.atomic():
            changes = self.raw.total_changes
            with self._translated("query"):
                found = self.raw.execute(sql, _bindable(parameters, "query")).fetchall()
            if self.raw.total_changes != changes:
                raise StorageOperationError(
                    "query: the SQL changed rows; write with tx.execute", operation="query"
                )
        return found

    def call(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Call a function of the application's inside a savepoint of ours (R10).

        What it raises passes unchanged, and all that it changed is undone. A savepoint that it
        leaves open undoes it too. Once SQLite has rolled back by itself, no statement runs.
        """
        raw = self.raw
        open_names: list[str] = []

        def follow(statement: str) -> None:
            if not raw.in_transaction:
                # SQLite has rolled back by itself, and the function goes on: what it writes now
                # would be committed at once, statement by statement.
                raw.interrupt()
            _follow_savepoints(open_names, statement)

        with self._atomic_around_application("run_sync"):
            with self._settings_kept(), raw.opened_are_closed():
                self._savepoints_allowed = True
                self.raw.set_trace_callback(follow)
                try:
                    result = function(self.raw)
                finally:
                    self._savepoints_allowed = False
                    self.raw.set_trace_callback(None)
            if open_names and self.raw.in_transaction:
                raise StorageOperationError(
                    f"run_sync: the function left the savepoint {open_names[-1]!r} open; all that"
                    " it changed was undone. Release or roll back what it opens",
                    operation="run_sync",
                )
        return result

    def _control(self, sql: str) -> None:
        self._controlling = True
        try:
            self.raw.execute(sql)
        finally:
            self._controlling = False

    def _authorize(
        self, action: int, first: str | None, second: str | None, _: str | None, __: str | None
    ) -> int:
        if self._controlling:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_TRANSACTION:
            self._refused = f"{first or 'transaction control'}"
            return sqlite3.SQLITE_DENY
        if action == sqlite3.SQLITE_SAVEPOINT and not (
            self._savepoints_allowed and (second or "").lower() != _OUR_SAVEPOINT
        ):
            self._refused = f"{first or ''} SAVEPOINT".strip()
            return sqlite3.SQLITE_DENY
        if (
            action == sqlite3.SQLITE_PRAGMA
            and second is not None
            and (first or "").lower() in _PROTECTED_PRAGMAS
        ):
            self._refused = f"PRAGMA {first}"
            return sqlite3.SQLITE_DENY
        if action in {sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH}:
            # It would outlive the block, and a commit over two files is not atomic in WAL mode.
            self._refused = "ATTACH or DETACH"
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    def _refuse_control(self, sql: Any, operation: str) -> None:
        if issubclass(type(sql), str) and first_keyword(sql) in _CONTROL_KEYWORDS:
            raise _refusal(first_keyword(sql), operation)

    @contextmanager
    def _translated(self, operation: str) -> Iterator[None]:
        self._refused = None
        try:
            yield
        except STATEMENT_ERRORS as error:
            if self._refused is not None:
                raise _refusal(self._refused, operation) from error
            # SQLite quotes the statement where it is wrong, which may be all of a long one.
            text = str(error)
            if len(text) > _LONGEST_MESSAGE:
                text = f"{text[:_LONGEST_MESSAGE]} …"
            raise StorageOperationError(
                f"{operation}: {type(error).__name__}: {text}", operation=operation
            ) from error

    @contextmanager
    def _settings_kept(self) -> Iterator[None]:
        """Put back what a function may have changed on the connection and we depend on."""
        raw = self.raw
        kept = (raw.row_factory, raw.text_factory)
        try:
            yield
        finally:
            raw.row_factory, raw.text_factory = kept
            if raw.isolation_level is not None:
                try:
                    raw.isolation_level = None
                except sqlite3.Error:
                    # Python commits when the level becomes None; the authorizer refuses that, and
                    # the level is set all the same.
                    pass


def open_writer(
    path: str, *, synchronous: Literal["full", "normal", "off"], busy_timeout_ms: int
) -> Connection:
    """Open the connection that writes; the file is switched to WAL by `use_wal` later."""
    raw = sqlite3.connect(
        database_uri(path, mode="rw"),
        uri=True,
        timeout=busy_timeout_ms / 1000,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=_CACHED_STATEMENTS,
        factory=_RawConnection,
    )
    try:
        raw.execute(f"PRAGMA synchronous = {synchronous}")
        raw.execute(f"PRAGMA journal_size_limit = {_WAL_SIZE_LIMIT}")
        return Connection(raw, synchronous)
    except BaseException:
        raw.close()
        raise


def use_wal(connection: Connection) -> None:
    """Switch the file to a write-ahead log; needs a moment in which nobody else uses it."""
    raw = connection.raw
    if raw.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
        return
    connection._controlling = True  # noqa: SLF001 - the switch is a protected pragma
    try:
        mode = raw.execute("PRAGMA journal_mode = wal").fetchone()[0]
    finally:
        connection._controlling = False  # noqa: SLF001 - as above
    if mode != "wal":
        raise StorageOperationError(
            f"the database could not be switched to a write-ahead log; it stays in {mode!r} mode",
            operation="open",
        )


def open_reader(path: str, *, busy_timeout_ms: int) -> Connection:
    """Open a connection that sees the last committed state and can change nothing."""
    raw = sqlite3.connect(
        database_uri(path, mode="rw"),
        uri=True,
        timeout=busy_timeout_ms / 1000,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=_CACHED_STATEMENTS,
        factory=_RawConnection,
    )
    try:
        raw.execute("PRAGMA query_only = 1")
        return Connection(raw)
    except BaseException:
        raw.close()
        raise


def _plain(sql: str) -> str:
    """The text alone: methods of a subclass of str are not ours to call."""
    return str.__str__(sql) if issubclass(type(sql), str) else sql


def _is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    return isinstance(value, Mapping)


def _bindable(parameters: object, operation: str) -> Any:
    """What sqlite3 takes as parameters."""
    kind: object = type(parameters)
    if kind is tuple or kind is list or kind is dict:
        return parameters
    try:
        if _is_mapping(parameters):
            return dict(parameters)
        return tuple(cast("Iterable[Any]", parameters))
    except Exception as error:
        raise StorageOperationError(
            f"{operation}: params must be a sequence or a mapping, not {describe(parameters)}",
            operation=operation,
        ) from error


def _refusal(what: str, operation: str) -> StorageOperationError:
    return StorageOperationError(
        f"{operation}: {what} is refused; the transaction block alone controls its transaction and"
        " the settings that durability depends on (leave the block to commit, raise to roll back,"
        " nest a block for a savepoint)",
        operation=operation,
    )


def _follow_savepoints(open_names: list[str], statement: str) -> None:
    """Keep the stack of savepoints that the statements so far have left open."""
    # Most statements are neither; a look at the first letter spares them the pattern.
    if statement.lstrip()[:1].upper() not in {"S", "R", "-", "/", ";"}:
        return
    words = [word for word in _WORD.findall(statement) if word]
    if len(words) < 2 or words[0].upper() not in {"SAVEPOINT", "RELEASE", "ROLLBACK"}:
        return
    verb, name = words[0].upper(), _savepoint_name(words[-1])
    if verb == "SAVEPOINT":
        open_names.append(name)
        return
    if name not in open_names:
        return
    position = len(open_names) - 1 - open_names[::-1].index(name)
    keep = position if verb == "RELEASE" else position + 1
    del open_names[keep:]


def _savepoint_name(word: str) -> str:
    """A name as SQLite compares it: without its quotes, ASCII letters in lower case."""
    quote = word[0]
    if quote in "\"'`":
        word = word[1:-1].replace(quote * 2, quote)
    elif quote == "[":
        word = word[1:-1]
    return word.encode(errors="surrogatepass").lower().decode(errors="surrogatepass")
