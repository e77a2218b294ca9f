"""Transaction blocks: the outermost commits, inner ones are savepoints (R10-R15)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

import attrs
import trio

from ._context import Frame
from ._database import Gate
from ._errors import StorageOperationError
from ._handling import current_handling
from ._reporting import logger

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from ._handling import Handling
    from ._store._session import Session
    from ._writer import HostWriter

T = TypeVar("T")


@attrs.frozen
class _Outcome(Generic[T]):
    """What a trip brought back; errors of the application's pass through it unchanged."""

    value: T | None = None
    error: BaseException | None = None


class BlockFrame(Frame):
    """The frame of a transaction block."""

    def __init__(self, transaction: OpenTransaction) -> None:
        self.transaction = transaction


class OpenTransaction:
    """One open transaction of one task, with its blocks: the outermost and its savepoints."""

    def __init__(self, writer: HostWriter, session: Session) -> None:
        self.writer = writer
        self.session = session
        self.owner: trio.lowlevel.Task = trio.lowlevel.current_task()
        self.handling: Handling | None = current_handling(writer)
        # Invariant: true from `BEGIN` until the commit or rollback is over. While it is true the
        # turn is ours.
        self.open: bool = True
        # Why nothing more can be done in it, once that is so, and the error that made it so.
        self.broken: str | None = None
        self._broken_by: BaseException | None = None
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

        outcome = await self._trip(capture, name=name, application=True)
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
            raise StorageOperationError(
                f"{name}: {self.broken}", operation=name
            ) from self._broken_by

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
                await self._commit_trip()
            except BaseException:
                # Still open where the trip did not get as far as committing, as of a lost host.
                await self._undo_all()
                raise
            finally:
                self._over()
            await writer.after_commit(self.session, self.handling)

    async def roll_back(self) -> None:  # noqa: ASYNC910 - rolling back is the checkpoint, where there is anything to do
        """Undo all of it, shielded. A failure to do so is logged: the error that led here stands.

        Nothing is left to do where the transaction was taken over.
        """
        if self._ending or not self.open:
            return  # noqa: ASYNC910 - rolling back is the checkpoint, where there is anything to do
        self._ending = True
        try:
            with trio.CancelScope(shield=True):
                await self._undo_all()
        finally:
            self._over()

    async def _undo_all(self) -> None:  # noqa: ASYNC910 - a trip that fails was one all the same
        try:
            # Past the host's gate: rolling back writes nothing, and a lost host lets go.
            await self.writer.database.run(self.session.rollback, Gate(), operation="rollback")
        except StorageOperationError as error:
            logger.error("a transaction could not be rolled back", exc_info=error)

    async def take_over(self, why: str) -> None:  # noqa: ASYNC910 - rolling back is the checkpoint, where there is anything to do
        """Roll it back from another task than its owner, who gets `why` as an error."""
        if not self._ending:
            self.broken = why
            await self.roll_back()

    def abandon(self, why: str, error: BaseException | None = None) -> None:
        """Say why it can only be rolled back."""
        if self.broken is None:
            self.broken = why
            self._broken_by = error

    async def _commit_trip(self) -> None:
        writer = self.writer
        reconciliation = None
        if self.session.asks_reconciliation:
            reconciliation = writer.reconciler.reconciliation(writer.clock.now_ms())
        change = await writer.database.run(
            partial(self.session.commit, reconciliation), writer.gate, operation="commit"
        )
        writer.note_commit(self.session, reconciliation, change)

    async def _trip(self, function: Callable[[], T], *, name: str, application: bool = False) -> T:
        self.check_usable(name)
        if self._under_way:
            # The thread that would have to run it is the one that waits for it.
            raise StorageOperationError(
                f"{name}: a function of run_sync cannot use its transaction, nor the host, through"
                " trio.from_thread; return from it first",
                operation=name,
            )
        self.writer.prepare(self.session)

        def trip() -> T:
            # Taken over while this trip was being sent; the connection may be somebody else's.
            if self._ending:
                raise StorageOperationError(
                    f"{name}: {self.broken or 'the transaction is over'}", operation=name
                )
            return function()

        self._under_way = True
        try:
            return await self.writer.database.run(
                trip, self.writer.gate, operation=name, application=application
            )
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
        self.active: bool = False
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
        except StorageOperationError as failure:
            self.transaction.abandon(
                "a savepoint of the transaction could not be released", failure.__cause__
            )
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
            transaction.abandon(
                "a savepoint of the transaction could not be undone", failure.__cause__
            )
            logger.error("a savepoint could not be undone", exc_info=failure)
