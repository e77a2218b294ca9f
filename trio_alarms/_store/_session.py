"""One write transaction, from `begin` to `commit`, as the operations inside it see it.

Everything here runs where the connection lives, in one trip or, for a transaction block, in one
trip per statement. What an operation depends on in memory comes along with the trip.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import attrs

from .._errors import StorageOperationError
from .._model import AlarmParked, AlarmRef, AlarmRow
from .._time import instant_from_ms
from . import _alarms, _native
from ._connection import Connection, open_reader

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

# After these SQLite itself does not say whether the commit took place (R11).
_IN_DOUBT: Final = frozenset(
    {
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_ERROR,
    }
)

# After these the log does not hold all of the commit; after others (a failed fsync) it may.
_NOT_WHOLE: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE})


@attrs.define(eq=False)
class Part:
    """What one operation brings about, of several that share a transaction; or a whole block.

    `parked` is what it newly parked, once the transaction has committed. Most operations bring
    nothing about, and have none.
    """

    callbacks: list[Callable[[], None]] = attrs.Factory(list["Callable[[], None]"])
    # Those that were not parked before this transaction and have been in this part, in order.
    parking: dict[AlarmRef, None] = attrs.Factory(dict[AlarmRef, None])
    parked: tuple[AlarmParked, ...] = ()

    def run_callbacks(self) -> None:
        """Call what waited for the commit."""
        for callback in self.callbacks:
            callback()


@attrs.frozen
class _Mark:
    callbacks: int
    asks_reconciliation: bool


# An alarm's revision and whether it is parked, or that there is none.
_Known: TypeAlias = "tuple[bytes, bool] | None"

_NOTHING_IN_HAND: Final[Mapping[AlarmRef, bytes]] = MappingProxyType({})


class CommitProbe:
    """A second look at a commit that SQLite left open, through a connection of its own."""

    def __init__(self, path: str, *, busy_timeout_ms: int) -> None:
        self._path = path
        self._busy_timeout_ms = busy_timeout_ms
        self._connection: Connection | None = None

    def data_version(self) -> int:
        """A number that changes with every commit of another connection."""
        return int(self._opened().raw.execute("PRAGMA data_version").fetchone()[0])

    def revision(self, host: str, ref: AlarmRef) -> bytes | None:
        """The revision that is durable for an alarm."""
        row = _alarms.read(self._opened().raw, host, ref)
        return None if row is None else row.revision

    def close(self) -> None:
        """Close the connection, if one was needed."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _opened(self) -> Connection:
        if self._connection is None:
            self._connection = open_reader(self._path, busy_timeout_ms=self._busy_timeout_ms)
        return self._connection


class Session:
    """One open write transaction of a host.

    `now` and `in_hand` are what an operation depends on besides the table, read in the loop when
    its trip is sent.
    """

    __slots__ = (
        "_after",
        "_before",
        "_changes_before",
        "_parts",
        "_probe",
        "_undone",
        "asks_reconciliation",
        "connection",
        "host",
        "in_hand",
        "now",
        "part",
        "reconciled",
    )

    def __init__(self, connection: Connection, host: str, probe: CommitProbe) -> None:
        self.connection: Connection = connection
        self.host: str = host
        self.now: int = 0
        self.in_hand: Mapping[AlarmRef, bytes] = _NOTHING_IN_HAND
        self.asks_reconciliation: bool = False
        # Whether the commit did so.
        self.reconciled: bool = False
        self._probe = probe
        # What the operation that runs has brought about; all that will be committed is in `_parts`.
        self.part: Part | None = None
        self._parts: list[Part] = []
        self._changes_before = 0
        # Invariant: nothing is ever forgotten here. What a savepoint undoes is found to be as it
        # was before when the rows are read again at the commit.
        self._before: dict[AlarmRef, _Known] = {}
        # The revision that was last written of each (`None`: deleted), which saves reading it
        # again unless something was `_undone`.
        self._after: dict[AlarmRef, bytes | None] = {}
        self._undone = False

    def begin(self, *, synced: bool = True) -> None:
        """Begin; raises SQLite's busy error while another process writes."""
        self.connection.begin(synced=synced)
        self._changes_before = self.connection.raw.total_changes

    @property
    def has_changed_rows(self) -> bool:
        """Whether a statement has changed anything since it began."""
        return self.connection.raw.total_changes != self._changes_before

    def read(self, ref: AlarmRef) -> AlarmRow | None:
        """The row as this transaction sees it."""
        return _alarms.read(self.connection.raw, self.host, ref)

    def put(self, existing: AlarmRow | None, row: AlarmRow) -> None:
        """Write the row over the existing one."""
        self._touch(row.ref, existing)
        _alarms.write(self.connection.raw, self.host, row)
        self._after[row.ref] = row.revision
        if row.parked:
            before = self._before[row.ref]
            if before is None or not before[1]:
                self._opened_part().parking[row.ref] = None

    def remove(self, ref: AlarmRef) -> bool:
        """Delete the row, whatever it is; whether there was one."""
        return self.remove_row(ref, None if ref in self._before else self.read(ref))

    def remove_row(self, ref: AlarmRef, existing: AlarmRow | None) -> bool:
        """Delete the existing row; whether there was one."""
        self._touch(ref, existing)
        self._after[ref] = None
        return _alarms.delete(self.connection.raw, self.host, ref)

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Have `callback` called in the loop once this transaction has committed."""
        self._opened_part().callbacks.append(callback)

    def run_part(self, operation: Callable[[Session], T]) -> tuple[Part | None, T]:
        """Run one of several operations of this transaction, so that it fails for itself alone.

        Returns its part, if there is anything in it, and its value.
        """
        self.part = None
        parts = len(self._parts)
        asks_reconciliation = self.asks_reconciliation
        connection = self.connection
        connection.savepoint()
        try:
            value = operation(self)
            connection.release()
        except BaseException:
            self.part = None
            del self._parts[parts:]
            self.asks_reconciliation = asks_reconciliation
            self._undone = True
            connection.undo()
            raise
        return self.part, value

    def mark(self) -> _Mark:
        """Remember what was noted so far, for `forget_since`."""
        callbacks = 0 if self.part is None else len(self.part.callbacks)
        return _Mark(callbacks, self.asks_reconciliation)

    def forget_since(self, mark: _Mark) -> None:
        """Forget what was noted since, as the rows themselves were undone."""
        self._undone = True
        if self.part is not None:
            del self.part.callbacks[mark.callbacks :]
        self.asks_reconciliation = mark.asks_reconciliation

    def commit(self, reconciliation: _native.Reconciliation | None) -> _native.NativeChange | None:
        """Reconcile where that was asked for, and commit; a failure rolls everything back.

        Returns what reconciling changed, if it did; what was newly parked is in the parts.
        """
        try:
            change = None
            if self.asks_reconciliation and reconciliation is not None:
                self.reconciled = True
                change = _native.reconcile(self.connection.raw, self.host, reconciliation)
            if self._parts:
                self._find_newly_parked()
            witness = self._witness()
            probed = self._probe_before_commit() if witness is None else None
        except BaseException:
            self.connection.rollback()
            raise
        self._commit(witness, probed)
        return change

    def rollback(self) -> None:
        """Undo all of it."""
        self.connection.rollback()

    def _opened_part(self) -> Part:
        part = self.part
        if part is None:
            part = self.part = Part()
            self._parts.append(part)
        return part

    def _touch(self, ref: AlarmRef, existing: AlarmRow | None) -> None:
        if ref not in self._before:
            self._before[ref] = None if existing is None else (existing.revision, existing.parked)

    def _find_newly_parked(self) -> None:
        """Those that this transaction parked and that are still parked, each once (R16)."""
        told: set[AlarmRef] = set()
        for part in self._parts:
            rows = [self.read(ref) for ref in part.parking if ref not in told]
            told |= part.parking.keys()
            part.parked = tuple(
                AlarmParked(attempts=row.attempts, retry_at=instant_from_ms(row.wake_at))
                for row in rows
                if row is not None and row.parked
            )

    def _witness(self) -> tuple[AlarmRef, bytes | None] | None:
        """An alarm whose revision is the one given (`None`: it is gone) once this is durable.

        One that really changes: an alarm that was scheduled and cancelled again proves nothing.
        """
        for ref, before in reversed(self._before.items()):
            revision = self._revision_after(ref)
            if revision != (None if before is None else before[0]):
                return ref, revision
        return None

    def _revision_after(self, ref: AlarmRef) -> bytes | None:
        if not self._undone:
            return self._after[ref]
        row = self.read(ref)
        return None if row is None else row.revision

    def _probe_before_commit(self) -> int | None:
        """What to compare a doubtful commit with, where no alarm can tell."""
        return self._probe.data_version() if self.has_changed_rows else None

    def _commit(self, witness: tuple[AlarmRef, bytes | None] | None, probed: int | None) -> None:
        try:
            self.connection.commit()
        except sqlite3.Error as error:
            # Invariant: a transaction that is still open was not committed.
            if self.connection.in_transaction:
                self.connection.rollback()
                raise
            code = getattr(error, "sqlite_errorcode", 0)
            if (code & 0xFF) not in _IN_DOUBT:
                raise
            landed = self._landed(witness, probed)
            if landed is False and code not in _NOT_WHOLE and not self._supersede():
                landed = None
            if landed is None:
                raise StorageOperationError(
                    f"commit: {error}; whether it took place could not be found out",
                    operation="commit",
                    outcome="unknown",
                ) from error
            if not landed:
                raise

    def _supersede(self) -> bool:
        """Make sure that a commit that cannot be seen now is not found by the next start either.

        SQLite leaves it in the log behind what it shows; the next commit is written over it.
        """
        try:
            self.connection.begin()
            # Twice, as a row that stays as it is would not be written.
            for _ in range(2):
                self.connection.raw.execute("UPDATE trio_alarms_schema SET version = -version")
            self.connection.commit()
        except sqlite3.Error:
            return False
        return True

    def _landed(
        self, witness: tuple[AlarmRef, bytes | None] | None, probed: int | None
    ) -> bool | None:
        """Whether the commit is durable; `None` where even that cannot be read."""
        try:
            if witness is not None:
                ref, revision = witness
                return self._probe.revision(self.host, ref) == revision
            # A changed number may be another process's commit, so it proves nothing.
            return False if self._probe.data_version() == probed else None
        except sqlite3.Error:
            return None
