"""Every write of one host: who has the turn, one commit each, and what follows it (R11-R16)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import trio

from ._context import find
from ._errors import StorageOperationError
from ._group_commit import GroupCommit, Member, commit_together
from ._handling import Handling, Reporting, current_handling
from ._reporting import Reporter, current_reporter, report_parked
from ._store._session import Part, Session
from ._transactions import BlockFrame, OpenTransaction

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ._clock import AlarmClock
    from ._database import Database, Gate
    from ._model import AlarmRef
    from ._store._connection import Connection
    from ._store._native import NativeChange, Reconciliation

T = TypeVar("T")


class Reconciler(Protocol):
    """What commits of a host leave the native alarm at; see `_wakes`."""

    def reconciliation(self, now: int) -> Reconciliation:
        """What a commit that is about to be sent reconciles to."""
        ...

    def committed(self, reconciliation: Reconciliation, change: NativeChange | None) -> None:
        """Take note of what a commit left, and of what it changed if it did."""
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
        self._group = GroupCommit(database, self._commit)
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
        self._check_not_closed(operation)

    def _check_not_closed(self, operation: str) -> None:
        if self.closed or self.gate.lost:
            self.gate.check(operation)
            raise StorageOperationError(
                f"{operation}: the host {self.name!r} is closed", operation=operation
            )

    def check_may_write(self, operation: str) -> None:
        """Refuse also what a handling that is over has left behind (R15)."""
        self.check_open(operation)
        self._check_may_write(operation, current_handling(self))

    def _check_may_write(self, operation: str, handling: Handling | None) -> None:
        """As above, within this Trio run and for whoever is in that handling."""
        self._check_not_closed(operation)
        _check_not_over(operation, handling)

    def prepare(self, session: Session) -> None:
        """Give it what an operation depends on in memory, as its trip is sent."""
        session.now = self.clock.now_ms()
        session.in_hand = self.in_hand.copy()

    def current_transaction(self, operation: str) -> OpenTransaction | None:
        """The open transaction that the running task is inside of, if it may use it (R12)."""
        if self.database.transaction is None:
            return None
        frame = find(BlockFrame, self._is_open_here)
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
                self._is_open_here(frame)
                and frame.transaction.owner is trio.lowlevel.current_task()
            ),
        )
        return None if frame is None else frame.transaction

    def _is_open_here(self, frame: BlockFrame) -> bool:
        return frame.transaction.writer.database is self.database and frame.transaction.open

    def refuse_inside_transaction(self, operation: str) -> None:
        """Refuse what cannot be done while a block of the same database is open (R17)."""
        if self.current_transaction(operation) is not None:
            raise StorageOperationError(
                f"{operation} cannot be used inside a transaction block; leave the block first",
                operation=operation,
            )

    async def write(
        self,
        operation: Callable[[Session], T],
        *,
        name: str,
        landed: Callable[[T], None] | None = None,
        asks_reconciliation: bool = True,
        synced: bool = True,
    ) -> T:
        """Run an operation on alarms: durable on return, or inside the task's block with it.

        A checkpoint. Cancelled before its commit has begun it leaves nothing behind, and not
        after (R11). `landed` gets the value, once it is durable, before anybody else writes. Not
        `synced` it is durable on return only if it changes alarms itself.
        """
        handling = current_handling(self)
        self.check_open(name)
        _check_not_over(name, handling)
        transaction = self.current_transaction(name)
        if transaction is not None:
            return await transaction.run_on_alarms(
                operation, name=name, asks_reconciliation=asks_reconciliation
            )
        member = Member(
            operation,
            name,
            partial(self._check_may_write, name, handling),
            landed=landed,
            asks_reconciliation=asks_reconciliation,
            # One that writes the native alarm itself must see what the commit before left there.
            grouped=asks_reconciliation,
            synced=synced,
        )
        value = await self._group.run(member)
        if member.part is not None:
            await self._report(member.part, handling)
        return value

    async def write_surely(
        self,
        operation: Callable[[Session], T],
        *,
        name: str,
        handling: Handling | None = None,
        landed: Callable[[T], None] | None = None,
        asks_reconciliation: bool = True,
        synced: bool = True,
    ) -> T:
        """Run an operation of ours that cancellation must not prevent; then it is raised.

        The turn is waited for as long as it takes, or once cancelled for `busy_timeout` more. On
        `Cancelled` the operation is stored; on `StorageOperationError` it is not, and whoever
        cancelled cancels the next checkpoint as well.
        """
        transaction = self.current_transaction(name)
        if transaction is not None:
            return await transaction.run_surely(operation, name=name)
        self.check_open(name)
        member = Member(
            operation,
            name,
            partial(self.check_open, name),
            landed=landed,
            asks_reconciliation=asks_reconciliation,
            sure=True,
            grouped=asks_reconciliation,
            synced=synced,
        )
        try:
            value = await self._group.run(member)
        except trio.Cancelled:
            # Only while it waited for its turn.
            await self._within_bound(member)
            await self._report(member.part, handling)
            raise
        if member.part is not None:
            await self._report(member.part, handling)
        return value

    async def write_within_bound(self, operation: Callable[[Session], T], *, name: str) -> T:
        """Run an operation of ours, shielded: turn and lock together get `busy_timeout`."""
        transaction = self.current_transaction(name)
        if transaction is not None:
            return await transaction.run_surely(operation, name=name)
        member = Member(operation, name, partial(self.check_open, name), sure=True)
        value = await self._within_bound(member)
        await self._report(member.part, None)
        return value

    async def _within_bound(self, member: Member[T]) -> T:
        """Take the turn and commit, shielded and bounded by `busy_timeout` (R11, R19)."""
        name = member.name
        self.gate.check(name)
        deadline = trio.current_time() + self.database.busy_timeout
        with trio.CancelScope(shield=True):
            with trio.move_on_at(deadline) as bound:
                await self.database.queue.acquire()
            if bound.cancelled_caught:
                raise StorageOperationError(
                    f"{name}: another task kept the turn to write for too long", operation=name
                )
            return await self._group.lead_alone(member, deadline)
        raise AssertionError("a shielded scope without a deadline swallows nothing")

    async def read(self, function: Callable[[Connection], T], *, name: str) -> T:
        """Read what this task's block sees, or outside of one the last committed state."""
        self.check_open(name)
        transaction = self.own_transaction()
        if transaction is not None:
            return await transaction.run(lambda session: function(session.connection), name=name)
        return await self.database.read(function, self.gate, operation=name)

    def expect_company(self) -> None:
        """Tasks that are likely to write together are about to start; not a checkpoint."""
        self._group.expect_company()

    async def look(
        self, function: Callable[[Session], T], *, name: str, landed: Callable[[T], None]
    ) -> T:
        """Look at rows on the writer, in turn, so that no write of this process comes between.

        `landed` gets the value before anybody else writes.
        """
        self.gate.check(name)
        return await self._group.run(
            Member(
                function,
                name,
                partial(self.gate.check, name),
                landed=landed,
                asks_reconciliation=False,
                writing=False,
            )
        )

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

    async def after_commit(self, session: Session, handling: Handling | None) -> None:  # noqa: ASYNC910 - its commit was the checkpoint
        """Hand out what a block's commit brought: callbacks, and reports (R16)."""
        if session.part is not None:
            session.part.run_callbacks()
            await self._report(session.part, handling)

    def note_commit(
        self,
        session: Session,
        reconciliation: Reconciliation | None,
        change: NativeChange | None,
    ) -> None:
        """Bring the wake guard and the driver up to date; before anybody else gets the turn."""
        if reconciliation is not None and session.reconciled:
            self.reconciler.committed(reconciliation, change)

    async def _commit(self, members: Sequence[Member[Any]]) -> None:
        """One transaction with the members' operations, in one trip.

        Cancellation is noticed before the trip begins and not after.
        """
        session = self._session()
        self.prepare(session)
        reconciliation = None
        for member in members:
            if member.asks_reconciliation:
                reconciliation = self.reconciler.reconciliation(session.now)
                break
        change = await self.database.run(
            partial(commit_together, session, members, reconciliation),
            self.gate,
            operation=members[0].name,
        )
        self.note_commit(session, reconciliation, change)
        for member in members:
            if member.error is None:
                if member.part is not None:
                    member.part.run_callbacks()
                if member.landed is not None:
                    member.landed(member.value)

    def _session(self) -> Session:
        return Session(self.database.writer, self.name, self.database.probe)

    async def _report(self, part: Part | None, handling: Handling | None) -> None:
        """Tell of what newly parked, outside of the handling whose commit it was (R16)."""
        parked = () if part is None else part.parked
        if not parked:
            return  # noqa: ASYNC910 - nothing to report is no checkpoint; the commit before was one
        if handling is not None:
            handling.parked.extend(parked)
        with Reporting():
            await report_parked(parked, current_reporter(self._reporter))


def _check_not_over(operation: str, handling: Handling | None) -> None:
    if handling is not None and not handling.active:
        raise StorageOperationError(
            f"{operation}: the handling that started this task is over; what it left behind"
            " cannot change alarms or open transactions",
            operation=operation,
        )


def _runs_in(token: trio.lowlevel.TrioToken) -> bool:
    """Whether the caller is in this Trio run; not so in a thread, or in another run."""
    try:
        return trio.lowlevel.current_trio_token() is token
    except RuntimeError:
        return False
