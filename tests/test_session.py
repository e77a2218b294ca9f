"""One write transaction: commits that SQLite leaves open, and what it finds newly parked."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import attrs
import pytest

from trio_alarms import AlarmParked, AlarmRef, StorageOperationError
from trio_alarms._model import AlarmRow
from trio_alarms._operations import new_revision
from trio_alarms._store import _alarms, _native
from trio_alarms._store._connection import Connection, open_writer, use_wal
from trio_alarms._store._native import Reconciliation
from trio_alarms._store._schema import migrate
from trio_alarms._store._session import CommitProbe, Session

HOST = "default"
A, B = AlarmRef("tag", "a"), AlarmRef("tag", "b")

# How a session changes something whose commit is then put in doubt.
Change = Callable[[Session], None]


def row(ref: AlarmRef, *, parked: bool = False, run_at: int = 1_000) -> AlarmRow:
    """An alarm of this identity, with a revision that never was."""
    return AlarmRow(
        ref=ref,
        lifecycle="automatic",
        run_at=run_at,
        wake_at=run_at,
        retry_at=run_at if parked else None,
        repeat_every=None,
        progress=-1,
        attempts=8 if parked else 0,
        parked=parked,
        revision=new_revision(),
        payload="null",
    )


class DoubtfulConnection(Connection):
    """A connection whose next commit fails with an error, before or after it took place."""

    error: sqlite3.Error | None = None
    lands = False

    def commit(self) -> None:
        """Commit or roll back, then fail."""
        error, self.error = self.error, None
        if error is None:
            super().commit()
            return
        if self.lands:
            super().commit()
        else:
            self.rollback()
        raise error


def sqlite_error(code: int) -> sqlite3.OperationalError:
    """An error as SQLite's binding raises it."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code
    error.sqlite_errorname = "SQLITE_IOERR"
    return error


@pytest.fixture
def path(tmp_path: Path) -> str:
    """An empty database file."""
    path = tmp_path / "alarms.db"
    path.touch()
    return str(path)


@pytest.fixture
def connection(path: str) -> Iterator[DoubtfulConnection]:
    """A writer with the tables, an application's table, and the alarm A."""
    opened = open_writer(path, synchronous="full", busy_timeout_ms=0)
    use_wal(opened)
    connection = DoubtfulConnection(opened.raw)
    connection.begin()
    migrate(connection.raw, path)
    connection.raw.execute("CREATE TABLE items (id INTEGER PRIMARY KEY)")
    _alarms.write(connection.raw, HOST, row(A))
    connection.commit()
    yield connection
    connection.close()


@pytest.fixture
def probe(path: str) -> Iterator[CommitProbe]:
    """The second look at a commit."""
    probe = CommitProbe(path, busy_timeout_ms=0)
    yield probe
    probe.close()


@pytest.fixture
def session(connection: DoubtfulConnection, probe: CommitProbe) -> Session:
    """A transaction that has begun."""
    session = Session(connection, HOST, probe)
    session.begin()
    return session


def ids(path: str) -> list[str]:
    """The ids of the alarms that are durable."""
    with closing(sqlite3.connect(path)) as other:
        return [found[0] for found in other.execute("SELECT id FROM trio_alarms_alarms ORDER BY 1")]


def replace(session: Session) -> None:
    """Schedule A anew."""
    session.put(session.read(A), row(A))


def add(session: Session) -> None:
    """Schedule B for the first time."""
    session.put(None, row(B))


def remove(session: Session) -> None:
    """Cancel A."""
    session.remove(A)


def remove_missing(session: Session) -> None:
    """Cancel B, which is not there, and A, which is."""
    session.remove(A)
    session.remove(B)


def add_then_remove(session: Session) -> None:
    """Schedule A anew, then B, then cancel B again: B proves nothing."""
    replace(session)
    add(session)
    session.remove(B)


def undo_the_last(session: Session) -> None:
    """Schedule A anew, and undo a later schedule of A and of B with a savepoint."""
    replace(session)
    mark = session.mark()
    session.connection.savepoint()
    replace(session)
    add(session)
    session.connection.undo()
    session.forget_since(mark)


CHANGES = [replace, add, remove, remove_missing, add_then_remove, undo_the_last]
DOUBTFUL = [sqlite3.SQLITE_IOERR, sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_FULL]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("code", DOUBTFUL)
def test_a_commit_that_took_place_in_spite_of_its_error_is_a_success(
    connection: DoubtfulConnection, session: Session, change: Change, code: int
) -> None:
    """A commit that SQLite reports as failed, but that is durable, succeeds (R11)."""
    change(session)
    connection.error, connection.lands = sqlite_error(code), True
    session.commit(None)
    assert not connection.in_transaction


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("code", DOUBTFUL)
def test_a_commit_that_did_not_take_place_is_an_error(
    connection: DoubtfulConnection, session: Session, path: str, change: Change, code: int
) -> None:
    """A commit that is not durable raises, whatever the transaction had written (R11)."""
    change(session)
    error = connection.error = sqlite_error(code)
    with pytest.raises(sqlite3.OperationalError) as caught:
        session.commit(None)
    assert caught.value is error
    assert ids(path) == ["a"]


def test_application_rows_alone_are_never_taken_for_rolled_back(
    connection: DoubtfulConnection, session: Session
) -> None:
    """Without an alarm to tell by, a durable commit is not reported as rolled back (R11)."""
    connection.raw.execute("INSERT INTO items (id) VALUES (1)")
    error, connection.lands = sqlite_error(sqlite3.SQLITE_IOERR), True
    connection.error = error
    with pytest.raises(StorageOperationError) as caught:
        session.commit(None)
    assert caught.value.outcome == "unknown"
    assert caught.value.__cause__ is error


def test_application_rows_alone_that_were_rolled_back_are_an_error(
    connection: DoubtfulConnection, session: Session
) -> None:
    """Without an alarm to tell by, a commit that did not take place raises (R11)."""
    connection.raw.execute("INSERT INTO items (id) VALUES (1)")
    connection.error = sqlite_error(sqlite3.SQLITE_IOERR)
    with pytest.raises(sqlite3.OperationalError):
        session.commit(None)


@pytest.mark.parametrize("lands", [True, False])
def test_the_outcome_is_unknown_where_it_cannot_be_read(
    connection: DoubtfulConnection,
    session: Session,
    probe: CommitProbe,
    monkeypatch: pytest.MonkeyPatch,
    *,
    lands: bool,
) -> None:
    """Where the second look fails too, the outcome is "unknown" (R11)."""

    def fail(*_: object) -> None:
        raise sqlite_error(sqlite3.SQLITE_IOERR)

    replace(session)
    monkeypatch.setattr(probe, "revision", fail)
    error, connection.lands = sqlite_error(sqlite3.SQLITE_IOERR), lands
    connection.error = error
    with pytest.raises(StorageOperationError) as caught:
        session.commit(None)
    assert caught.value.outcome == "unknown"
    assert caught.value.__cause__ is error


def test_a_commit_that_leaves_the_transaction_open_rolls_it_back(
    connection: DoubtfulConnection, session: Session, path: str
) -> None:
    """A commit that a deferred constraint refuses is rolled back, and the next one works (R10)."""
    session.rollback()
    connection.raw.execute("PRAGMA foreign_keys = on")
    connection.raw.execute(
        "CREATE TABLE parts (item INTEGER REFERENCES items (id) DEFERRABLE INITIALLY DEFERRED)"
    )
    session.begin()
    add(session)
    connection.raw.execute("INSERT INTO parts VALUES (7)")
    with pytest.raises(sqlite3.IntegrityError):
        session.commit(None)
    assert not connection.in_transaction
    assert ids(path) == ["a"]
    session.begin()
    add(session)
    session.commit(None)
    assert ids(path) == ["a", "b"]


def test_a_reconciliation_that_fails_rolls_back(
    connection: DoubtfulConnection, session: Session, path: str
) -> None:
    """What cannot be reconciled is not committed (R10)."""
    session.rollback()
    connection.raw.execute(
        "CREATE TRIGGER refuse BEFORE INSERT ON trio_alarms_hosts"
        " BEGIN SELECT RAISE(ABORT, 'refused'); END"
    )
    session.begin()
    add(session)
    session.asks_reconciliation = True
    with pytest.raises(sqlite3.IntegrityError, match="refused"):
        session.commit(Reconciliation(0))
    assert not connection.in_transaction
    assert ids(path) == ["a"]


def test_the_native_alarm_is_part_of_the_commit(
    connection: DoubtfulConnection, session: Session
) -> None:
    """A commit that asks for it leaves the native alarm at the least wake (R20)."""
    session.put(None, row(B, run_at=400))
    session.asks_reconciliation = True
    change = session.commit(Reconciliation(0))
    assert change == _native.NativeChange(None, 400)
    assert _native.read(connection.raw, HOST) == _native.NativeState(managed=True, native_alarm=400)


def test_an_undone_request_for_reconciliation_is_forgotten(
    connection: DoubtfulConnection, session: Session
) -> None:
    """What a savepoint undoes does not make the host managed (R13, R35)."""
    mark = session.mark()
    session.asks_reconciliation = True
    session.forget_since(mark)
    connection.raw.execute("INSERT INTO items (id) VALUES (1)")
    assert session.commit(Reconciliation(0)) is None
    assert not _native.read(connection.raw, HOST).managed


def newly_parked(session: Session) -> tuple[AlarmParked, ...]:
    """Commit, and say what is reported then."""
    session.commit(None)
    return () if session.part is None else session.part.parked


PARKED = AlarmParked(attempts=8, retry_at=datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))


class TestNewlyParked:
    """Which alarms a commit reports as parked (R16)."""

    def test_each_one_once(self, session: Session) -> None:
        """An alarm that a transaction parks is reported once, however often it is written (R16)."""
        parked = row(A, parked=True)
        session.put(session.read(A), parked)
        session.put(parked, attrs.evolve(parked, revision=new_revision()))
        session.put(None, row(B, parked=True))
        assert newly_parked(session) == (PARKED, PARKED)

    def test_not_what_was_parked_before(self, session: Session, probe: CommitProbe) -> None:
        """An alarm is not reported again in the same parked episode (R16)."""
        session.put(session.read(A), row(A, parked=True))
        assert newly_parked(session) == (PARKED,)
        later = Session(session.connection, HOST, probe)
        later.begin()
        later.put(later.read(A), row(A, parked=True))
        assert newly_parked(later) == ()

    def test_not_what_was_parked_before_and_cancelled_meanwhile(
        self, session: Session, probe: CommitProbe
    ) -> None:
        """Cancelled and parked again within one transaction, it is the same episode (R16)."""
        session.put(session.read(A), row(A, parked=True))
        session.commit(None)
        later = Session(session.connection, HOST, probe)
        later.begin()
        later.remove(A)
        later.put(None, row(A, parked=True))
        assert newly_parked(later) == ()

    def test_not_what_is_no_longer_parked(self, session: Session) -> None:
        """An alarm that the transaction itself unparks or cancels again is not reported (R16)."""
        session.put(session.read(A), row(A, parked=True))
        session.put(session.read(A), row(A))
        session.put(None, row(B, parked=True))
        session.remove(B)
        assert newly_parked(session) == ()

    def test_not_what_was_undone(self, session: Session) -> None:
        """What a savepoint undoes is not reported (R13, R16)."""

        def park_and_fail() -> None:
            with session.connection.atomic():
                session.put(session.read(A), row(A, parked=True))
                raise ValueError("undo")

        mark = session.mark()
        with pytest.raises(ValueError, match="undo"):
            park_and_fail()
        session.forget_since(mark)
        assert newly_parked(session) == ()


def test_callbacks_of_what_was_undone_are_not_called(session: Session) -> None:
    """Only what is durable is told after the commit (R36)."""
    called: list[str] = []
    session.after_commit(lambda: called.append("kept"))
    mark = session.mark()
    session.after_commit(lambda: called.append("undone"))
    session.forget_since(mark)
    session.commit(None)
    assert session.part is not None
    session.part.run_callbacks()
    assert called == ["kept"]
