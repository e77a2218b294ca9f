"""Who may write now: turns, transaction blocks, savepoints, and what follows a commit (R10-R16)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import attrs
import trio

from ._context import Frame, find
from ._database import Gate
from ._errors import StorageOperationError
from ._handling import Handling, Reporting, current_handling
from ._reporting import Reporter, current_reporter, logger, report_parked
from ._store._session import Committed, Moment, Session

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from ._clock import AlarmClock
    from ._database import Database
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


@attrs.frozen
class _Outcome(Generic[T]):
    """What a trip brought back; errors of the application's pass through it unchanged."""

    value: T | None = None
    error: BaseException | None = None


class BlockFrame(Frame):
    """The frame of a transaction block."""

    def __init__(self, transaction: OpenTransaction) -> None:
        self.transaction = transaction


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
        await self.database.queue.acquire()
        session = self._session()
        session.asks_reconciliation = asks_reconciliation

        async def begin() -> None:
            self.check_may_write("transaction")
            await self.database.run(session.begin, self.gate, operation="transaction")

        try:
            await self.database.until_unlocked(begin)
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
            return  # noqa: ASYNC910 - rolling back is the checkpoint, where there is anything to do
        if handling is not None:
            handling.parked.extend(parked)
        with Reporting():
            await report_parked(parked, current_reporter(self._reporter))


class OpenTransaction:
    """One open transaction of one task, with its blocks: the outermost and its savepoints."""

    def __init__(self, writer: HostWriter, session: Session) -> None:
        self.writer = writer
        self.session = session
        self.owner = trio.lowlevel.current_task()
        self.handling = current_handling(writer)
        # Invariant: true from `BEGIN` until the commit or rollback is over. While it is true the
        # turn is ours.
        self.open = True
        # Why nothing more can be done in it, once that is so.
        self.broken: str | None = None
        # The blocks that are entered, the innermost last.
        self.blocks: list[Block] = []
        # Invariant: set, without a checkpoint, before the trip that commits or rolls back, so
        # that only one task ever ends it and never when the connection is somebody else's.
        self._ending = False
        # Invariant: true from before a trip is sent until it is back.
        self._under_way = False

    async def run(self, function: Callable[[Session], T], *, name: str) -> T:
        """Call a function in the transaction; SQLite's errors become ours."""
        return await self._trip(partial(function, self.session), name=name)

    async def run_on_alarms(
        self, operation: Callable[[Session], T], *, name: str, asks_reconciliation: bool = True
    ) -> T:
        """Run an operation on alarms as a savepoint; the commit will reconcile (R13)."""
        session = self.session

        def atomically() -> T:
            mark = session.mark()
            try:
                with session.connection.atomic():
                    value = operation(session)
            except BaseException:
                session.forget_since(mark)
                raise
            session.asks_reconciliation |= asks_reconciliation
            return value

        return await self._trip(atomically, name=name)

    async def run_surely(self, operation: Callable[[Session], T], *, name: str) -> T:
        """As `run_on_alarms`, shielded: for an operation of ours that waits for no turn.

        Reached where scopes are not left innermost first: waiting for the turn would be waiting
        for oneself.
        """
        with trio.CancelScope(shield=True):
            return await self.run_on_alarms(operation, name=name)
        raise AssertionError("a shielded scope without a deadline swallows nothing")

    async def run_application(self, function: Callable[[Session], T], *, name: str) -> T:
        """Call the application's code in the transaction; what it raises passes unchanged."""

        def capture() -> _Outcome[T]:
            try:
                return _Outcome(value=function(self.session))
            except BaseException as error:  # noqa: BLE001 - handed over and raised in the loop
                return _Outcome(error=error)

        outcome = await self._trip(capture, name=name)
        if outcome.error is not None:
            raise outcome.error
        return outcome.value  # type: ignore[return-value]  # None only where T allows it

    def check_usable(self, name: str) -> None:
        """Refuse the wrong task, a left block, a lost host, and a broken transaction."""
        self.writer.check_open(name)
        if self.broken is not None:
            self.refuse_broken(name)
        if not self.open:
            raise StorageOperationError(
                f"{name}: the transaction block was left; its methods work only inside it",
                operation=name,
            )
        if trio.lowlevel.current_task() is not self.owner:
            raise StorageOperationError(
                f"{name}: a transaction's methods work only in the task that entered the block",
                operation=name,
            )
        self.refuse_broken(name)

    def refuse_broken(self, name: str) -> None:
        """Refuse what can no longer be committed."""
        self._notice_rollback()
        if self.broken is None and self.handling is not None and not self.handling.active:
            self.broken = "the handling that opened this transaction is over; it is rolled back"
        if self.broken is not None:
            raise StorageOperationError(f"{name}: {self.broken}", operation=name)

    async def commit(self) -> None:
        """Reconcile and commit; honours cancellation until the commit begins, not after (R11)."""
        writer = self.writer
        try:
            self.check_usable("commit")
            await trio.lowlevel.checkpoint_if_cancelled()
        except BaseException:
            await self.roll_back()
            raise
        self._ending = True
        with trio.CancelScope(shield=True):
            try:
                committed = await self._commit_trip()
            finally:
                self._over()
            await writer.after_commit(self.session, committed, self.handling)

    async def roll_back(self) -> None:  # noqa: ASYNC910 - rolling back is the checkpoint, where there is anything to do
        """Undo all of it, shielded. A failure to do so is logged: the error that led here stands.

        Nothing is left to do where the transaction was taken over.
        """
        if self._ending or not self.open:
            return  # noqa: ASYNC910 - rolling back is the checkpoint, where there is anything to do
        self._ending = True
        try:
            with trio.CancelScope(shield=True):
                # Past the host's gate: rolling back writes nothing, and a lost host lets go.
                await self.writer.database.run(self.session.rollback, Gate(), operation="rollback")
        except StorageOperationError as error:
            logger.error("a transaction could not be rolled back", exc_info=error)
        finally:
            self._over()

    async def take_over(self, why: str) -> None:  # noqa: ASYNC910 - rolling back is the checkpoint, where there is anything to do
        """Roll it back from another task than its owner, who gets `why` as an error."""
        if not self._ending:
            self.broken = why
            await self.roll_back()

    def abandon(self, why: str) -> None:
        """Say why it can only be rolled back."""
        if self.broken is None:
            self.broken = why

    async def _commit_trip(self) -> Committed:
        writer = self.writer
        reconciliation = None
        if self.session.asks_reconciliation:
            reconciliation = writer.reconciler.reconciliation(writer.clock.now_ms())
        committed = await writer.database.run(
            partial(self.session.commit, reconciliation), writer.gate, operation="commit"
        )
        writer.note_commit(reconciliation, committed)
        return committed

    async def _trip(self, function: Callable[[], T], *, name: str) -> T:
        self.check_usable(name)
        if self._under_way:
            # The thread that would have to run it is the one that waits for it.
            raise StorageOperationError(
                f"{name}: a function of run_sync cannot use its transaction, nor the host, through"
                " trio.from_thread; return from it first",
                operation=name,
            )
        self.session.at(self.writer.moment())

        def trip() -> T:
            # Taken over while this trip was being sent; the connection may be somebody else's.
            if self._ending:
                raise StorageOperationError(
                    f"{name}: {self.broken or 'the transaction is over'}", operation=name
                )
            return function()

        self._under_way = True
        try:
            return await self.writer.database.run(trip, self.writer.gate, operation=name)
        finally:
            self._under_way = False
            self._notice_rollback()

    def _notice_rollback(self) -> None:
        # Once it is ending, the connection may already serve somebody else.
        if self._ending or self.broken is not None:
            return
        if not self.session.connection.in_transaction:
            self.broken = (
                "SQLite has rolled the transaction back by itself (as ON CONFLICT ROLLBACK or a"
                " full disk make it do); nothing of it is stored"
            )

    def _over(self) -> None:
        if self.open:
            self.open = False
            self.writer.database.transaction = None
            self.writer.database.queue.release()


def _runs_in(token: trio.lowlevel.TrioToken) -> bool:
    """Whether the caller is in this Trio run; not so in a thread, or in another run."""
    try:
        return trio.lowlevel.current_trio_token() is token
    except RuntimeError:
        return False


class Block:
    """One `async with` of a transaction: the outermost commits, an inner one is a savepoint (R13).

    What can happen at its exit, each with and without cancellation: commit, rollback, release or
    undo of the savepoint, SQLite has rolled back by itself, the handling is over, the host is
    gone. The body's own exception always leaves as it came.
    """

    def __init__(self, writer: HostWriter, *, asks_reconciliation: bool) -> None:
        self._writer = writer
        self._asks_reconciliation = asks_reconciliation
        self._outermost = False
        # Invariant: true from the start of entering until leaving begins.
        self._entered = False
        self.active = False
        self.transaction: OpenTransaction

    async def enter(self) -> None:
        """Begin, or open a savepoint in the task's own transaction."""
        writer = self._writer
        writer.check_may_write("transaction")
        if self._entered:
            raise StorageOperationError(
                "transaction: this block is entered already; call transaction() for each one",
                operation="transaction",
            )
        self._entered = True
        try:
            current = writer.current_transaction("transaction")
            self._outermost = current is None
            if current is None:
                current = await writer.open_transaction(
                    asks_reconciliation=self._asks_reconciliation
                )
            else:
                await current.run(
                    lambda session: session.connection.savepoint(), name="transaction"
                )
        except BaseException:
            self._entered = False
            raise
        self.transaction = current
        self._mark = current.session.mark()
        current.session.asks_reconciliation |= self._asks_reconciliation
        current.blocks.append(self)
        self._frame = BlockFrame(current)
        self._frame.__enter__()
        self.active = True

    async def leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Commit or release, or undo what the block did where its body raised."""
        if not self.active:
            raise StorageOperationError(
                "transaction: this block is not entered, or was left before",
                operation="transaction",
            )
        self._entered = self.active = False
        self._frame.__exit__(kind, error, traceback)
        if self.transaction.owner is not trio.lowlevel.current_task():
            # As when a generator is cleaned up: what its owner has done since would go as well.
            self.transaction.abandon("a block of the transaction was left by another task")
        if self.transaction.blocks.pop() is not self:
            self.transaction.abandon("blocks of the transaction were not left innermost first")
        if self._outermost:
            if error is None:
                await self.transaction.commit()
            else:
                await self.transaction.roll_back()
        else:
            await self._leave_savepoint(error)

    async def _leave_savepoint(self, error: BaseException | None) -> None:
        if error is not None:
            await self._undo_savepoint()
            return
        try:
            self.transaction.check_usable("transaction")
            await trio.lowlevel.checkpoint_if_cancelled()
        except BaseException:
            await self._undo_savepoint()
            raise
        try:
            with trio.CancelScope(shield=True):
                await self.transaction.run(
                    lambda session: session.connection.release(), name="transaction"
                )
        except StorageOperationError:
            self.transaction.abandon("a savepoint of the transaction could not be released")
            raise

    async def _undo_savepoint(self) -> None:  # noqa: ASYNC910 - rolling back is the checkpoint, where there is anything to do
        """Undo what the block did; where that is impossible the whole transaction is given up."""
        transaction = self.transaction
        session = transaction.session
        session.forget_since(self._mark)
        if transaction.broken is not None or not transaction.open:
            return  # noqa: ASYNC910 - rolling back is the checkpoint, where there is anything to do
        try:
            with trio.CancelScope(shield=True):
                # Past the host's gate, as in `roll_back`.
                await self._writer.database.run(
                    session.connection.undo, Gate(), operation="rollback"
                )
        except StorageOperationError as failure:
            transaction.abandon("a savepoint of the transaction could not be undone")
            logger.error("a savepoint could not be undone", exc_info=failure)
