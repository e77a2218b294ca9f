"""The public schedulers, and the transaction blocks that they open."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from . import _operations
from ._arguments import describe, is_of_type, is_plainly_synchronous, require_integer
from ._configuration import resolve_configuration
from ._errors import (
    InvalidAlarmRefError,
    InvalidProcessDueAlarmsOptionsError,
    StorageOperationError,
)
from ._handling import current_handling
from ._model import AlarmRecord, AlarmRef, AlarmStatus
from ._names import has_lone_surrogate
from ._options import DispatchOptions
from ._scheduling import SchedulingMethods
from ._store import _alarms
from ._time import instant_to_ms
from ._transactions import Block, OpenTransaction

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
    from datetime import datetime
    from types import TracebackType

    from ._configuration import ScheduleConfiguration
    from ._definitions import Alarm
    from ._dispatchers import Dispatchers
    from ._model import AlarmDue, DispatchResult
    from ._requests import AlarmView
    from ._store._connection import Connection
    from ._store._session import Session
    from ._wakes import Wakes
    from ._writer import HostWriter

T = TypeVar("T")

_DEFAULT_OPTIONS: Final = DispatchOptions()


class AlarmTransaction(SchedulingMethods):
    """What a transaction block can do: alarms and the application's own tables, in one commit.

    Its methods work only in the task that entered the block and only until it is left; otherwise
    they raise `StorageOperationError` (R12).
    """

    def __init__(
        self,
        writer: HostWriter,
        view: AlarmView,
        configuration: ScheduleConfiguration,
        block: Block,
    ) -> None:
        super().__init__(writer, view, configuration)
        self._block = block

    async def execute(self, sql: str, params: Any = ()) -> list[tuple[Any, ...]]:
        """Run one SQL statement of the application's.

        Durable with the block. Cancelled before it has started it changes nothing; then it runs
        to its end.

        Args:
            sql: One statement; transaction control is refused.
            params: Its parameters, a sequence or a mapping.

        Returns:
            The rows, if the statement gives any.

        Raises:
            StorageOperationError: The statement failed; its cause is the `sqlite3.Error`.
        """
        transaction = self._transaction("execute")
        return await transaction.run(
            lambda session: session.connection.execute(sql, params), name="execute"
        )

    async def executemany(self, sql: str, rows: Iterable[Any]) -> None:
        """Run one SQL statement of the application's for every row: all of them, or none.

        Durable with the block. Cancelled before it has started it changes nothing; then it runs
        to its end.

        Args:
            sql: One statement that changes rows.
            rows: The parameters of each run.

        Raises:
            StorageOperationError: A run failed; its cause is the `sqlite3.Error`.
        """
        transaction = self._transaction("executemany")
        await transaction.run(
            lambda session: session.connection.executemany(sql, rows), name="executemany"
        )

    async def run_sync(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        """Call `fn(connection)` where the connection lives, inside the transaction (R10).

        For ORMs and bulk work. It runs in a savepoint: what `fn` raises passes unchanged, and all
        that `fn` changed is undone, and the block can go on. `fn` may use savepoints of its own as
        long as it closes them; it cannot commit, and must not keep the connection.

        Durable with the block. Cancelled before `fn` has started it changes nothing; then `fn`
        runs to its end.

        Args:
            fn: A synchronous function; with the thread executor it runs in a worker thread.

        Raises:
            StorageOperationError: `fn` left a savepoint open; what it changed was undone. Or it
                is no function.
        """
        transaction = self._transaction("run_sync")
        if not callable(fn):
            raise StorageOperationError(
                f"run_sync: fn must be a function that takes the connection, not {describe(fn)}",
                operation="run_sync",
            )
        return await transaction.run_application(
            lambda session: session.connection.call(fn), name="run_sync"
        )

    async def acknowledge(self, event: AlarmDue[Any]) -> bool:
        """Acknowledge the automatic alarm in hand in this transaction (R36).

        What the handler wrote and its acknowledgement are then one commit: done once, or not at
        all. After the commit neither the handler's return nor its failure changes the alarm.

        Durable with the block. Cancelled before it has started it changes nothing.

        Args:
            event: The object that the handler of the current handling got.

        Returns:
            Whether the occurrence was still current; otherwise nothing was changed.

        Raises:
            InvalidAlarmRefError: `event` is not the one in hand, or a manual alarm's.
            StorageOperationError: The storage failed.
        """
        transaction = self._transaction("acknowledge")
        handling = current_handling(self._writer)
        if handling is None or handling.event is None or handling.event is not event:
            raise InvalidAlarmRefError(
                "event must be the object that the handler of the current handling got; it can be"
                f" acknowledged by that handler only, not by {describe(event)}"
            )
        if handling.row.lifecycle == "manual":
            raise InvalidAlarmRefError(
                f"event must be of an automatic alarm; {event.tag!r} is manual, so cancel or"
                " reschedule it instead"
            )
        acknowledge = _operations.acknowledging(
            handling.row, resolve_configuration(self._configuration)
        )

        def operation(session: Session) -> bool:
            acknowledged = acknowledge(session)
            if acknowledged:
                session.after_commit(lambda: setattr(handling, "acknowledged", True))
            return acknowledged

        return await transaction.run_on_alarms(operation, name="acknowledge")

    def _write(self, operation: Callable[[Session], T], name: str) -> Awaitable[T]:
        return self._transaction(name).run_on_alarms(operation, name=name)

    async def _read(self, function: Callable[[Connection], T], name: str) -> T:
        transaction = self._transaction(name)
        return await transaction.run(lambda session: function(session.connection), name=name)

    def _transaction(self, name: str) -> OpenTransaction:
        if not self._block.active:
            raise StorageOperationError(
                f"{name}: the transaction block was left; its methods work only inside it",
                operation=name,
            )
        return self._block.transaction


class TransactionBlock(AbstractAsyncContextManager[AlarmTransaction, None]):
    """`async with …transaction() as tx:`; see `AlarmScheduler.transaction`."""

    def __init__(
        self,
        writer: HostWriter,
        view: AlarmView,
        configuration: ScheduleConfiguration,
        *,
        asks_reconciliation: bool,
    ) -> None:
        self._block = Block(writer, asks_reconciliation=asks_reconciliation)
        self._transaction = AlarmTransaction(writer, view, configuration, self._block)

    async def __aenter__(self) -> AlarmTransaction:
        await self._block.enter()
        return self._transaction

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._block.leave(kind, error, traceback)


class _Scheduler(SchedulingMethods):
    """What the raw scheduler and a service's view share."""

    def __init__(
        self,
        writer: HostWriter,
        view: AlarmView,
        configuration: ScheduleConfiguration,
        wakes: Wakes,
    ) -> None:
        super().__init__(writer, view, configuration)
        self._wakes = wakes

    async def list_alarms(
        self,
        *,
        alarm: Alarm[Any] | str | None = None,
        parked: bool | None = None,
        wake_before: datetime | None = None,
        limit: int = 100,
        after: AlarmRecord | None = None,
    ) -> list[AlarmRecord]:
        """List alarms in dispatch order, a page at a time.

        Reads the last committed state, or inside a transaction block what that block sees; writes
        nothing. Cancellation ends it.

        Args:
            alarm: Only this definition's, or on the raw scheduler this tag's.
            parked: Only those that are parked, or only those that are not.
            wake_before: Only those that wake strictly before this instant.
            limit: The most records to return.
            after: The last record of the page before.

        Raises:
            InvalidAlarmRefError: A bad argument.
            StorageOperationError: The storage failed.
        """
        self._writer.check_open("list_alarms")
        tags = self._view.tags if alarm is None else {self._view.tag(alarm)}
        if parked is not None and not isinstance(parked, bool):
            raise InvalidAlarmRefError(f"parked must be a bool or None, not {describe(parked)}")
        before = (
            None if wake_before is None else instant_to_ms(wake_before, parameter="wake_before")
        )
        limit = require_integer(limit, parameter="limit", error=InvalidAlarmRefError, minimum=1)
        key = None if after is None else _page_key(after)
        host = self._writer.name
        rows = await self._read(
            lambda connection: _alarms.list_rows(
                connection.raw,
                host,
                tags=tags,
                parked=parked,
                wake_before=before,
                after=key,
                limit=limit,
            ),
            "list_alarms",
        )
        return [_operations.record_of(row) for row in rows]

    def transaction(self) -> AbstractAsyncContextManager[AlarmTransaction, None]:
        """Open a transaction block: application SQL and alarms commit or roll back together.

        `async with alarms.transaction() as tx:`. Blocks of different tasks take turns, first come
        first served. Inside a block of the same task it is a savepoint. Durable when the outermost
        block is left; an exception or a cancellation rolls all of it back. Cancellation is noticed
        up to the start of the commit and not after.

        Raises:
            StorageOperationError: On entering or leaving, the storage failed, or it may not be
                used here.
        """
        return TransactionBlock(
            self._writer, self._view, self._configuration, asks_reconciliation=True
        )

    @asynccontextmanager
    async def defer_wakes(self) -> AsyncIterator[None]:
        """Hold a recovery alarm armed, and reconcile once for all that happens inside (R17-R19).

        `async with alarms.defer_wakes():` around inline work or maintenance. Transactions inside
        still commit one by one; passes wait until the last scope of the host is left, which then
        arms the earliest deadline. A process that dies inside comes back at the guard.

        The guard is durable when the body begins. Leaving reconciles on success, error and
        cancellation alike, shielded.

        Raises:
            InvalidScheduleConfigurationError: The configuration in force is contradictory.
            StorageOperationError: The storage failed, or this task is in a transaction block.
        """
        self._writer.check_open("defer_wakes")
        configuration = resolve_configuration(self._configuration)
        async with self._wakes.deferring(self._writer, configuration):
            yield

    def _write(self, operation: Callable[[Session], T], name: str) -> Awaitable[T]:
        return self._writer.write(operation, name=name)

    async def _read(self, function: Callable[[Connection], T], name: str) -> T:
        return await self._writer.read(function, name=name)


class ServiceScheduler(_Scheduler):
    """A host's scheduler as one service sees it: its own alarms only."""


class AlarmScheduler(_Scheduler):
    """A host's raw scheduler: every alarm, by definition or by tag."""

    def __init__(
        self,
        writer: HostWriter,
        view: AlarmView,
        configuration: ScheduleConfiguration,
        wakes: Wakes,
        dispatchers: Dispatchers,
    ) -> None:
        super().__init__(writer, view, configuration, wakes)
        self._dispatchers = dispatchers

    async def process_due_alarms(
        self,
        handler: Callable[[AlarmDue[Any]], Awaitable[object]],
        options: DispatchOptions = _DEFAULT_OPTIONS,
    ) -> DispatchResult:
        """Dispatch what is due once, with one handler for every tag (R25).

        Payloads are plain JSON values. A due manual alarm has no handler here and raises.

        Each alarm's acknowledgement is durable before the next one starts on its permit.
        Cancellation cancels the handlers that run, which charges no attempt.

        Args:
            handler: An async callable that takes an `AlarmDue`.
            options: Limits, timeouts and what to do about failures.

        Raises:
            AlarmPassError: It was called from a handler.
            InvalidAlarmRegistrationError: A manual alarm is due.
            InvalidProcessDueAlarmsOptionsError: `handler` or `options` is not one.
            StorageOperationError: The storage failed.
        """
        self._writer.check_open("process_due_alarms")
        check_dispatch_arguments(handler, options)
        return await self._dispatchers.process_due(handler, options)


def check_dispatch_arguments(handler: object, options: object) -> None:
    """Refuse what cannot be a handler of every tag, or no `DispatchOptions`."""
    if is_plainly_synchronous(handler):
        raise InvalidProcessDueAlarmsOptionsError(
            f"handler must be an async callable that takes an AlarmDue, not {describe(handler)}"
        )
    if not isinstance(options, DispatchOptions):
        raise InvalidProcessDueAlarmsOptionsError(
            f"options must be a DispatchOptions, not {describe(options)}"
        )


def _page_key(after: object) -> tuple[int, str, str]:
    if not (isinstance(after, AlarmRecord) and _names_an_alarm(after.ref)):
        raise InvalidAlarmRefError(
            f"after must be the last AlarmRecord of the page before, not {describe(after)}"
        )
    wake_at = after.status.wake_at if is_of_type(after.status, AlarmStatus) else None
    key = instant_to_ms(wake_at, parameter="after.status.wake_at")
    return (key, after.ref.tag, after.ref.id)


def _names_an_alarm(ref: object) -> bool:
    """Whether SQLite can look for it; a record may have been put together by hand."""
    return isinstance(ref, AlarmRef) and all(
        isinstance(name, str) and not has_lone_surrogate(name) for name in (ref.tag, ref.id)
    )
