"""Every write of one host: who has the turn, one commit each, and what follows it (R11-R16)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import trio

from ._context import find
from ._errors import StorageOperationError
from ._handling import Handling, Reporting, current_handling
from ._reporting import Reporter, current_reporter, report_parked
from ._store._session import Committed, Moment, Session
from ._transactions import BlockFrame, OpenTransaction

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ._clock import AlarmClock
    from ._database import Database, Gate
    from ._model import AlarmParked, AlarmRef
    from ._store._connection import Connection
    from ._store._native import NativeChange, Reconciliation

T = TypeVar("T")


class Reconciler(Protocol):
    """What commits of a host leave the native alarm at; see `_wakes`."""

    def reconciliation(self, now: int) -> Reconciliation:
        """What a commit that is about to be sent reconciles to."""
        ...

    def committed(self, reconciliation: Reconciliation, change: NativeChange) -> None:
        """Take note of what a commit left."""
        ...


class HostWriter:
    """Every write of one host: alone in a transaction of its own, or inside the task's block."""

    def __init__(
        self,
        database: Database,
        gate: Gate,
        *,
        name: str,
        clock: AlarmClock,
        reconciler: Reconciler,
        reporter: Reporter | None,
    ) -> None:
        self.database = database
        self.gate = gate
        self.name = name
        self.clock = clock
        self.reconciler = reconciler
        self.closed = False
        self._reporter = reporter
        # The rows in hand and their revisions (R6). Changed only in the loop.
        self.in_hand: dict[AlarmRef, bytes] = {}

    def check_open(self, operation: str) -> None:
        """Refuse a host that was left, lost, or belongs to another Trio run (R12)."""
        if not _runs_in(self.database.token):
            raise StorageOperationError(
                f"{operation}: the host {self.name!r} was opened in another Trio run; from a thread"
                " use trio.from_thread",
                operation=operation,
            )
        self.gate.check(operation)
        if self.closed:
            raise StorageOperationError(
                f"{operation}: the host {self.name!r} is closed", operation=operation
            )

    def check_may_write(self, operation: str) -> None:
        """Refuse also what a handling that is over has left behind (R15)."""
        self.check_open(operation)
        handling = current_handling(self)
        if handling is not None and not handling.active:
            raise StorageOperationError(
                f"{operation}: the handling that started this task is over; what it left behind"
                " cannot change alarms or open transactions",
                operation=operation,
            )

    def moment(self) -> Moment:
        """What an operation depends on in memory, read as its trip is sent."""
        return Moment(self.clock.now_ms(), dict(self.in_hand))

    def current_transaction(self, operation: str) -> OpenTransaction | None:
        """The open transaction that the running task is inside of, if it may use it (R12)."""
        frame = find(
            BlockFrame,
            lambda frame: (
                frame.transaction.writer.database is self.database and frame.transaction.open
            ),
        )
        if frame is None:
            return None
        transaction = frame.transaction
        if transaction.owner is not trio.lowlevel.current_task():
            raise StorageOperationError(
                f"{operation}: this task was started inside a transaction block that another task"
                " holds; only the task that entered the block may write until it is left",
                operation=operation,
            )
        if transaction.writer is not self:
            raise StorageOperationError(
                f"{operation}: this task is inside a transaction block of the host"
                f" {transaction.writer.name!r} of the same database",
                operation=operation,
            )
        return transaction

    def own_transaction(self) -> OpenTransaction | None:
        """The open transaction on this file that the running task holds, be it another host's."""
        frame = find(
            BlockFrame,
            lambda frame: (
                frame.transaction.writer.database is self.database
                and frame.transaction.open
                and frame.transaction.owner is trio.lowlevel.current_task()
            ),
        )
        return None if frame is None else frame.transaction

    def refuse_inside_transaction(self, operation: str) -> None:
        """Refuse what cannot be done while a block of the same database is open (R17)."""
        if self.current_transaction(operation) is not None:
            raise StorageOperationError(
                f"{operation} cannot be used inside a transaction block; leave the block first",
                operation=operation,
            )

    async def write(
        self, operation: Callable[[Session], T], *, name: str, asks_reconciliation: bool = True
    ) -> T:
        """Run an operation on alarms: durable on return, or inside the task's block with it.

        A checkpoint. Cancelled before its commit has begun it leaves nothing behind, and not
        after (R11).
        """
        self.check_may_write(name)
        transaction = self.current_transaction(name)
        if transaction is not None:
            return await transaction.run_on_alarms(
                operation, name=name, asks_reconciliation=asks_reconciliation
            )
        await self.database.queue.acquire()
        return await self._commit_in_turn(
            operation,
            name=name,
            handling=current_handling(self),
            check=True,
            asks_reconciliation=asks_reconciliation,
        )

    async def write_surely(
        self,
        operation: Callable[[Session], T],
        *,
        name: str,
        handling: Handling | None = None,
        asks_reconciliation: bool = True,
    ) -> T:
        """Run an operation of ours that cancellation must not prevent; then it is raised.

        The turn is waited for as long as it takes, or once cancelled for `busy_timeout` more. On
        `Cancelled` the operation is stored; on `StorageOperationError` it is not, and whoever
        cancelled cancels the next checkpoint as well.
        """
        commit = partial(
            self._commit_in_turn,
            operation,
            name=name,
            handling=handling,
            asks_reconciliation=asks_reconciliation,
        )
        transaction = self.current_transaction(name)
        if transaction is not None:
            return await transaction.run_surely(operation, name=name)
        try:
            await self.database.queue.acquire()
        except trio.Cancelled:
            await self._within_bound(commit, name=name)
            raise
        with trio.CancelScope(shield=True):
            return await commit()
        raise AssertionError("a shielded scope without a deadline swallows nothing")

    async def write_within_bound(self, operation: Callable[[Session], T], *, name: str) -> T:
        """Run an operation of ours, shielded: turn and lock together get `busy_timeout`."""
        transaction = self.current_transaction(name)
        if transaction is not None:
            return await transaction.run_surely(operation, name=name)
        return await self._within_bound(
            partial(self._commit_in_turn, operation, name=name, handling=None), name=name
        )

    async def _within_bound(self, commit: Callable[..., Awaitable[T]], *, name: str) -> T:
        """Take the turn and commit, shielded and bounded by `busy_timeout` (R11, R19)."""
        self.gate.check(name)
        deadline = trio.current_time() + self.database.options.busy_timeout_seconds
        with trio.CancelScope(shield=True):
            with trio.move_on_at(deadline) as bound:
                await self.database.queue.acquire()
            if bound.cancelled_caught:
                raise StorageOperationError(
                    f"{name}: another task kept the turn to write for too long", operation=name
                )
            return await commit(deadline=deadline)
        raise AssertionError("a shielded scope without a deadline swallows nothing")

    async def read(self, function: Callable[[Connection], T], *, name: str) -> T:
        """Read what this task's block sees, or outside of one the last committed state."""
        self.check_open(name)
        transaction = self.own_transaction()
        if transaction is not None:
            return await transaction.run(lambda session: function(session.connection), name=name)
        return await self.database.read(function, self.gate, operation=name)

    async def look(self, function: Callable[[Session], T], *, name: str) -> T:
        """Look at rows on the writer, in turn, so that no write of this process comes between.

        Returns in the turn's own step: what the caller notes before its next checkpoint is noted
        before anybody writes.
        """
        await self.database.queue.acquire()
        try:
            session = self._session()
            session.at(self.moment())
            return await self.database.run(lambda: function(session), self.gate, operation=name)
        finally:
            self.database.queue.release()

    async def open_transaction(self, *, asks_reconciliation: bool) -> OpenTransaction:
        """Wait for the turn and begin; cancellable until then."""

        async def begin(session: Session) -> None:
            self.check_may_write("transaction")
            await self.database.run(session.begin, self.gate, operation="transaction")

        await self.database.queue.acquire()
        try:
            # The file may have been closed while the turn was waited for.
            session = self._session()
            session.asks_reconciliation = asks_reconciliation
            await self.database.until_unlocked(partial(begin, session))
        except BaseException:
            self.database.queue.release()
            raise
        transaction = self.database.transaction = OpenTransaction(self, session)
        try:
            # The handling may have ended, and the host been left, while it began.
            self.check_may_write("transaction")
        except BaseException:
            await transaction.roll_back()
            raise
        return transaction

    async def take_back(self, handling: Handling) -> None:  # noqa: ASYNC910 - rolling back is the checkpoint, where there is anything to do
        """Roll back the block that tasks of a handling that is over still hold (R15)."""
        transaction = self.database.transaction
        if transaction is not None and transaction.handling is handling:
            await transaction.take_over(
                "the handling that opened this transaction is over; it was rolled back"
            )

    async def after_commit(
        self, session: Session, committed: Committed, handling: Handling | None
    ) -> None:
        """Hand out what a commit brought: callbacks, and reports outside the handling (R16)."""
        session.run_callbacks()
        await self._report(committed.parked, handling)

    def note_commit(self, reconciliation: Reconciliation | None, committed: Committed) -> None:
        """Bring the wake guard and the driver up to date; before anybody else gets the turn."""
        if reconciliation is not None and committed.change is not None:
            self.reconciler.committed(reconciliation, committed.change)

    async def _commit_in_turn(
        self,
        operation: Callable[[Session], T],
        *,
        name: str,
        handling: Handling | None,
        check: bool = False,
        asks_reconciliation: bool = True,
        deadline: float | None = None,
    ) -> T:
        """One transaction with one operation, in one trip; the turn is given back."""

        async def attempt() -> tuple[Session, T, Committed]:
            # At every try: the handling may end, and the host be left, while another process
            # holds the lock.
            if check:
                self.check_may_write(name)
            else:
                self.check_open(name)
            return await self._commit_once(operation, name, asks_reconciliation=asks_reconciliation)

        try:
            session, value, committed = await self.database.until_unlocked(attempt, deadline)
        finally:
            self.database.queue.release()
        await self.after_commit(session, committed, handling)
        return value

    async def _commit_once(
        self, operation: Callable[[Session], T], name: str, *, asks_reconciliation: bool
    ) -> tuple[Session, T, Committed]:
        session = self._session()
        session.asks_reconciliation = asks_reconciliation
        session.at(self.moment())
        reconciliation = None
        if asks_reconciliation:
            reconciliation = self.reconciler.reconciliation(session.now)

        def trip() -> tuple[T, Committed]:
            session.begin()
            try:
                value = operation(session)
            except BaseException:
                session.rollback()
                raise
            return value, session.commit(reconciliation)

        value, committed = await self.database.run(trip, self.gate, operation=name)
        self.note_commit(reconciliation, committed)
        return session, value, committed

    def _session(self) -> Session:
        return Session(self.database.writer, self.name, self.database.probe)

    async def _report(self, parked: tuple[AlarmParked, ...], handling: Handling | None) -> None:
        if not parked:
            return  # noqa: ASYNC910 - nothing to report is no checkpoint; the commit before was one
        if handling is not None:
            handling.parked.extend(parked)
        with Reporting():
            await report_parked(parked, current_reporter(self._reporter))


def _runs_in(token: trio.lowlevel.TrioToken) -> bool:
    """Whether the caller is in this Trio run; not so in a thread, or in another run."""
    try:
        return trio.lowlevel.current_trio_token() is token
    except RuntimeError:
        return False
