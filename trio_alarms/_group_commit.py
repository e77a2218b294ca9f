"""Group commit: operations that queue while a commit is under way share the next one (R14).

Whoever finds the writer free leads, and waits for nobody. Those that come meanwhile gather in a
batch, which has one place in the queue of writers; when its turn comes its first member leads
for all of them: one transaction, a savepoint for each, one reconciliation, one commit.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

import attrs
import trio

from ._errors import Outcome, StorageOperationError
from ._store._connection import is_busy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ._database import Database
    from ._store._native import NativeChange, Reconciliation
    from ._store._session import Part, Session

T = TypeVar("T")

# How many commits go on looking for company after one that was shared, or waited for. Tasks that
# write together go on to do so, often with a look of somebody's between them.
_LOOKS_AFTER_COMPANY: Final = 3


@attrs.define(eq=False)
class Member(Generic[T]):
    """One operation on its way to its commit, and what came of it.

    `check` refuses it, before every try but one that its caller has just checked it for. `landed`
    gets its value in the loop before anybody else has the turn. A `sure` one is not given up once
    its turn has come. One that is not `writing` only looks; one that is not `grouped` has a commit
    of its own. One that is not `synced` need not be on the disk unless it changes rows itself:
    what reconciling writes follows from the table, and every opening writes it anew (R52).
    """

    operation: Callable[[Session], T]
    name: str
    check: Callable[[], None]
    landed: Callable[[T], None] | None = None
    asks_reconciliation: bool = True
    sure: bool = False
    writing: bool = True
    grouped: bool = True
    synced: bool = True
    _value: T | None = None
    part: Part | None = None
    error: BaseException | None = None
    # Invariant: true from before the trip that runs it is sent until that trip is back.
    taken: bool = False
    # Its outcome is known.
    done: bool = False
    # It leads the batch whose turn has come.
    leads: bool = False
    # It was cancelled while it was taken; that is looked at again once it no longer is.
    cancelled: bool = False
    # Those that it shares its commit with, once it waits with them.
    batch: _Batch | None = None
    # Invariant: there exactly while the task waits, so that it is woken once.
    waiter: trio.lowlevel.Task | None = None

    @property
    def value(self) -> T:
        """What the operation returned."""
        return cast("T", self._value)

    def outcome(self) -> T:
        """What the operation returned; raises what it failed with."""
        if self.error is not None:
            raise self.error
        return self.value

    def run(self, session: Session) -> None:
        """Run it as one of several; its failure is its own, but for a busy database."""
        self.error = None
        try:
            if self.writing:
                self.part, self._value = session.run_part(self.operation)
            else:
                self._value = self.operation(session)
        except Exception as error:
            if is_busy(error):
                raise
            self.error = _named(error, self.name) if isinstance(error, sqlite3.Error) else error
        else:
            session.asks_reconciliation |= self.asks_reconciliation

    def run_alone(self, session: Session) -> None:
        """Run it as the only one of its transaction."""
        self._value = self.operation(session)
        self.part = session.part
        session.asks_reconciliation |= self.asks_reconciliation

    def abort_waiting(self, _: object) -> trio.lowlevel.Abort:
        """Give up waiting, unless its outcome is being decided: what Trio asks when cancelled."""
        batch = self.batch
        if batch is None or self.taken or (self.sure and batch.has_turn):
            self.cancelled = True
            return trio.lowlevel.Abort.FAILED
        batch.leave(self)
        self.waiter = None
        return trio.lowlevel.Abort.SUCCEEDED

    def wake(self) -> None:
        """Let the task that waits go on, if one does."""
        task, self.waiter = self.waiter, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def finish(self, error: BaseException | None = None) -> None:
        """Its outcome is known: `error`, or what the trip has left."""
        self.error = self.error if error is None else error
        self.done = True
        self.batch = None  # else the two would be garbage that only the collector finds
        self.wake()


class _Batch:
    """Members that share a commit. The first one leads once the turn has come."""

    def __init__(
        self, *members: Member[Any], on_empty: Callable[[_Batch], None] | None = None
    ) -> None:
        self.members: list[Member[Any]] = list(members)
        self._on_empty = on_empty
        self.has_turn = False
        # When to stop trying; set at the first try.
        self.deadline: float | None = None

    def grant(self) -> None:
        """The turn is here."""
        self.has_turn = True
        self.members[0].leads = True
        self.members[0].wake()

    def take(self) -> list[Member[Any]]:
        """Those that go with the next trip; what is refused fails here."""
        for member in list(self.members):
            try:
                member.check()
            except StorageOperationError as error:
                self.members.remove(member)
                member.finish(error)
        for member in self.members:
            member.taken, member.error = True, None
        return list(self.members)

    def leave(self, member: Member[Any]) -> None:
        """A member gives up; the leader, which has the turn, does not do so here."""
        self.members.remove(member)
        if not self.members and self._on_empty is not None:
            self._on_empty(self)

    def discard(self, member: Member[Any]) -> None:
        """A member is no longer one, if it still was."""
        if member in self.members:
            self.members.remove(member)

    def give_back(self) -> None:
        """The trip did not get through, and will be tried again without those who gave up."""
        for member in list(self.members):
            member.taken = False
            if member.cancelled and not member.sure:
                self.members.remove(member)
                member.wake()

    def finish(self, error: BaseException | None = None) -> None:
        """Every outcome is known; an error of the whole batch becomes one for each."""
        shared = len(self.members) > 1 or not isinstance(error, Exception)
        for member in self.members:
            own = _named(error, member.name) if shared and error is not None else error
            # One that was refused is not stored, whatever became of the others.
            member.finish(own if member.error is None else None)


class GroupCommit:
    """The operations of one host on their way to their commits.

    `commit` runs members in one transaction, in one trip; it raises what fails all of them, and
    `Cancelled` only while that trip has not begun.
    """

    def __init__(
        self, database: Database, commit: Callable[[Sequence[Member[Any]]], Awaitable[None]]
    ) -> None:
        self._database = database
        self._queue = database.queue
        self._commit = commit
        # The batch that can still be joined, while nobody has queued behind it.
        self._open: _Batch | None = None
        # How many more commits look for company first; a lone caller waits for nobody.
        self._looks = 0

    def expect_company(self) -> None:
        """Tasks that are likely to write together are about to start; not a checkpoint."""
        self._looks = _LOOKS_AFTER_COMPANY

    def run(self, member: Member[T]) -> Awaitable[T]:
        """Wait for the turn, commit, alone or together with others, and return the value.

        Cancelled before it is taken into a trip the operation leaves the queue without a trace;
        after that its outcome is what happened (R11). What it returns is to be awaited at once.
        """
        if self._looks or not member.grouped or not self._queue.is_free:
            return self._run_in_company(member)
        return self._run_alone(member)

    async def _run_alone(self, member: Member[T]) -> T:
        """Take the free turn. Nobody can join before the trip begins, so it needs no batch."""
        self._queue.try_acquire()
        try:
            await self._commit((member,))
        except BaseException as error:
            if not _is_tried_again(member, error):
                self._queue.release()
                raise
        else:
            self._queue.release()
            return member.value
        self._open = batch = _Batch(member)
        await self._lead(batch, member)
        return member.outcome()

    async def _run_in_company(self, member: Member[T]) -> T:
        """Wait for the turn together with whoever comes meanwhile, or to have it alone."""
        while not member.done:
            if not member.grouped:
                await self._queue.acquire()
                await self.lead_alone(member)
            elif self._queue.try_acquire():
                self._open = batch = _Batch(member)
                await self._lead(batch, member)
            else:
                batch = self._join(member)
                member.waiter = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(member.abort_waiting)
                if member.leads:
                    await self._lead(batch, member)
                elif not member.done:
                    # It was given back since its task is cancelled.
                    await trio.lowlevel.checkpoint_if_cancelled()
                    member.cancelled = False
        return member.outcome()  # noqa: ASYNC910 - its trip is the checkpoint, or waiting for it

    async def lead_alone(self, member: Member[T], deadline: float | None = None) -> T:
        """Commit one operation in the turn that its caller has; the turn is handed on."""
        batch = _Batch(member)
        batch.deadline = deadline
        await self._lead(batch, member)
        return member.outcome()

    def _join(self, member: Member[Any]) -> _Batch:
        batch = self._open
        # Nobody who has queued behind the batch is overtaken (R14).
        if batch is None or self._queue.last not in {None, batch}:
            self._open = batch = _Batch(on_empty=self._give_up)
            self._queue.enter(batch)
        batch.members.append(member)
        member.batch = batch
        return batch

    def _give_up(self, batch: _Batch) -> None:
        """Everybody has left a batch before its turn."""
        self._queue.leave(batch)
        self._open = None if self._open is batch else self._open

    async def _lead(self, batch: _Batch, leader: Member[Any]) -> None:  # noqa: ASYNC910 - its trip is the checkpoint, or waiting for it
        """Commit the batch whose turn it is, then hand the turn on.

        Failures are left with the members. A leader that is cancelled before a trip hands the lead
        to the next.
        """
        try:
            try:
                await self._until_unlocked(batch)
            except trio.Cancelled:
                if not leader.sure:
                    raise
                # No trip had begun. Whoever cancelled cancels the next checkpoint as well.
                with trio.CancelScope(shield=True):
                    await self._until_unlocked(batch)
        except trio.Cancelled:
            batch.discard(leader)
            if batch.members:
                batch.grant()
            else:
                self._close(batch)
            raise
        except Exception as error:  # noqa: BLE001 - handed over to everybody it concerns
            batch.finish(error)
        except BaseException as error:
            batch.discard(leader)
            batch.finish(error)
            self._close(batch)
            raise
        else:
            batch.finish()
        self._close(batch)

    def _close(self, batch: _Batch) -> None:
        self._open = None if self._open is batch else self._open
        self._queue.release()

    async def _until_unlocked(self, batch: _Batch) -> None:
        if batch.deadline is None:
            batch.deadline = trio.current_time() + self._database.busy_timeout

        async def attempt() -> None:
            if self._looks:
                # Tasks that are about to write in this turn of the event loop come along; Trio
                # runs them before or after this one, by chance.
                await trio.lowlevel.checkpoint()
                if len(batch.members) == 1:
                    await trio.lowlevel.checkpoint()
            self._open = None if self._open is batch else self._open
            members = batch.take()
            shared = len(members) > 1 or self._queue.last is not None
            self._looks = _LOOKS_AFTER_COMPANY if shared else max(0, self._looks - 1)
            if not members:
                return  # noqa: ASYNC910 - all were refused
            try:
                await self._commit(members)
            except trio.Cancelled:
                # Before the trip began.
                batch.give_back()
                raise
            except StorageOperationError as error:
                # Nothing of it is stored, so whoever gave up meanwhile may say so.
                if is_busy(error.__cause__):
                    batch.give_back()
                raise

        await self._database.until_unlocked(attempt, batch.deadline)


def _is_tried_again(member: Member[Any], error: BaseException) -> bool:
    """Whether a failed try is not the last: the lock is another's, or cancelling must not count."""
    if isinstance(error, StorageOperationError):
        return is_busy(error.__cause__)
    return member.sure and isinstance(error, trio.Cancelled)


def commit_together(
    session: Session, members: Sequence[Member[Any]], reconciliation: Reconciliation | None
) -> NativeChange | None:
    """Run the members' operations in one transaction; runs where the connection lives.

    Raises what fails all of them; nothing is stored then.
    """
    if not any(member.writing for member in members):
        for member in members:
            member.run(session)
        return None
    synced = any(member.synced for member in members)
    session.begin(synced=synced)
    try:
        _run_all(session, members)
        if session.has_changed_rows and not synced:
            session.rollback()
            session.begin()
            _run_all(session, members)
    except BaseException:
        session.rollback()
        raise
    if all(member.error is not None for member in members):
        session.rollback()
        return None
    return session.commit(reconciliation)


def _run_all(session: Session, members: Sequence[Member[Any]]) -> None:
    if len(members) == 1:
        members[0].run_alone(session)
        return
    for member in members:
        member.run(session)
        # After some failures SQLite rolls back by itself, and the next savepoint would begin a
        # transaction without the others' work.
        if not session.connection.in_transaction:
            raise (
                AssertionError("a transaction ended by itself, without an error")
                if member.error is None
                else member.error
            )


def _named(error: BaseException, name: str) -> StorageOperationError:
    """An error of its own for one of those whom a failure concerns."""
    cause: BaseException | None = error
    outcome: Outcome = "rolled back" if isinstance(error, Exception) else "unknown"
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, StorageOperationError):
        cause, outcome = error.__cause__, error.outcome
        text = str(error if cause is None or outcome == "unknown" else cause)
    elif isinstance(error, sqlite3.Error):
        text = str(error)
    own = StorageOperationError(f"{name}: {text}", operation=name, outcome=outcome)
    own.__cause__ = cause
    return own
